"""Messages over HTTP: what is sent comes back as it was sent, in every form, by offset and by time."""

import threading
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from runnel.testing.process import BrokerProcess

from .api import Api


def read(api: Api, topic: str, query: str = "", partition: int = 0) -> list[dict[str, Any]]:
    told = api.ok("GET", f"/v1/topics/{topic}/partitions/{partition}/messages{query}")
    messages: list[dict[str, Any]] = told["messages"]
    return messages


def values(messages: list[dict[str, Any]]) -> list[Any]:
    return [each["value"] for each in messages]


def test_json_text_and_bytes_come_back_as_they_were_sent(api: Api) -> None:
    sent: list[dict[str, Any]] = [
        {"value": {"item": "tea", "amount": [1, 2.5, None, True]}},
        {"value": "a text in JSON"},
        {"value": 12},
        {"value": None, "key": "gone"},
        {"text": "plain text, häßlich: €"},
        {"base64": "/wD+"},
        {"value": [], "key": "k", "headers": {"a": "1", "b": ["2", None, {"base64": "/w=="}]}},
        {"text": "x", "key_base64": "/w=="},
    ]
    results = api.ok("POST", "/v1/topics/forms/messages", sent)["results"]
    assert [each["offset"] for each in results if each["partition"] == results[0]["partition"]] == [*range(len(sent))]
    places = ("partition", "offset", "timestamp_ms")
    got = [{name: each[name] for name in each if name not in places} for each in read(api, "forms")]
    assert got == sent


def test_text_that_looks_like_json_is_shown_as_json_unless_asked_otherwise(api: Api) -> None:
    api.ok("POST", "/v1/topics/looks/messages", [{"text": "12"}, {"text": "{broken"}, {"text": ""}])
    assert [list(each)[-1] for each in read(api, "looks")] == ["value", "text", "text"]
    assert [each["text"] for each in read(api, "looks", "?value=text")] == ["12", "{broken", ""]
    assert [each["base64"] for each in read(api, "looks", "?value=base64")] == ["MTI=", "e2Jyb2tlbg==", ""]


def test_json_that_is_nested_too_deeply_is_text_and_hides_no_neighbour(api: Api) -> None:
    deep = "[" * 5_000
    api.ok("POST", "/v1/topics/deep/messages", [{"text": "one"}, {"text": deep}, {"value": 3}])
    assert [each.get("text", each.get("value")) for each in read(api, "deep")] == ["one", deep, 3]
    assert [each["text"] for each in read(api, "deep", "?value=json&limit=2")] == ["one", deep]
    assert api.post("/v1/topics/deep/messages", b'{"value": ' + deep.encode()).code == "malformed-body"


NO_NUMBERS = ["²", "٣", "-1", "1" * 5_000]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_only_looks_like_a_number_is_refused(api: Api, text: str) -> None:
    api.post("/v1/topics", {"name": "digits"})
    messages, shown = "/v1/topics/digits/partitions/0/messages", quote(text)
    for path in (
        f"{messages}?offset={shown}",
        f"{messages}?since={shown}",
        f"/v1/topics/digits/events?begin=0-{shown}",
    ):
        assert api.get(path).code == "invalid-input", path
    assert api.post("/v1/topics/digits/messages", {"text": "x", "deliver_at": text}).code == "invalid-input"


@pytest.mark.parametrize("field", ["partition", "priority", "timestamp_ms", "delay_ms", "ttl_ms", "deliver_at"])
def test_no_number_is_too_large_to_be_refused(api: Api, field: str) -> None:
    for number in (10**23, -(10**23)):
        assert api.post("/v1/topics/digits/messages", {"text": "x", field: number}).status == 422


def test_kafka_clients_and_http_see_the_same_messages(api: Api, broker: BrokerProcess) -> None:
    api.ok("POST", "/v1/topics", {"name": "both", "partitions": 4})
    for n in range(20):
        api.ok("POST", "/v1/topics/both/messages", {"key": f"user-{n}", "value": n, "headers": {"n": str(n)}})
    producer = Producer({"bootstrap.servers": broker.kafka, "partitioner": "murmur2_random"})
    for n in range(20):
        producer.produce("both", key=f"user-{n}", value=b"%d" % (100 + n))
    assert producer.flush(60) == 0
    for partition in range(4):
        messages = read(api, "both", "?limit=100", partition)
        by_key: dict[str, list[int]] = {}
        for each in messages:
            by_key.setdefault(each["key"], []).append(each["value"])
        assert all(second == first + 100 for first, second in by_key.values()), "a key has one partition, in both doors"
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "both", "auto.offset.reset": "earliest"})
    consumer.subscribe(["both"])
    got: list[tuple[Any, ...]] = []
    while len(got) < 40:
        message = consumer.poll(60)
        assert message is not None
        got.append((message.key(), message.value(), message.headers()))
    consumer.close()
    assert (b"user-7", b"7", [("n", b"7")]) in got


def test_a_partition_is_read_on_from_where_it_was_left(api: Api) -> None:
    api.ok("POST", "/v1/topics/on/messages", [{"value": n} for n in range(250)])
    seen: list[int] = []
    offset = "start"
    while True:
        told = api.ok("GET", f"/v1/topics/on/partitions/0/messages?offset={offset}&limit=100")
        if not told["messages"]:
            break
        seen += values(told["messages"])
        offset = told["next_offset"]
    assert seen == [*range(250)]
    assert (told["start_offset"], told["end_offset"], told["next_offset"]) == (0, 250, 250)


def test_bytes_are_bounded_but_one_message_always_comes(api: Api) -> None:
    api.ok("POST", "/v1/topics/large/messages", [{"text": "x" * 1_000} for _ in range(10)])
    assert len(read(api, "large", "?bytes_max=3500")) == 3
    assert len(read(api, "large", "?bytes_max=1")) == 1


def test_messages_are_found_by_time(api: Api) -> None:
    api.ok("POST", "/v1/topics/time/messages", [{"value": n, "timestamp_ms": 1_000_000 + n} for n in range(10)])
    assert values(read(api, "time", "?since=1000007")) == [7, 8, 9]
    assert values(read(api, "time", "?since=1970-01-01T00:16:40.008Z")) == [8, 9]
    assert values(read(api, "time", "?since=2100-01-01T00:00:00%2B00:00")) == []


def test_a_filter_leaves_the_others_out(api: Api) -> None:
    api.ok("POST", "/v1/topics/some/messages", [{"value": {"n": n}, "headers": {"odd": str(n % 2)}} for n in range(10)])
    assert [each["n"] for each in values(read(api, "some", "?filter=body.n%20%3E%206"))] == [7, 8, 9]
    assert [each["n"] for each in values(read(api, "some", "?filter=headers.odd%20%3D%20%271%27&limit=2"))] == [1, 3]
    assert api.get("/v1/topics/some/partitions/0/messages?filter=body.n%20%3E").code == "invalid-filter"


def test_who_waits_gets_the_message_when_it_comes(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "wait"})
    got: list[list[Any]] = []
    waiting = threading.Thread(target=lambda: got.append(values(read(api, "wait", "?offset=end&wait_ms=60000"))))
    waiting.start()
    while waiting.is_alive():
        api.ok("POST", "/v1/topics/wait/messages", {"value": "news"})
        waiting.join(0.05)
    assert got[0][0] == "news"


def test_a_message_of_a_name_is_kept_once(api: Api) -> None:
    first = api.ok("POST", "/v1/topics/once/messages", {"value": 1, "message_id": "a"})["results"][0]
    again = api.ok("POST", "/v1/topics/once/messages", {"value": 1, "message_id": "a"})["results"][0]
    assert again == {**first, "duplicate": True}
    assert len(read(api, "once")) == 1


def test_a_message_with_a_delay_appears_when_it_is_due(api: Api) -> None:
    told = api.ok("POST", "/v1/topics/late/messages", [{"value": "later", "delay_ms": 3_600_000}, {"value": "now"}])
    assert values(read(api, "late")) == ["now"]
    assert api.ask("PATCH", f"/v1/schedule/{told['results'][0]['scheduled_id']}", {"delay_ms": 200}).status == 204
    assert values(read(api, "late", "?offset=1&wait_ms=60000")) == ["later"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_message_is_kept_whatever_is_waited_for(api: Api, acks: str) -> None:
    told = api.ok("POST", f"/v1/topics/acks-{acks}/messages?acks={acks}", {"text": acks})
    assert told["results"] == [{"partition": 0, "offset": 0}]
    assert [each["text"] for each in read(api, f"acks-{acks}", "?value=text&wait_ms=10000")] == [acks]


def test_one_bad_message_costs_the_others_nothing(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "mixed", "partitions": 2})
    answer = api.post("/v1/topics/mixed/messages", [{"value": 1, "partition": 0}, {"value": 2, "partition": 2}])
    assert answer.status == 207
    good, bad = answer.json["results"]
    assert good == {"partition": 0, "offset": 0}
    assert bad["error"]["code"] == "invalid-partitions"
    assert api.post("/v1/topics/mixed/messages", {"value": 2, "partition": 2}).code == "invalid-partitions"
    assert api.post("/v1/topics/mixed/messages", {"value": 2, "priority": 1}).code == "invalid-input"


@pytest.mark.parametrize("acks", ["1", "all"])
def test_a_message_that_its_topic_refuses_costs_the_others_nothing(api: Api, acks: str) -> None:
    topic = f"keyed-{acks}"
    api.ok(
        "POST", "/v1/topics", {"name": topic, "settings": {"cleanup.policy": "compact", "max.message.bytes": 100_000}}
    )
    sent = [{"text": "x" * 30_000, "key": "k"} for _ in range(12)]
    sent[4:6] = [{"text": "no key"}, {"text": "x" * 120_000, "key": "too large"}]
    answer = api.post(f"/v1/topics/{topic}/messages?acks={acks}", sent)
    assert answer.status == 207
    codes = [each["error"]["code"] if "error" in each else each["offset"] for each in answer.json["results"]]
    assert codes == [0, 1, 2, 3, "invalid-record", "batch-too-large", 4, 5, 6, 7, 8, 9]
    none = api.post(f"/v1/topics/{topic}/messages?acks={acks}", sent[4:6])
    assert none.status == 207  # not for one reason
    assert [each["error"]["code"] for each in none.json["results"]] == ["invalid-record", "batch-too-large"]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"value": 1, "text": "1"},
        {"base64": "?"},
        {"value": 1, "key": "a", "key_base64": "YQ=="},
        {"value": 1, "delay_ms": 1, "deliver_at": 1},
        {"value": 1, "deliver_at": "tomorrow"},
        {"value": 1, "deliver_at": "2030-01-01T00:00:00"},
        {"value": 1, "delay_ms": -1},
        {"value": 1, "colour": "red"},
        [],
    ],
)
def test_what_is_no_message_is_refused(api: Api, message: Any) -> None:
    assert api.post("/v1/topics/refused/messages", message).code == "invalid-input"


def test_reading_where_nothing_is_says_so(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "nothing"})
    assert api.get("/v1/topics/nothing/partitions/1/messages").code == "unknown-topic"
    assert api.get("/v1/topics/nobody/partitions/0/messages").code == "unknown-topic"
    assert api.get("/v1/topics/nothing/partitions/0/messages?offset=7").code == "offset-out-of-range"
    assert api.get("/v1/topics/nothing/partitions/0/messages?offset=x").code == "invalid-input"
    assert api.get("/v1/topics/nothing/partitions/x/messages").code == "invalid-input"


def test_what_was_trimmed_is_read_no_more(api: Api, broker: BrokerProcess) -> None:
    """It used to be, out of memory, until the broker was started again."""
    api.ok("POST", "/v1/topics", {"name": "trimmed", "partitions": 1})
    api.ok("POST", "/v1/topics/trimmed/messages", [{"value": number} for number in range(5)])
    assert values(read(api, "trimmed", "?offset=start")) == [0, 1, 2, 3, 4]
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    [deleted] = admin.delete_records([TopicPartition("trimmed", 0, 3)]).values()
    assert deleted.result(60).low_watermark == 3
    for offset in (0, 1, 2):
        assert api.get(f"/v1/topics/trimmed/partitions/0/messages?offset={offset}").code == "offset-out-of-range"
    assert values(read(api, "trimmed", "?offset=start")) == values(read(api, "trimmed", "?offset=3")) == [3, 4]
    api.ok("POST", "/v1/queues", {"name": "trimmed"})
    for query in ("", "?offset=0"):
        found = api.ok("GET", f"/v1/queues/trimmed/messages{query}")["messages"]
        assert [each["offset"] for each in found] == [3, 4]


def test_internal_topics_are_not_written(api: Api) -> None:
    assert api.post("/v1/topics/__consumer_offsets/messages", {"value": 1}).code == "invalid-topic-name"


@pytest.mark.parametrize(
    "body", [b'{"value": "\xff"}', b'{"value": {"\xff": 1}}', b'{"value": "\\ud800"}', b'{"value": 01}']
)
def test_what_is_no_json_is_not_taken_for_it(api: Api, body: bytes) -> None:
    if api.get("/v1/topics/no-json").status == 404:
        api.ok("POST", "/v1/topics", {"name": "no-json"})
    assert api.post("/v1/topics/no-json/messages", body).code == "malformed-body"
    assert api.ok("GET", "/v1/topics/no-json/partitions/0/messages")["messages"] == []


def test_a_number_that_no_float_holds_comes_back_as_it_was_sent_and_is_null_to_a_filter(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "huge"})
    assert api.post("/v1/topics/huge/messages", b'{"value": {"n": 1e400, "to": "bob"}}').status == 200
    path = "/v1/topics/huge/partitions/0/messages?filter="
    for passing in ("body.to%20%3D%20'bob'", "(body.n%20%3E%200)%20IS%20NULL"):
        assert b'"value":{"n": 1e400, "to": "bob"}' in api.get(path + passing).content
    assert api.ok("GET", path + "body.n%20%3E%200")["messages"] == []


def test_an_address_that_is_not_utf_8_is_refused(api: Api) -> None:
    assert api.get("/v1/users/%FF/events").code == "invalid-input"
    assert api.get("/v1/topics/%C3").code == "invalid-input"
