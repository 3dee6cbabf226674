"""Queues, dead letters and the schedule over HTTP. The engine itself has its own tests."""

from typing import Any

from .api import Api


def queue(api: Api, name: str, **settings: Any) -> str:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    assert api.post("/v1/queues", {"name": name, "settings": named}).status == 201
    return f"/v1/queues/{name}"


def receive(api: Api, path: str, query: str = "") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = api.ok("POST", f"{path}/receive?wait_ms=10000{query}")["messages"]
    return messages


def receipts(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"receipts": [each["receipt"] for each in messages]}


def test_the_life_of_a_queue(api: Api) -> None:
    made = api.post("/v1/queues", {"name": "q-life", "settings": {"attempts.max": 3}, "partitions": 2})
    assert (made.status, made.json) == (201, {"queue": "q-life", "topic": "q-life", "created_topic": True})
    assert api.post("/v1/queues", {"name": "q-life"}).code == "queue-already-exists"
    assert api.post("/v1/queues", {"name": "q-bad", "settings": {"attempts.max": "many"}}).code == "invalid-config"
    assert api.ask("PATCH", "/v1/queues/q-life", {"settings": {"attempts.max": 7, "lease.ms": 5_000}}).status == 204
    told = api.ok("GET", "/v1/queues/q-life")
    settings = {each["name"]: (each["value"], each["default"]) for each in told["settings"]}
    assert (settings["attempts.max"], settings["lease.ms"]) == (("7", False), ("5000", False))
    assert [each["partition"] for each in told["partitions"] if each["topic"] == "q-life"] == [0, 1]
    assert "q-life" in [each["queue"] for each in api.ok("GET", "/v1/queues?prefix=q-l")["queues"]]
    page = api.ok("GET", "/v1/queues?after=q-lifd&limit=1")
    assert [each["queue"] for each in page["queues"]] == ["q-life"]
    assert api.ok("GET", "/v1/queues?prefix=q-life&after=q-life") == {"queues": [], "more": False}
    assert api.ok("DELETE", "/v1/queues/q-life?topics=true")["topics"][0] == "q-life"
    assert api.get("/v1/queues/q-life").code == "unknown-queue"
    assert api.get("/v1/topics/q-life").code == "unknown-topic"


def test_messages_are_leased_and_accepted(api: Api) -> None:
    path = queue(api, "q-ack")
    api.ok("POST", f"{path}/messages", [{"value": n, "key": str(n), "headers": {"n": str(n)}} for n in range(3)])
    got = receive(api, path, "&limit=10")
    assert [(each["value"], each["key"], each["attempt"]) for each in got] == [(n, str(n), 1) for n in range(3)]
    told = api.ok("GET", path)
    assert (told["leased"], told["ready"]) == (3, 0)
    assert api.ok("POST", f"{path}/ack", receipts(got)) == {"settled": 3, "refused": []}
    assert api.ok("POST", f"{path}/ack", receipts(got))["settled"] == 3, "what is accepted stays accepted"
    assert api.ok("POST", f"{path}/receive")["messages"] == []


def test_no_value_keeps_a_queue_from_being_read(api: Api) -> None:
    path = queue(api, "q-deep", attempts_max=1)
    deep = "[" * 5_000
    api.ok("POST", f"{path}/messages", [{"text": "one"}, {"text": deep}, {"text": "three"}])
    assert [each["text"] for each in api.ok("GET", f"{path}/messages")["messages"]] == ["one", deep, "three"]
    got = receive(api, path, "&limit=10")
    assert [each["text"] for each in got] == ["one", deep, "three"]
    assert api.ok("POST", f"{path}/reject", receipts(got))["settled"] == 3
    letters: list[dict[str, Any]] = []
    while len(letters) < 3:
        letters = api.ok("GET", f"{path}/dead-letters")["letters"]
    assert [each["message"]["text"] for each in letters] == ["one", deep, "three"]


def test_a_released_message_comes_again_and_its_old_receipt_is_void(api: Api) -> None:
    path = queue(api, "q-nack")
    api.ok("POST", f"{path}/messages", {"value": "x"})
    first = receive(api, path)
    assert api.ok("POST", f"{path}/nack", {**receipts(first), "delay_ms": 0})["settled"] == 1
    second = receive(api, path)
    assert (second[0]["attempt"], second[0]["value"]) == (2, "x")
    assert api.post(f"{path}/ack", receipts(first)).code == "lease-lost"
    mixed = api.post(f"{path}/ack", receipts([*first, *second]))
    assert (mixed.status, mixed.json["settled"]) == (207, 1)
    assert [each["receipt"] for each in mixed.json["refused"]] == [first[0]["receipt"]]
    assert mixed.json["refused"][0]["error"]["code"] == "lease-lost"


def test_what_fails_for_several_reasons_is_told_one_by_one(api: Api) -> None:
    path = queue(api, "q-reasons", retry_backoff_ms=0)
    api.ok("POST", f"{path}/messages", {"value": "x"})
    lost = receive(api, path)
    api.ok("POST", f"{path}/nack", {**receipts(lost), "delay_ms": 0})
    answer = api.post(f"{path}/ack", {"receipts": [lost[0]["receipt"], "nonsense"]})
    assert (answer.status, answer.json["settled"]) == (207, 0)
    codes = [each["error"]["code"] for each in answer.json["refused"]]
    assert codes[0] == "lease-lost"
    assert codes[1] != "lease-lost"
    assert api.post(f"{path}/ack", receipts([*lost, *lost])).code == "lease-lost"


def test_one_consumer_at_a_time_has_a_name(api: Api) -> None:
    path = queue(api, "q-single", consumers="single")
    api.ok("POST", f"{path}/messages", [{"value": n} for n in range(3)])
    nameless = api.post(f"{path}/receive")
    assert nameless.code == "invalid-request"
    assert "parameter consumer" in nameless.json["detail"]
    assert len(receive(api, path, "&consumer=one")) == 1
    assert api.ok("POST", f"{path}/receive?consumer=two")["messages"] == []
    assert len(receive(api, path, "&consumer=one")) == 1


def test_a_lease_can_be_extended(api: Api) -> None:
    path = queue(api, "q-extend")
    api.ok("POST", f"{path}/messages", {"value": "x"})
    got = receive(api, path, "&lease_ms=3000")
    assert api.ok("POST", f"{path}/extend", {**receipts(got), "lease_ms": 60_000})["settled"] == 1
    assert api.ok("POST", f"{path}/receive?wait_ms=4500")["messages"] == [], "the first lease would be over now"
    assert api.ok("POST", f"{path}/ack", receipts(got))["settled"] == 1


def test_each_message_can_be_settled_in_its_own_way(api: Api) -> None:
    path = queue(api, "q-settle")
    api.ok("POST", f"{path}/messages", [{"value": n} for n in range(3)])
    one, two, three = receive(api, path, "&limit=3")
    told = [
        {"receipt": one["receipt"], "outcome": "accept"},
        {"receipt": two["receipt"], "outcome": "release", "delay_ms": 0},
        {"receipt": three["receipt"], "outcome": "reject", "reason": "bad"},
    ]
    assert api.ok("POST", f"{path}/settle", {"settlements": told})["settled"] == 3
    assert [each["value"] for each in receive(api, path, "&limit=3")] == [1]
    assert api.post(f"{path}/settle", {"settlements": [{"receipt": "a", "outcome": "forget"}]}).code == "invalid-input"
    assert api.post(f"{path}/ack", {"receipts": ["nonsense"]}).code == "invalid-request"
    assert api.post(f"{path}/ack", {"receipts": []}).code == "invalid-input"


def test_the_last_nack_says_why_a_message_died(api: Api) -> None:
    path = queue(api, "q-nacked", attempts_max=1)
    api.ok("POST", f"{path}/messages", {"value": "x"})
    api.ok("POST", f"{path}/nack", {**receipts(receive(api, path)), "reason": "the printer burns"})
    letters: list[dict[str, Any]] = []
    while not letters:
        letters = api.ok("GET", f"{path}/dead-letters")["letters"]
    assert [letter["reason"] for letter in letters] == ["the printer burns"]


def test_looking_takes_nothing_and_purging_takes_all(api: Api) -> None:
    path = queue(api, "q-peek")
    api.ok("POST", f"{path}/messages", [{"value": n} for n in range(5)])
    receive(api, path, "&limit=2")
    looked = api.ok("GET", f"{path}/messages?limit=10")["messages"]
    assert [(each["value"], each["state"]) for each in looked] == [
        (0, "leased"), (1, "leased"), (2, "ready"), (3, "ready"), (4, "ready"),
    ]  # fmt: skip
    assert [each["value"] for each in api.ok("GET", f"{path}/messages?filter=value%20%3D%20%274%27")["messages"]] == [4]
    planned = api.ok("POST", f"{path}/purge?dry_run=true")["partitions"]
    assert [(each["before"], each["after"]) for each in planned if each["topic"] == "q-peek"] == [(0, 5)]
    api.ok("POST", f"{path}/purge")
    assert api.ok("POST", f"{path}/receive")["messages"] == []


def test_a_queue_is_rewound(api: Api) -> None:
    path = queue(api, "q-rewind")
    api.ok("POST", f"{path}/messages", [{"value": n, "timestamp_ms": 1_000 + n} for n in range(5)])
    api.ok("POST", f"{path}/ack", receipts(receive(api, path, "&limit=5")))
    api.ok("POST", f"{path}/rewind", {"to": "time", "time": 1_003})
    assert [each["value"] for each in receive(api, path, "&limit=5")] == [3, 4]
    assert api.post(f"{path}/rewind", {"to": "offset"}).code == "invalid-input"


def test_a_filter_on_receive_takes_what_passes(api: Api) -> None:
    path = queue(api, "q-filter")
    api.ok("POST", f"{path}/messages", [{"value": {"n": n}} for n in range(4)])
    got = receive(api, path, "&limit=4&filter=body.n%20%3E%202")
    assert [each["value"]["n"] for each in got] == [3]
    assert api.post(f"{path}/receive?filter=body.n%20%3E").code == "invalid-filter"


def test_what_is_not_there_is_told(api: Api) -> None:
    assert api.post("/v1/queues/nobody/receive").code == "unknown-queue"
    assert api.post("/v1/queues/nobody/messages", {"value": 1}).code == "unknown-queue"
    assert api.ask("DELETE", "/v1/queues/nobody").code == "unknown-queue"


# --- the schedule


def test_what_waits_is_listed_moved_and_cancelled(api: Api) -> None:
    sent = [{"value": n, "delay_ms": 3_600_000 * (3 - n)} for n in range(3)]
    results = api.ok("POST", "/v1/topics/s-list/messages", sent)["results"]
    ids = [each["scheduled_id"] for each in results]
    told = api.ok("GET", "/v1/schedule?topic=s-list&limit=2")
    assert ([each["value"] for each in told["messages"]], told["more"]) == ([2, 1], True)
    last = told["messages"][-1]
    rest = api.ok("GET", f"/v1/schedule?topic=s-list&since={last['due_ms']}&after={last['id']}")
    assert [each["value"] for each in rest["messages"]] == [0]
    assert api.ok("GET", "/v1/schedule/count?topic=s-list")["messages"] == 3
    one = api.ok("GET", f"/v1/schedule/{ids[0]}")
    assert (one["value"], one["topic"], one["id"]) == (0, "s-list", ids[0])
    assert api.get("/v1/schedule/nothing").code == "not-pending"
    assert api.ask("PATCH", f"/v1/schedule/{ids[0]}", {"delay_ms": 60_000}).status == 204
    assert [each["value"] for each in api.ok("GET", "/v1/schedule?topic=s-list")["messages"]] == [0, 2, 1]
    assert api.ask("DELETE", f"/v1/schedule/{ids[1]}").status == 204
    assert api.ask("DELETE", f"/v1/schedule/{ids[1]}").status == 204  # the same answer to the same question
    assert api.ask("DELETE", "/v1/schedule/nothing").code == "not-pending"
    assert api.ask("PATCH", f"/v1/schedule/{ids[1]}", {"delay_ms": 1}).code == "not-pending"
    assert api.ask("PATCH", f"/v1/schedule/{ids[0]}", {}).code == "invalid-input"
    assert api.ask("PATCH", f"/v1/schedule/{ids[0]}", {"deliver_at": "1990-01-01T00:00:00Z"}).status == 204
    got = api.ok("GET", "/v1/topics/s-list/partitions/0/messages?wait_ms=30000")["messages"]
    assert [each["value"] for each in got] == [0]


def test_a_delayed_message_of_a_queue_is_delivered_later(api: Api) -> None:
    path = queue(api, "q-delay")
    told = api.ok("POST", f"{path}/messages", [{"value": "later", "delay_ms": 3_600_000}, {"value": "now"}])
    assert [each["value"] for each in receive(api, path, "&limit=2")] == ["now"]
    assert api.ask("PATCH", f"/v1/schedule/{told['results'][0]['scheduled_id']}", {"delay_ms": 200}).status == 204
    assert [each["value"] for each in receive(api, path, "&limit=2")] == ["later"]


# --- dead letters


def test_a_message_that_expired_is_not_delivered(api: Api) -> None:
    path = queue(api, "q-ttl")
    api.ok("POST", f"{path}/messages", [{"value": "late", "ttl_ms": 0}, {"value": "in time", "ttl_ms": 600_000}])
    assert [each["value"] for each in receive(api, path, "&limit=10")] == ["in time"]


def test_dead_letters_are_listed_dropped_and_sent_back(api: Api) -> None:
    path = queue(api, "q-dead")
    api.ok("POST", f"{path}/messages", [{"value": {"n": n}, "key": str(n)} for n in range(4)])
    api.ok("POST", f"{path}/reject", {**receipts(receive(api, path, "&limit=4")), "reason": "bad"})
    letters: list[dict[str, Any]] = []
    while len(letters) < 4:
        letters = api.ok("GET", f"{path}/dead-letters")["letters"]
    assert [(each["message"]["value"]["n"], each["offset"], each["reason"]) for each in letters] == [
        (n, n, "bad") for n in range(4)
    ]
    assert api.ok("GET", "/v1/dead-letters?since=q-dead&limit=1")["queues"] == [
        {"queue": "q-dead", "topic": "q-dead.dead", "messages": 4}
    ]
    assert api.get("/v1/dead-letters?limit=0").code == "invalid-input"
    one = letters[2]["message"]
    page = api.ok("GET", f"{path}/dead-letters?limit=1")
    assert page["more"]
    rest = api.ok("GET", f"{path}/dead-letters?since={page['next']}")
    assert page["letters"] + rest["letters"] == letters
    assert (rest["more"], rest["next"]) == (False, None)
    filtered = api.ok("GET", f"{path}/dead-letters?filter=body.n%20%3D%202")["letters"]
    assert [each["message"]["offset"] for each in filtered] == [one["offset"]]
    place = {"partition": one["partition"], "offset": one["offset"]}
    assert api.post(f"{path}/redrive", {"only": [place], "value": 1, "text": "1"}).code == "invalid-input"
    answer = api.post(f"{path}/redrive", {"only": [place], "value": {"n": 7}})
    assert answer.status == 202
    assert [each["value"] for each in receive(api, path)] == [{"n": 7}]
    assert api.ok("POST", f"{path}/dead-letters/drop?dry_run=true", {})["messages"] == 3
    assert api.ok("POST", f"{path}/dead-letters/drop", {"upto": [place]})["messages"] == 2  # and the one that went back
    assert len(api.ok("GET", f"{path}/dead-letters")["letters"]) == 1
    assert api.get("/v1/queues/nobody/dead-letters").code == "unknown-queue"
    assert api.get(f"{path}/dead-letters?since=nowhere").code == "invalid-input"
