"""Transactions on real logs: decisions before markers, coordinators that change in between, what is said about it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from runnel.broker import markers
from runnel.broker.endings import Endings
from runnel.broker.internal import GROUPS, TRANSACTIONS
from runnel.broker.markers import Markers, MarkerSender, Written
from runnel.broker.partitions import Partitions
from runnel.broker.peers import Peers
from runnel.broker.transactions import Transactions, unknown_states
from runnel.cluster.image import Broker, Change, Endpoint, Image, Partition, Topic, diff
from runnel.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidRegularExpression,
    InvalidTopicName,
    NotCoordinator,
    NotLeader,
    RequestTimedOut,
    RunnelError,
    StorageFailed,
)
from runnel.model.ids import BrokerId, Epoch, ProducerId, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.record import records
from runnel.record.batch import headers
from runnel.shell.clock import SystemClock
from runnel.testing.clock import SeededRng
from runnel.testing.gated_disk import GatedDisk
from runnel.transactions.records import decode
from runnel.transactions.values import (
    NOBODY,
    AddPartitions,
    EndTransaction,
    Identity,
    InitProducer,
    ListTransactions,
    State,
    TransactionConfig,
)

ME = BrokerId(1)
IDS = {name: TopicId(UUID(int=number)) for number, name in enumerate((TRANSACTIONS, GROUPS, "t"), 1)}
PLACED = Partition(ME, Epoch(0), Epoch(0), (ME,), (ME,))
LED_AGAIN = replace(PLACED, leader_epoch=Epoch(1), epoch=Epoch(1))
T0 = ("t", 0)


def image_of(keeper: Partition = PLACED, version: int = 0) -> Image:
    topics = {
        IDS[TRANSACTIONS]: Topic(IDS[TRANSACTIONS], TRANSACTIONS, (keeper,), {"cleanup.policy": "compact"}, version),
        IDS[GROUPS]: Topic(IDS[GROUPS], GROUPS, (PLACED,)),
        IDS["t"]: Topic(IDS["t"], "t", (PLACED, PLACED)),
    }
    names = {topic.name: topic.id for topic in topics.values()}
    brokers = {ME: Broker(ME, {"kafka": Endpoint("127.0.0.1", 1)})}
    return Image("c", version, brokers=brokers, topics=topics, names=names)


class Groups:
    """Those who keep offsets, and hear how transactions ended."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, bool]] = []

    async def end_transaction(
        self, number: int, producer_id: int, epoch: int, commit: bool, *, coordinator_epoch: int, version: int = 1
    ) -> None:
        self.heard.append((number, producer_id, commit))


class Rig:
    """A broker's partitions and its coordinator of transactions, without the rest of the broker."""

    def __init__(self, disk: GatedDisk) -> None:
        self.disk = disk
        self.image = image_of()
        self.partitions = Partitions(
            ME, TopicConfig(), disk=disk, files_max=20, clock=SystemClock(), on_fatal=self._fail
        )
        self.groups = Groups()
        self.told: list[Markers] = []
        self.refusals: list[RunnelError] = []
        self.answers_lost = 0
        self._endings = Endings(self.partitions, self.groups)
        self._ids = count(100)
        self.ids_given = 0
        self.transactions = self._made()

    def _made(self) -> Transactions:
        sender = MarkerSender(ME, Peers(ME), self._write, lambda: self.image, SeededRng(1))
        return Transactions(
            self.partitions, TransactionConfig(), sender, SystemClock(),
            make_topic=self._nothing, new_producer_id=self._new_id, place_of_group=self._place,
        )  # fmt: skip

    async def _write(self, some: Markers) -> Written:
        self.told.append(some)
        if self.refusals:
            error = self.refusals.pop(0)
            return {(ending.producer_id, *place): error for ending, places in some for place in places}
        written = await self._endings.write(some)
        if self.answers_lost:
            self.answers_lost -= 1
            raise RequestTimedOut("no answer came")
        return written

    async def _nothing(self, key: str) -> None: ...

    async def _new_id(self) -> ProducerId:
        self.ids_given += 1
        return ProducerId(next(self._ids))

    async def _place(self, group_id: str) -> tuple[str, int]:
        return (GROUPS, 0)

    def _fail(self, error: BaseException) -> None:
        raise AssertionError(error)

    async def follow(self, image: Image) -> None:
        change = Change(self.image, image, diff(self.image, image))
        await self.partitions.follow(change)
        self.image = image
        self.transactions.follow(change)

    # --- verbs

    async def persist(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Ask as clients do: again, as long as that can help."""
        while True:
            try:
                return await ask()
            except (ConcurrentTransactions, CoordinatorLoading, NotCoordinator):
                await asyncio.sleep(0.002)

    async def init(self, producer: Identity | None = None, timeout_ms: int = 60_000) -> Identity:
        asked = InitProducer("tx", timeout_ms, producer or NOBODY)
        found: Identity = await self.persist(lambda: self.transactions.init_producer(asked))
        return found

    async def begun(self, **options: Any) -> Identity:
        """A producer that writes to t/0."""
        producer = await self.init(**options)
        await self.transactions.add_partitions(AddPartitions("tx", producer, (T0,)))
        return producer

    async def end(self, producer: Identity, *, commit: bool = True, bumps: bool = True) -> Identity:
        return await self.transactions.end(EndTransaction("tx", producer, commit, bumps))

    async def state(self) -> State:
        found = await self.persist(lambda: self.transactions.describe("tx"))
        return State(found.state)

    async def until(self, state: State) -> None:
        while await self.state() is not state:
            await asyncio.sleep(0.002)


def run(folder: Path, scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        disk = GatedDisk(str(folder))
        rig = Rig(disk)
        try:
            await rig.partitions.start(rig.image)
            rig.transactions.start(rig.image)
            await asyncio.wait_for(scenario(rig), 30)
            disk.gate.set()
            rig.transactions.close()
            await rig.partitions.close()
        finally:
            disk.close()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "PAUSE_MS", 1)


async def a_few_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_no_partition_hears_of_a_decision_before_the_disk_has_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        producer = await rig.begun()
        rig.disk.gate.clear()
        ended = asyncio.ensure_future(rig.end(producer))
        await a_few_turns()
        assert (rig.told, ended.done()) == ([], False)
        rig.disk.gate.set()
        assert await ended == Identity(producer.producer_id, 1)
        await rig.until(State.COMPLETE_COMMIT)
        [[(ending, places)]] = rig.told
        assert (ending.epoch, ending.commit, list(places)) == (1, True, [T0])

    run(tmp_path, scenario)


def test_the_next_coordinator_goes_on_with_what_was_decided(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        producer = await rig.begun()
        rig.refusals = [NotLeader("not now")] * 1_000_000
        await rig.end(producer, commit=False)
        while len(rig.told) < 3:
            await asyncio.sleep(0.002)
        await rig.follow(image_of(LED_AGAIN, 1))
        rig.told.clear()
        assert await rig.state() is State.PREPARE_ABORT
        rig.refusals.clear()
        await rig.until(State.COMPLETE_ABORT)
        assert {ending.coordinator_epoch for [(ending, _)] in rig.told} == {1}
        assert await rig.init(producer) == Identity(producer.producer_id, 1)

    run(tmp_path, scenario)


def test_the_next_coordinator_aborts_what_takes_too_long(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.begun(timeout_ms=200)
        await rig.follow(image_of(LED_AGAIN, 1))
        await rig.until(State.COMPLETE_ABORT)

    run(tmp_path, scenario)


def test_a_partition_that_can_not_be_told_now_is_told_later(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        producer = await rig.begun()
        rig.refusals = [NotLeader("not now"), StorageFailed("nor now")]
        await rig.end(producer)
        await rig.until(State.COMPLETE_COMMIT)
        assert len(rig.told) == 3

    run(tmp_path, scenario)


@pytest.mark.parametrize("bumps", [True, False])
def test_a_marker_whose_answer_was_lost_is_sent_again_and_written_once(tmp_path: Path, bumps: bool) -> None:
    """KAFKA-19999: the second one was refused, and the coordinator went on for ever."""

    async def scenario(rig: Rig) -> None:
        producer = await rig.begun()
        rig.answers_lost = 2
        await rig.end(producer, bumps=bumps)
        await rig.until(State.COMPLETE_COMMIT)
        assert len(rig.told) == 3
        assert rig.partitions.find("t", 0).log.end_offset == 1

    run(tmp_path, scenario)


def test_a_decision_that_could_not_be_kept_was_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        producer = await rig.begun()
        keeper = rig.partitions.find(TRANSACTIONS, 0)
        append = keeper.append

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise StorageFailed("the disk is full")

        monkeypatch.setattr(keeper, "append", refuse)
        with pytest.raises(NotCoordinator):
            await rig.end(producer)
        monkeypatch.setattr(keeper, "append", append)
        assert await rig.state() is State.ONGOING
        assert rig.told == []

    run(tmp_path, scenario)


def test_groups_hear_how_a_transaction_with_their_offsets_ended(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        producer = await rig.init()
        await rig.transactions.add_offsets("tx", producer, "g")
        await rig.end(producer, bumps=False)
        await rig.until(State.COMPLETE_COMMIT)
        assert rig.groups.heard == [(0, producer.producer_id, True)]

    run(tmp_path, scenario)


def test_nobody_adds_the_topic_that_transactions_are_kept_in(tmp_path: Path) -> None:
    """No leader would take a marker for it, so the transaction would never be complete."""

    async def scenario(rig: Rig) -> None:
        producer = await rig.init()
        with pytest.raises(InvalidTopicName):
            await rig.transactions.add_partitions(AddPartitions("tx", producer, (T0, (TRANSACTIONS, 0))))
        assert await rig.state() is State.EMPTY

    run(tmp_path, scenario)


def test_producer_ids_are_taken_only_when_they_are_needed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for epoch in range(5):
            assert (await rig.init()).epoch == epoch
        assert rig.ids_given == 1

    run(tmp_path, scenario)


def test_the_log_tells_a_transaction_that_took_too_long_from_one_that_was_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runnel.transactions")

    async def scenario(rig: Rig) -> None:
        await rig.begun(timeout_ms=50)
        await rig.until(State.COMPLETE_ABORT)
        assert "'tx' took too long" in caplog.text
        assert "took over" not in caplog.text
        caplog.clear()
        await rig.begun()
        await rig.init()
        assert "a new producer took over 'tx'" in caplog.text
        assert "too long" not in caplog.text

    run(tmp_path, scenario)


def test_ids_are_listed_by_a_pattern_that_matches_all_of_their_name(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.init()
        await rig.transactions.init_producer(InitProducer("other: 1 -> 2", 1_000))
        names = [each.transactional_id for each in await rig.transactions.list(ListTransactions())]
        assert sorted(names) == ["other: 1 -> 2", "tx"]

        async def found(pattern: str) -> list[str]:
            return [each.transactional_id for each in await rig.transactions.list(ListTransactions(), pattern)]

        assert await found("t.*") == ["tx"]
        assert await found("x") == []
        assert await found("other.*") == ["other: 1 -> 2"]
        with pytest.raises(InvalidRegularExpression):
            await found("[a-")

    run(tmp_path, scenario)
    assert unknown_states(["Empty", "Nonsense", "PrepareEpochFence"]) == ["Nonsense", "PrepareEpochFence"]


def test_what_is_kept_is_read_as_it_was_written(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        producer = await rig.begun()
        await rig.end(producer)
        await rig.until(State.COMPLETE_COMMIT)
        keeper = rig.partitions.find(TRANSACTIONS, 0)
        data = memoryview(await keeper.read(keeper.log.start_offset, 10**6))
        states = []
        for position, header in headers(data):
            for record in records.decode(data[position : position + header.size]):
                assert record.key is not None
                found = decode(record.key, record.value)
                assert found is not None
                assert found[1] is not None
                states.append(found[1].state)
        assert states == [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT]

    run(tmp_path, scenario)
