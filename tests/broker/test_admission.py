"""Transactions in Produce: when a coordinator is asked, what its answer is worth, and what a producer is told."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.broker.test_produce import NOW, Run, batch
from tests.replica.test_transactions import hold_up

from runnel.broker.produce import Append, Produced, Producing
from runnel.cluster.image import Partition as PartitionImage
from runnel.model import errors as e
from runnel.model.ids import BrokerId, Epoch
from runnel.replica.ending import Ending
from runnel.replica.partition import Partition
from runnel.testing.clock import ManualClock
from runnel.testing.gated_disk import GatedDisk

ID = "orders"
PRODUCER = 9
Place = tuple[str, int]


class Coordinator:
    """Answers at once, or when it is told to; remembers what it was asked."""

    def __init__(self, answers: Mapping[Place, e.RunnelError | None] | e.RunnelError | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[tuple[str, int, int, list[Place], bool]] = []
        self.known_epochs: list[int] = []
        self.open = asyncio.Event()
        self.open.set()

    async def admit(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[Place], *,
        add: bool, timeout_ms: int, coordinator_epoch: int = -1,
    ) -> Mapping[Place, e.RunnelError | None]:  # fmt: skip
        self.asked.append((transactional_id, producer_id, epoch, list(partitions), add))
        self.known_epochs.append(coordinator_epoch)
        await self.open.wait()
        if isinstance(self.answers, e.RunnelError):
            raise self.answers
        return {place: self.answers.get(place) for place in partitions}


def sent(sequence: int = 0, *, producer: int = PRODUCER, epoch: int = 0) -> memoryview:
    return batch(
        b"v", transactional=True, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )  # fmt: skip


class Client:
    """A transactional producer."""

    def __init__(self, gate: Coordinator, *, adds: bool = False) -> None:
        self.gate = gate
        self._adds = adds
        self._verb = Producing(ManualClock(wall_ms=NOW), gate)

    async def send(
        self, *appends: tuple[Partition, memoryview], acks: int = 1, let_pass: Callable[[], None] = lambda: None
    ) -> list[Produced | e.RunnelError]:
        return await self._verb.produce(
            [Append(*each) for each in appends], acks, 60_000, let_pass, ID, self._adds
        )  # fmt: skip


async def end(partition: Partition, *, epoch: int = 0, version: int = 1) -> None:
    await partition.write_marker(Ending(PRODUCER, epoch, True, 1, version), 60)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("adds", [False, True])
def test_the_coordinator_is_asked_once_for_all_partitions_and_once_for_a_transaction(run: Run, adds: bool) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        client = Client(Coordinator(), adds=adds)
        results = await client.send((one, sent(0)), (two, sent(0)), (one, sent(1)))
        assert [type(result) for result in results] == [Produced] * 3
        assert client.gate.asked == [(ID, PRODUCER, 0, [("t", 0), ("t", 1)], adds)]
        await client.send((one, sent(2)), (two, sent(1)))
        assert len(client.gate.asked) == 1  # it is open
        await end(one)
        await client.send((one, sent(3)), (two, sent(2)))
        assert client.gate.asked[1:] == [(ID, PRODUCER, 0, [("t", 0)], adds)]

    run(scenario)


def test_whoever_is_asked_has_to_be_as_new_as_the_coordinator_of_the_last_marker(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        client = Client(Coordinator())
        await client.send((one, sent(0)))
        await one.write_marker(Ending(PRODUCER, 0, True, 7), 60)
        await client.send((two, sent(0)), (one, sent(1)))
        assert client.gate.known_epochs == [-1, 7]

    run(scenario)


def test_what_is_in_no_transaction_asks_nobody(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition, gate = await open_partition(), Coordinator()
        verb = Producing(ManualClock(wall_ms=NOW), gate)
        for transactional_id in (None, ID):
            [result] = await verb.produce([Append(partition, batch(b"v"))], 1, 1000, lambda: None, transactional_id)
            assert isinstance(result, Produced)
        assert gate.asked == []

    run(scenario)


def test_no_transaction_is_begun_without_a_transactional_id(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition, gate = await open_partition(), Coordinator()
        verb = Producing(ManualClock(wall_ms=NOW), gate)
        [result] = await verb.produce([Append(partition, sent())], 1, 1000, lambda: None)
        assert isinstance(result, e.InvalidTransactionState)
        [result] = await Producing(ManualClock(wall_ms=NOW)).produce(
            [Append(partition, sent())], 1, 1000, lambda: None, ID
        )
        assert isinstance(result, e.InvalidTransactionState)  # nobody coordinates transactions here
        assert (gate.asked, partition.log.end_offset) == ([], 0)

    run(scenario)


@pytest.mark.parametrize(
    ("said", "adds", "told"),
    [
        (e.CoordinatorNotAvailable("x"), False, e.NotEnoughReplicas),
        (e.CoordinatorLoading("x"), True, e.NotEnoughReplicas),
        (e.NotCoordinator("x"), True, e.NotEnoughReplicas),
        (e.RequestTimedOut("x"), False, e.NotEnoughReplicas),
        (e.ConcurrentTransactions("x"), False, e.NotEnoughReplicas),
        (e.ConcurrentTransactions("x"), True, e.ConcurrentTransactions),
        (e.ProducerFenced("x"), True, e.InvalidProducerEpoch),
        (e.InvalidProducerEpoch("x"), False, e.InvalidProducerEpoch),
        (e.InvalidProducerMapping("x"), True, e.InvalidProducerMapping),
        (e.InvalidTransactionState("x"), False, e.InvalidTransactionState),
        (e.TransactionAbortable("x"), True, e.TransactionAbortable),
    ],
)
@pytest.mark.parametrize("raised", [False, True])
def test_a_refusal_is_told_so_that_a_client_can_use_it_and_costs_the_others_nothing(
    run: Run, said: e.RunnelError, adds: bool, told: type[e.RunnelError], raised: bool
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        client = Client(Coordinator(said if raised else {("t", 0): said}), adds=adds)
        refused, kept = await client.send((one, sent()), (two, sent()))
        assert type(refused) is told
        assert "x" in str(refused)
        assert isinstance(kept, told if raised else Produced)
        assert (one.log.end_offset, two.log.end_offset) == (0, 0 if raised else 1)

    run(scenario)


def test_the_next_request_may_not_pass_while_the_coordinator_is_asked(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        await client.send((partition, batch(b"warm")))
        client.gate.open.clear()
        passed: list[int] = []
        sending = asyncio.ensure_future(
            client.send((partition, sent()), let_pass=lambda: passed.append(partition.log.end_offset))
        )
        await turns()
        assert (len(client.gate.asked), passed, partition.log.end_offset) == (1, [], 1)
        client.gate.open.set()
        await sending
        assert passed == [2]  # it has its place in the log

    run(scenario)


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_answer_is_void_if_a_marker_came_before_the_batch(run: Run, epoch: int) -> None:
    """Without this a transaction would be open for ever: its end has passed already."""

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        client.gate.open.clear()
        sending = asyncio.ensure_future(client.send((partition, sent())))
        await turns()
        await end(partition, epoch=epoch)
        client.gate.open.set()
        [result] = await sending
        assert isinstance(result, e.InvalidTransactionState if epoch == 0 else e.InvalidProducerEpoch)
        assert partition.last_stable_offset == partition.high_watermark == 1  # nothing but the marker

    run(scenario)


def test_an_answer_is_void_if_another_leader_was_in_between(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        client.gate.open.clear()
        sending = asyncio.ensure_future(client.send((partition, sent())))
        await turns()
        me, other = BrokerId(1), BrokerId(2)
        await partition.apply(PartitionImage(other, Epoch(3), Epoch(1), (me, other), (me, other)))
        await partition.apply(PartitionImage(me, Epoch(4), Epoch(2), (me,), (me,)))
        client.gate.open.set()
        [result] = await sending
        assert isinstance(result, e.NotLeader)
        assert partition.log.end_offset == 0

    run(scenario)


def test_a_retry_after_the_end_gets_its_first_offset_and_asks_nobody(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        await client.send((partition, sent()))
        await end(partition)
        [again] = await client.send((partition, sent()))
        assert isinstance(again, Produced)
        assert (again.base_offset, partition.log.end_offset, len(client.gate.asked)) == (0, 2, 1)

    run(scenario)


def test_who_is_fenced_off_asks_nobody(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        await end(partition, epoch=3)
        assert [type(result) for result in await client.send((partition, sent()))] == [e.InvalidProducerEpoch]
        assert client.gate.asked == []

    run(scenario)


def test_a_batch_behind_one_that_is_admitted_and_waits_in_line_asks_nobody(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await Client(Coordinator()).send((partition, batch(b"warm")))
        client = Client(Coordinator())
        syncing = await hold_up(partition, disk)
        sending = [asyncio.ensure_future(client.send((partition, sent(sequence)))) for sequence in range(3)]
        await turns()
        assert partition.log.end_offset == 1
        disk.gate.set()
        results = [result for [result] in await asyncio.gather(*sending)]
        assert [result.base_offset for result in results if isinstance(result, Produced)] == [1, 2, 3]
        assert len(client.gate.asked) == 1
        await syncing

    run(scenario)


def test_what_comes_behind_a_batch_that_was_not_admitted_yet_is_refused_alike(run: Run) -> None:
    """The producer is new here: nothing else would notice the gap."""

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        gate = Coordinator({("t", 0): e.ConcurrentTransactions("wait")})
        client = Client(gate, adds=True)
        await client.send((partition, batch(b"warm")))
        assert [type(r) for r in await client.send((partition, sent(0)))] == [e.ConcurrentTransactions]
        gate.answers = {}
        assert [type(r) for r in await client.send((partition, sent(1)))] == [e.ConcurrentTransactions]
        assert [type(r) for r in await client.send((partition, sent(0)), (partition, sent(1)))] == [Produced] * 2

    run(scenario)


def test_a_request_writes_for_one_producer(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        client = Client(Coordinator())
        results = await client.send((one, sent()), (two, sent(producer=PRODUCER + 1)))
        assert [type(result) for result in results] == [e.InvalidProducerMapping] * 2
        assert client.gate.asked == []

    run(scenario)


def test_a_partition_that_is_not_led_here_answers_for_itself(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        other = BrokerId(2)
        await one.apply(PartitionImage(other, Epoch(3), Epoch(1), (other,), (other,)))
        client = Client(Coordinator())
        refused, kept = await client.send((one, sent()), (two, sent()))
        assert (type(refused), type(kept)) == (e.NotLeader, Produced)
        assert client.gate.asked == [(ID, PRODUCER, 0, [("t", 1)], False)]

    run(scenario)


def test_bad_batches_ask_nobody_or_are_refused_all_the_same(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        nobodys = batch(b"v", transactional=True)
        results = await client.send((partition, sent()[:10]), (partition, sent()[:-1]), (partition, nobodys))
        assert [type(result) for result in results] == [e.CorruptBatch, e.CorruptBatch, e.InvalidRecord]
        assert partition.log.end_offset == 0

    run(scenario)


def test_outside_of_its_open_transaction_a_producer_writes_nothing(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        client = Client(Coordinator())
        plain = batch(b"v", producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
        first, second = await client.send((partition, sent()), (partition, plain))
        assert (type(first), type(second)) == (Produced, e.InvalidTransactionState)

    run(scenario)
