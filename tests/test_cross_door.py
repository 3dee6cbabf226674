"""One topic through all doors: written with confluent-kafka, leased over HTTP, given up, sent back, read by a group."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from tests.doors.http.api import Api

from runnel.testing.process import BrokerProcess

LIMIT_S = 60.0
ORDERS = 20


def leased(api: Api, count: int) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []
    while len(got) < count:
        got += api.ok("POST", f"/v1/queues/fulfil/receive?limit={count - len(got)}&wait_ms=10000")["messages"]
    return got


def read_by_group(broker: BrokerProcess, group: str, count: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """(key, value, headers) of so many messages, which are committed then."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.subscribe(["orders"])
    got: list[tuple[str, Any, dict[str, Any]]] = []
    while len(got) < count:
        message = consumer.poll(LIMIT_S)
        assert message is not None
        assert message.error() is None
        key, value = message.key() or b"", message.value() or b""
        got.append((key.decode(), json.loads(value), dict(message.headers() or [])))
    consumer.commit(asynchronous=False)
    consumer.close()
    return got


def test_a_message_goes_through_all_doors(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        api = Api(broker.http)
        api.ok("POST", "/v1/topics", {"name": "orders", "partitions": 3})
        producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
        for n in range(ORDERS):
            headers: list[tuple[str, str | bytes | None]] = [("region", "eu" if n % 2 else "us")]
            producer.produce("orders", key=f"order-{n}", value=json.dumps({"n": n, "ok": n % 5 != 0}), headers=headers)
        assert producer.flush(LIMIT_S) == 0

        # A group reads all of it: the queue that comes next takes nothing away.
        assert sorted(value["n"] for _, value, _ in read_by_group(broker, "audit", ORDERS)) == [*range(ORDERS)]

        # The same messages, leased over HTTP: one in five can't be fulfilled.
        api.ok("POST", "/v1/queues", {"name": "fulfil", "settings": {"topic": "orders", "attempts.max": 3}})
        messages = leased(api, ORDERS)
        assert sorted(each["key"] for each in messages) == sorted(f"order-{n}" for n in range(ORDERS))
        good = [each["receipt"] for each in messages if each["value"]["ok"]]
        bad = [each["receipt"] for each in messages if not each["value"]["ok"]]
        assert api.ok("POST", "/v1/queues/fulfil/ack", {"receipts": good})["settled"] == 16
        assert api.ok("POST", "/v1/queues/fulfil/reject", {"receipts": bad, "reason": "out of tea"})["settled"] == 4

        # They lie among the dead letters, whole, with where they were and why.
        letters: list[dict[str, Any]] = []
        while len(letters) < 4:
            letters = api.ok("GET", "/v1/queues/fulfil/dead-letters")["letters"]
        assert {each["message"]["key"] for each in letters} == {"order-0", "order-5", "order-10", "order-15"}
        assert {(each["topic"], each["reason"], each["attempts"]) for each in letters} == {("orders", "out of tea", 1)}
        originals = {(each["partition"], each["offset"]): each["key"] for each in messages}
        assert all(originals[each["partition"], each["offset"]] == each["message"]["key"] for each in letters)

        # Repaired and sent back where they came from, once.
        asked = {"merge": {"ok": True}, "set_headers": {"repaired": "yes"}, "task": "repair"}
        api.ok("POST", "/v1/queues/fulfil/redrive", asked)
        while (state := api.ok("GET", "/v1/queues/fulfil/redrive?task=repair"))["state"] == "running":
            pass
        assert (state["state"], state["moved"]) == ("done", 4)
        api.ok("POST", "/v1/queues/fulfil/redrive", asked)

        # The queue delivers them again, and the group that read all before reads them too, with their keys.
        again = leased(api, 4)
        assert {(each["key"], each["value"]["ok"]) for each in again} == {(f"order-{n}", True) for n in (0, 5, 10, 15)}
        assert (
            api.ok("POST", "/v1/queues/fulfil/ack", {"receipts": [each["receipt"] for each in again]})["settled"] == 4
        )
        back = read_by_group(broker, "audit", 4)
        assert {key for key, _, _ in back} == {"order-0", "order-5", "order-10", "order-15"}
        assert all(value["ok"] and headers["repaired"] == b"yes" for _, value, headers in back)
        assert {key: headers["region"] for key, _, headers in back} == {
            "order-0": b"us", "order-5": b"eu", "order-10": b"us", "order-15": b"eu",
        }  # fmt: skip

        # Nothing came twice, and nothing is left.
        assert api.ok("POST", "/v1/queues/fulfil/receive?wait_ms=500")["messages"] == []
        told = api.ok("GET", "/v1/queues/fulfil")
        assert (told["ready"], told["leased"], told["waiting"]) == (0, 0, 0)
        assert sum(each["end_offset"] for each in api.ok("GET", "/v1/topics/orders")["partitions"]) == ORDERS + 4
