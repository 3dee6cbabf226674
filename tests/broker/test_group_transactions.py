"""Offsets in transactions: who lets them in, and what an end that comes meanwhile does."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from runnel.broker.groups import Groups
from runnel.broker.internal import GROUPS, TRANSACTIONS
from runnel.broker.partitions import Partitions
from runnel.cluster.image import Broker, Change, Image, Partition, Topic, diff
from runnel.groups.values import CommitInTransaction, FetchOffsets, GroupConfig, OffsetToCommit
from runnel.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotCoordinator,
    NotLeader,
    ProducerFenced,
    RequestTimedOut,
    RunnelError,
    TransactionAbortable,
    TransactionCoordinatorFenced,
)
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.shell.clock import SystemClock
from runnel.testing.clock import SeededRng
from runnel.testing.gated_disk import GatedDisk

from .test_groups import confirmed

ME, OTHER = BrokerId(1), BrokerId(2)
COORDINATOR_EPOCH = 6
HERE = Partition(ME, Epoch(0), Epoch(0), (ME,), (ME,))
ELSEWHERE = Partition(OTHER, Epoch(COORDINATOR_EPOCH), Epoch(0), (OTHER,), (OTHER,))
TOPICS = {
    TopicId(UUID(int=number)): (name, partition)
    for number, (name, partition) in enumerate([(GROUPS, HERE), (TRANSACTIONS, ELSEWHERE), ("t", ELSEWHERE)], 1)
}
IMAGE = Image(
    "c", brokers={ME: Broker(ME, {}), OTHER: Broker(OTHER, {})},
    topics={topic_id: Topic(topic_id, name, (place,)) for topic_id, (name, place) in TOPICS.items()},
    names={name: topic_id for topic_id, (name, _) in TOPICS.items()},
)  # fmt: skip
KEY = PartitionKey(IMAGE.names["t"], 0)


class Gate:
    """Lets in whom it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.verdict: RunnelError | None = None
        self.asked: list[tuple[str, int, int, tuple[str, int], bool]] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def admit(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]], *,
        add: bool, timeout_ms: int, coordinator_epoch: int = -1,
    ) -> Mapping[tuple[str, int], RunnelError | None]:  # fmt: skip
        [place] = partitions
        self.asked.append((transactional_id, producer_id, epoch, place, add))
        if self.meanwhile is not None:
            await self.meanwhile()
        return {place: self.verdict}


class Rig:
    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self.gate = Gate()
        self.groups: Groups

    async def open(self) -> None:
        self.groups = Groups(self.partitions, GroupConfig(), SystemClock(), SeededRng(1), self.gate, confirm=confirmed)
        self.groups.start(IMAGE)
        await self.loaded()

    async def loaded(self) -> None:
        while not all(shard.loaded for shard in self.groups.shards):
            await asyncio.sleep(0.001)

    async def lead_again(self, coordinator_epoch: int = COORDINATOR_EPOCH) -> None:
        """In a new epoch; that of the transaction's coordinator may be new, too."""
        moved = {
            GROUPS: replace(HERE, leader_epoch=Epoch(1)),
            TRANSACTIONS: replace(ELSEWHERE, leader_epoch=Epoch(coordinator_epoch)),
        }
        topics = {IMAGE.names[name]: Topic(IMAGE.names[name], name, (place,)) for name, place in moved.items()}
        after = dataclasses.replace(IMAGE, version=IMAGE.version + 1, topics={**IMAGE.topics, **topics})
        change = Change(IMAGE, after, diff(IMAGE, after))
        await self.partitions.follow(change)
        self.groups.follow(change)
        await self.loaded()

    async def commit(self, offset: int, *, epoch: int = 0, adds: bool = False) -> None:
        request = CommitInTransaction(
            "g", "", -1, (OffsetToCommit(KEY, Offset(offset)),), producer_id=7, producer_epoch=epoch
        )
        committed = await self.groups.txn_commit(request, "tx", adds=adds)
        assert committed.errors == (None,)

    async def end(self, epoch: int = 0, *, commit: bool = True, coordinator: int = 6, version: int = 1) -> None:
        await self.groups.end_transaction(0, 7, epoch, commit, coordinator_epoch=coordinator, version=version)

    async def offset(self) -> int | str:
        [found] = (await self.groups.fetch_offsets(FetchOffsets("g", (KEY,), require_stable=True))).offsets
        return type(found.error).__name__ if found.error else found.offset


def run(folder: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = GatedDisk(str(folder))
        partitions = Partitions(ME, TopicConfig(), disk=disk, files_max=10, clock=SystemClock(), on_fatal=_fail)
        rig = Rig(partitions)
        try:
            await partitions.start(IMAGE)
            await rig.open()
            await asyncio.wait_for(scenario(rig), 60)
            rig.groups.close()
            await partitions.close()
        finally:
            disk.close()

    asyncio.run(main())


def _fail(error: BaseException) -> None:
    raise AssertionError(error)


def test_offsets_are_held_until_the_end_also_by_the_next_leader(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(5)
        assert await rig.offset() == "UnstableOffsetCommit"
        rig.groups.close()
        await rig.open()
        assert await rig.offset() == "UnstableOffsetCommit"
        await rig.end()
        await rig.end()  # the answer got lost
        rig.groups.close()
        await rig.open()
        assert await rig.offset() == 5

    run(tmp_path, scenario)


@pytest.mark.parametrize("adds", [False, True])
def test_the_coordinator_of_the_transaction_is_asked_about_the_groups_partition(tmp_path: Path, adds: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(5, epoch=3, adds=adds)
        assert rig.gate.asked == [("tx", 7, 3, (GROUPS, 0), adds)]

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (InvalidTransactionState("x"), InvalidTransactionState),
        (TransactionAbortable("x"), TransactionAbortable),
        (ProducerFenced("x"), InvalidProducerEpoch),
        (ConcurrentTransactions("x"), ConcurrentTransactions),
        (NotCoordinator("x"), CoordinatorLoading),
        (RequestTimedOut("x"), CoordinatorLoading),
    ],
)
def test_what_the_coordinator_refuses_is_not_held(
    tmp_path: Path, verdict: RunnelError, told: type[RunnelError]
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.verdict = verdict
        with pytest.raises(told):
            await rig.commit(5)
        assert await rig.offset() == -1

    run(tmp_path, scenario)


def test_a_broker_without_coordinators_holds_nothing(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        groups = Groups(rig.partitions, GroupConfig(), SystemClock(), SeededRng(1), confirm=confirmed)
        rig.groups.close()
        rig.groups = groups
        groups.start(IMAGE)
        await rig.loaded()
        with pytest.raises(InvalidTransactionState):
            await rig.commit(5)

    run(tmp_path, scenario)


def test_an_end_that_comes_while_the_coordinator_is_asked_voids_its_answer(tmp_path: Path) -> None:
    """The offsets would be pending for ever, or join the producer's next transaction."""

    async def scenario(rig: Rig) -> None:
        rig.gate.meanwhile = rig.end
        with pytest.raises(ConcurrentTransactions):
            await rig.commit(5)
        assert await rig.offset() == -1
        rig.gate.meanwhile = lambda: rig.groups.end_transaction(0, 8, 0, True, coordinator_epoch=0)  # another producer
        await rig.commit(6)
        await rig.end()
        assert await rig.offset() == 6

    run(tmp_path, scenario)


def test_a_producer_may_go_on_while_its_last_transaction_is_ended(tmp_path: Path) -> None:
    """KIP-890: the next transaction has another epoch; the coordinator lets it in when the last one has ended."""

    async def scenario(rig: Rig) -> None:
        rig.gate.meanwhile = lambda: rig.end(epoch=4, version=2)
        await rig.commit(5, epoch=4, adds=True)
        assert await rig.offset() == "UnstableOffsetCommit"
        rig.gate.meanwhile = lambda: rig.end(epoch=5, version=2)
        with pytest.raises(ConcurrentTransactions):
            await rig.commit(6, epoch=4, adds=True)
        assert await rig.offset() == 5

    run(tmp_path, scenario)


def test_a_new_role_voids_the_answer_too(tmp_path: Path) -> None:
    """Another leader may have ended the transaction in between."""

    async def scenario(rig: Rig) -> None:
        rig.gate.meanwhile = rig.lead_again
        with pytest.raises(NotCoordinator):
            await rig.commit(5)
        assert await rig.offset() == -1

    run(tmp_path, scenario)


def test_an_end_is_refused_as_by_a_leader_that_is_not_one(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(NotLeader):
            await rig.groups.end_transaction(1, 7, 0, True, coordinator_epoch=0)
        rig.groups.close()
        with pytest.raises(NotLeader):
            await rig.end()

    run(tmp_path, scenario)


def test_a_coordinator_older_than_the_one_known_here_ends_nothing(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(5)
        with pytest.raises(TransactionCoordinatorFenced):
            await rig.end(coordinator=COORDINATOR_EPOCH - 1)
        assert await rig.offset() == "UnstableOffsetCommit"

    run(tmp_path, scenario)


def test_a_coordinator_that_a_newer_one_has_followed_is_not_asked(tmp_path: Path) -> None:
    """It might not know yet that the transaction has ended: the offsets would be pending for ever."""

    async def scenario(rig: Rig) -> None:
        await rig.end(coordinator=COORDINATOR_EPOCH + 1)
        with pytest.raises(CoordinatorLoading):
            await rig.commit(5)
        assert not rig.gate.asked
        await rig.lead_again(coordinator_epoch=COORDINATOR_EPOCH + 1)
        await rig.commit(5)

    run(tmp_path, scenario)


def test_an_end_of_version_2_that_comes_again_spares_the_next_transaction(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(5, epoch=3, adds=True)
        await rig.end(epoch=4, version=2)
        await rig.commit(6, epoch=4, adds=True)
        await rig.end(epoch=4, version=2)
        assert await rig.offset() == "UnstableOffsetCommit"
        await rig.end(epoch=5, version=2, commit=False)
        assert await rig.offset() == 5

    run(tmp_path, scenario)
