"""Records that no coordinator wrote, in every internal topic, between those of coordinators: all is served."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.test_set_aside import FOREIGN
from tests.client.talk import talk
from tests.doors.http.api import Api
from tests.doors.http.test_metrics import scraped
from tests.test_replication import Brokers, cluster_of, eventually, run

from runnel.broker.config import Address
from runnel.broker.internal import GROUPS, INTERNAL, QUEUES, SCHEDULE, SINKS, TRANSACTIONS
from runnel.broker.journal import PartitionJournal
from runnel.client.calls import call
from runnel.client.cluster import TRANSACTION, Cluster
from runnel.model.errors import CoordinatorNotAvailable, InvalidRequest, StorageFailed, UnknownTopicId
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.internal_calls import KEEPER_OPEN, MAKE_INTERNAL, KeeperOpen, MakeInternal
from runnel.queues.keeper import owner_name
from runnel.record import records
from runnel.record.batch import read_header
from runnel.testing.process import BrokerProcess

ALONE: dict[str, Any] = {
    "count": 1, "http": Address("127.0.0.1", 0), "group_partitions": 1, "transaction_partitions": 1,
    "queue_partitions": 1, "schedule_partitions": 1,
}  # fmt: skip
DAY_MS = 86_400_000


def api_of(brokers: Brokers) -> Api:
    return Api(str(brokers.up[1].http))


async def told(work: Callable[[], Any]) -> Any:
    """An answer over HTTP; the broker runs on this loop."""
    return await asyncio.to_thread(work)


def use(api: Api, turn: str) -> None:
    """Have every coordinator keep something."""
    api.ok("POST", "/v1/topics/t/messages", {"value": turn})
    api.ok("POST", "/v1/topics/t/messages", {"value": "later", "delay_ms": DAY_MS})
    api.ok("POST", f"/v1/groups/g-{turn}/seek", {"topic": "t", "to": "end"})
    api.ok("POST", "/v1/queues/jobs/messages", [{"value": n} for n in range(3)])
    [message] = api.ok("POST", "/v1/queues/jobs/receive?limit=1&wait_ms=10000")["messages"]
    api.ok("POST", "/v1/queues/jobs/ack", {"receipts": [message["receipt"]]})
    assert api.post("/v1/topics/t/messages", {"value": turn}, **{"idempotency-key": turn}).status == 200


async def append_foreign(brokers: Brokers) -> None:
    """As a client could before only coordinators wrote to their topics."""
    rows = [records.Record(n, 1, key, value, ()) for n, (key, value) in enumerate(FOREIGN)]
    for name in INTERNAL:
        replica = brokers.replica(1, name)
        batch = memoryview(bytearray(records.encode(rows)))
        replica.append(batch, read_header(batch), own=True)
        await eventually(lambda replica=replica: replica.high_watermark == replica.log.end_offset)  # type: ignore[misc]


async def make_all(brokers: Brokers) -> None:
    async with brokers.client() as cluster:
        await cluster.coordinator("tx", TRANSACTION)
        await call(cluster, MAKE_INTERNAL, MakeInternal(SINKS))


def test_all_coordinators_serve_what_lies_beside_foreign_records(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, **ALONE) as brokers:
            api = api_of(brokers)
            await told(lambda: api.ok("POST", "/v1/queues", {"name": "jobs"}))
            await make_all(brokers)
            await told(lambda: use(api, "before"))
            await append_foreign(brokers)
            await told(lambda: use(api, "behind"))
            await brokers.kill(1)
            await brokers.start(1)
            await told(lambda: check_all(api_of(brokers)))

    run(main())


def check_all(api: Api) -> None:
    for turn, lag in (("before", 3), ("behind", 1)):
        assert api.ok("GET", f"/v1/groups/g-{turn}")["lag"] == lag
    assert len(api.ok("POST", "/v1/queues/jobs/receive?limit=10&wait_ms=10000")["messages"]) == 4
    assert api.ok("GET", "/v1/schedule/count")["messages"] == 2
    again = api.post("/v1/topics/t/messages", {"value": "before"}, **{"idempotency-key": "before"})
    assert again.json["results"][0]["offset"] == 1
    assert api.ok("GET", "/ready") == {"status": "ready", "broker": 1}
    found = scraped(api)
    for name in (GROUPS, TRANSACTIONS, QUEUES, SINKS, SCHEDULE):
        assert found["runnel_records_set_aside_total", (("topic", name),)] == len(FOREIGN)


def test_a_shard_that_does_not_serve_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(journal: PartitionJournal, take: object) -> None:
        raise StorageFailed("the disk is ill")

    async def main() -> None:
        async with cluster_of(tmp_path, **ALONE) as brokers:
            api = api_of(brokers)
            await told(lambda: api.ok("POST", "/v1/queues", {"name": "jobs"}))
            await make_all(brokers)
            await told(lambda: use(api, "before"))
            await brokers.stop(1)
            with monkeypatch.context() as patched:
                patched.setattr(PartitionJournal, "read", refuse)
                await brokers.start(1)
                api = api_of(brokers)
                answer = await told(lambda: api.get("/ready"))
                assert (answer.status, answer.code) == (503, "not-serving")
                for name in (GROUPS, TRANSACTIONS, QUEUES, SINKS):
                    assert f"{name}-0: the disk is ill" in answer.json["detail"]
                found = await told(lambda: scraped(api))
                assert found["runnel_shards_unserved", (("topic", QUEUES),)] == 1
            while (await told(lambda: api.get("/ready"))).status != 200:
                await asyncio.sleep(0.05)

    run(main())


NOWHERE = PartitionKey(TopicId(UUID(int=1)), 0)
MALFORMED = KeeperOpen("p0", 1 << 40)


def test_a_malformed_call_costs_no_queue_its_state(tmp_path: Path) -> None:
    """Twice: the first one failed half way, and what it left was written down by the second one."""

    async def attack(cluster: Cluster) -> None:
        topic = await cluster.topic("jobs")
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="is no owner"):
                await call(cluster, KEEPER_OPEN, MALFORMED)
        key = PartitionKey(TopicId(topic.id), 0)
        with pytest.raises(CoordinatorNotAvailable, match="epoch"):  # it would shut out every leader to come
            await call(cluster, KEEPER_OPEN, KeeperOpen(owner_name("jobs", key), 1 << 40))
        with pytest.raises(CoordinatorNotAvailable):
            await call(cluster, KEEPER_OPEN, KeeperOpen(owner_name("jobs", PartitionKey(key.topic_id, 99)), 0))
        with pytest.raises(UnknownTopicId):
            await call(cluster, KEEPER_OPEN, KeeperOpen(owner_name("jobs", NOWHERE), 0))

    with BrokerProcess(tmp_path / "data") as broker:
        api = Api(broker.http)
        api.ok("POST", "/v1/queues", {"name": "jobs"})
        api.ok("POST", "/v1/queues/jobs/messages", [{"value": n} for n in range(2)])
        [first] = api.ok("POST", "/v1/queues/jobs/receive?limit=1&wait_ms=10000")["messages"]
        api.ok("POST", "/v1/queues/jobs/ack", {"receipts": [first["receipt"]]})
        talk(broker.kafka, attack)
        broker.kill()
        broker.start()
        [second] = api.ok("POST", "/v1/queues/jobs/receive?limit=10&wait_ms=10000")["messages"]
        assert second["value"] == 1
        assert api.ok("GET", "/ready") == {"status": "ready", "broker": 1}
