"""Offsets in transactions, as clients of every age send them and ask for them, against a real broker."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import pytest
from tests.client.talk import talk
from tests.client.test_cluster_admin import eventually

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, Node
from runnel.doors.kafka.errors import code_of
from runnel.doors.kafka.txn_offset_commit import in_words_of
from runnel.model.errors import (
    ConcurrentTransactions,
    NotCoordinator,
    RunnelError,
    TransactionAbortable,
    UnknownTopicId,
)
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

Place: TypeAlias = tuple[str, int]
GROUP, TRANSACTION = 0, 1
LAST_V1 = 4  # of EndTxn and TxnOffsetCommit: before the broker adds partitions and bumps epochs
STABLE_SINCE = 7
Commit, Fetch = m.TxnOffsetCommitRequest, m.OffsetFetchRequest


class Producer(NamedTuple):
    producer_id: int
    epoch: int


class Session:
    """One topic, one group, one transactional id, and a broker to talk to."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name
        self.producer = Producer(-1, -1)

    async def ask(self, api: Api, request: Any, reply: type[Any], version: int | None = None) -> Any:
        if version is None:
            return await self.node.ask(api, request, reply)
        return await self.node.ask(api, request, reply, version_max=version)

    async def init(self) -> None:
        """Find the coordinators, which makes their topics, and get a producer id."""
        for key_type in (GROUP, TRANSACTION):
            await self._find(key_type)

        async def attempt() -> bool:
            request = m.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
            answer = await self.ask(Api.INIT_PRODUCER_ID, request, m.InitProducerIdResponse)
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            return bool(answer.error_code == 0)

        await eventually(attempt)

    async def _find(self, key_type: int) -> None:
        async def attempt() -> bool:
            request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[self.name])
            answer = await self.ask(Api.FIND_COORDINATOR, request, m.FindCoordinatorResponse)
            return bool(answer.coordinators[0].error_code == 0)

        await eventually(attempt)

    async def add_offsets(self) -> None:
        async def attempt() -> bool:
            request = m.AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=self.producer.producer_id,
                producer_epoch=self.producer.epoch, group_id=self.name,
            )  # fmt: skip
            return bool((await self.ask(Api.ADD_OFFSETS_TO_TXN, request, m.AddOffsetsToTxnResponse)).error_code == 0)

        await eventually(attempt)

    async def commit(
        self, version: int, offsets: dict[tuple[str, int], int], **more: Any
    ) -> dict[tuple[str, int], int]:
        """The error code of each partition."""
        topics: dict[str, list[Any]] = {}
        for (topic, number), offset in offsets.items():
            part = Commit.TxnOffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata="m"
            )
            topics.setdefault(topic, []).append(part)
        said = {
            "transactional_id": self.name, "group_id": self.name,
            "producer_id": self.producer.producer_id, "producer_epoch": self.producer.epoch, **more,
        }  # fmt: skip
        parts = [Commit.TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()]
        answer = await self.ask(
            Api.TXN_OFFSET_COMMIT, Commit(topics=parts, **said), m.TxnOffsetCommitResponse, version
        )  # fmt: skip
        return {(topic.name, p.partition_index): p.error_code for topic in answer.topics for p in topic.partitions}

    async def end(self, version: int, *, commit: bool) -> int:
        request = m.EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer.producer_id, producer_epoch=self.producer.epoch,
            committed=commit,
        )  # fmt: skip
        answer = await self.ask(Api.END_TXN, request, m.EndTxnResponse, version)
        if version > LAST_V1:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    async def offset(self, version: int, *, stable: bool) -> tuple[int, int]:
        """The committed offset of partition 0, and the error code."""
        if version < 8:
            wanted = [Fetch.OffsetFetchRequestTopic(name=self.name, partition_indexes=[0])]
            request = Fetch(group_id=self.name, topics=wanted, require_stable=stable)
            answer = await self.ask(Api.OFFSET_FETCH, request, m.OffsetFetchResponse, version)
            [part] = answer.topics[0].partitions
            return part.committed_offset, part.error_code
        by_id = (await self.ask(Api.METADATA, _describe(self.name), m.MetadataResponse)).topics[0].topic_id
        wanted_of = [Fetch.OffsetFetchRequestTopics(name=self.name, topic_id=by_id, partition_indexes=[0])]
        group = Fetch.OffsetFetchRequestGroup(group_id=self.name, topics=wanted_of)
        request = Fetch(groups=[group], require_stable=stable)
        answer = await self.ask(Api.OFFSET_FETCH, request, m.OffsetFetchResponse, version)
        [part] = answer.groups[0].topics[0].partitions
        return part.committed_offset, part.error_code


def _describe(topic: str) -> m.MetadataRequest:
    return m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)])


def on(broker: BrokerProcess, name: str, work: Callable[[Session], Awaitable[None]]) -> None:
    async def main(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=2, replicas=1)])
        node = cluster.broker((await cluster.topic(name)).partitions[0].leader)
        session = Session(node, name)
        await session.init()
        await work(session)

    talk(broker.kafka, main)


@pytest.mark.parametrize("version", range(6))
def test_offsets_show_when_their_transaction_is_committed(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        here = (session.name, 0)
        for commit, offset in ((True, 5), (False, 6), (True, 7)):
            if version <= LAST_V1:
                await session.add_offsets()
            assert await session.commit(version, {here: offset}) == {here: 0}
            before = -1 if offset == 5 else 5
            for fetching in (STABLE_SINCE, 8, 9, 10):
                assert await session.offset(fetching, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                assert await session.offset(fetching, stable=False) == (before, 0)
            assert await session.offset(6, stable=False) == (before, 0)
            assert await session.end(version, commit=commit) == 0
            expected = (offset if commit else before, 0)

            async def settled(expected: tuple[int, int] = expected) -> bool:
                return await session.offset(10, stable=True) == expected

            await eventually(settled)

    on(broker, f"txn-offsets-{version}", work)


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE), (5, ErrorCode.NONE)]
)
def test_a_group_that_the_client_did_not_add(broker: BrokerProcess, version: int, code: ErrorCode) -> None:
    async def work(session: Session) -> None:
        here = (session.name, 0)
        assert await session.commit(version, {here: 1}) == {here: code}
        unstable = await session.offset(10, stable=True)
        assert unstable == (-1, ErrorCode.NONE if code else ErrorCode.UNSTABLE_OFFSET_COMMIT)

    on(broker, f"txn-unadded-{version}", work)


@pytest.mark.parametrize("version", [3, 5])
def test_every_refusal_has_its_code(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        here = (session.name, 0)
        await session.add_offsets()
        mixed = {here: 1, (session.name, 9): 1, ("nowhere", 0): 1}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await session.commit(version, mixed) == dict(zip(mixed, (0, unknown, unknown), strict=True))

        async def code(**more: Any) -> int:
            return (await session.commit(version, {here: 9}, **more))[here]

        assert await code(generation_id=4, member_id="m") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(generation_id=4, group_instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(group_id="") == ErrorCode.INVALID_GROUP_ID
        assert await code(producer_epoch=session.producer.epoch + 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await code(producer_id=session.producer.producer_id + 1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await code(transactional_id="nobody") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await session.end(version, commit=True) == 0

    on(broker, f"txn-refusals-{version}", work)


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (ConcurrentTransactions("x"), 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ConcurrentTransactions("x"), 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (TransactionAbortable("x"), 3, ErrorCode.INVALID_TXN_STATE),
        (TransactionAbortable("x"), 4, ErrorCode.TRANSACTION_ABORTABLE),
        (UnknownTopicId("x"), 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NotCoordinator("x"), 5, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_old_clients_hear_what_they_understand(error: RunnelError, version: int, told: ErrorCode) -> None:
    assert code_of(in_words_of(version, error)) == told


def test_a_stale_generation_is_refused_once_the_group_is_gone(broker: BrokerProcess) -> None:
    async def work(session: Session) -> None:
        here = (session.name, 0)
        refused = await session.commit(5, {here: 9}, generation_id=4, member_id="m")
        assert refused == {here: ErrorCode.ILLEGAL_GENERATION}

    on(broker, "txn-stale", work)
