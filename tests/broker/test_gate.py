"""Leaders ask coordinators of transactions, here and elsewhere: whom, how often, and how many questions at once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast
from uuid import UUID

import pytest

from runnel.broker import gate as module
from runnel.broker.gate import Errors, Gate
from runnel.broker.internal import TRANSACTIONS
from runnel.broker.partitions import Partitions
from runnel.broker.peers import Peers
from runnel.broker.shards import Shards
from runnel.broker.transactions import Transactions
from runnel.client.errors import BrokerUnreachable
from runnel.cluster.image import NO_LEADER, Broker, Endpoint, Image, Partition, Topic
from runnel.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
    ProducerFenced,
    RequestTimedOut,
    RunnelError,
    TransactionAbortable,
)
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.testing.clock import SeededRng
from runnel.transactions.values import AddPartitions, PartitionsAdded
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

ME, OTHER = BrokerId(1), BrokerId(2)
T0, T1 = ("t", 0), ("t", 1)
TOPIC = TopicId(UUID(int=1))
Response = m.AddPartitionsToTxnResponse


def image_of(leader: BrokerId, epoch: int = 5) -> Image:
    topic = Topic(TOPIC, TRANSACTIONS, (Partition(leader, Epoch(epoch), Epoch(0), (ME, OTHER), (ME, OTHER)),))
    brokers = {each: Broker(each, {"kafka": Endpoint("127.0.0.1", each)}) for each in (ME, OTHER)}
    return Image("c", topics={TOPIC: topic}, names={TRANSACTIONS: TOPIC}, brokers=brokers)


class Here:
    """The coordinator on this broker: who leads what, and what it answers."""

    def __init__(self) -> None:
        self.shards: Shards[Any] = Shards(TRANSACTIONS, cast(Partitions, None), lambda *_: pytest.fail("opened"))
        self.answers: list[RunnelError | None] = []
        self.asked: list[AddPartitions] = []

    def see(self, image: Image) -> None:
        self.shards._image = image

    async def add_partitions(self, asked: AddPartitions) -> PartitionsAdded:
        self.asked.append(asked)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, NotCoordinator | CoordinatorLoading | ConcurrentTransactions | ProducerFenced):
            raise answer
        return PartitionsAdded(dict.fromkeys(asked.partitions, answer))


class Elsewhere(Peers):
    """The coordinator on the other broker; it can be slow."""

    def __init__(self) -> None:
        super().__init__(ME)
        self.asked: list[m.AddPartitionsToTxnRequest] = []
        self.refusals: list[RunnelError] = []
        self.codes: dict[tuple[str, int], int] = {}
        self.leaves_out = False
        self.open = asyncio.Event()
        self.open.set()

    async def ask(self, broker: BrokerId, api: Api, request: Any, reply: type[Any], **_: Any) -> Any:
        assert (broker, api) == (OTHER, Api.ADD_PARTITIONS_TO_TXN)
        self.asked.append(request)
        await self.open.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        transactions = [] if self.leaves_out else request.transactions
        return Response(results_by_transaction=[self._result(each) for each in transactions])

    def _result(self, transaction: Any) -> Any:
        return Response.AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=[
                Response.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        Response.AddPartitionsToTxnPartitionResult(
                            partition_index=number, partition_error_code=self.codes.get((topic.name, number), 0)
                        )
                        for number in topic.partitions
                    ],
                )
                for topic in transaction.topics
            ],
        )


class Rig:
    def __init__(self, leader: BrokerId) -> None:
        self.here = Here()
        self.here.see(image_of(leader))
        self.elsewhere = Elsewhere()
        self.gate = Gate(ME, cast(Transactions, self.here), self.elsewhere, SeededRng(1))

    async def admit(self, name: str = "tx", *, add: bool = True, timeout_ms: int = 60_000, known: int = -1) -> Errors:
        return await self.gate.admit(name, 5, 3, [T0, T1], add=add, timeout_ms=timeout_ms, coordinator_epoch=known)


def run(leader: BrokerId, scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(Rig(leader)), 30)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_MS", 1)


@pytest.mark.parametrize("add", [True, False])
def test_the_coordinator_here_is_asked_without_a_detour(add: bool) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.admit(add=add) == {T0: None, T1: None}
        [asked] = rig.here.asked
        assert (asked.transactional_id, asked.producer, asked.verify_only) == ("tx", (5, 3), not add)
        assert rig.elsewhere.asked == []

    run(ME, scenario)


@pytest.mark.parametrize("add", [True, False])
def test_the_coordinator_elsewhere_is_asked_and_each_partition_gets_its_answer(add: bool) -> None:
    async def scenario(rig: Rig) -> None:
        rig.elsewhere.codes = {T1: ErrorCode.TRANSACTION_ABORTABLE}
        errors = await rig.admit(add=add)
        assert errors[T0] is None
        assert isinstance(errors[T1], TransactionAbortable)
        [asked] = rig.elsewhere.asked
        [one] = asked.transactions
        assert (one.producer_id, one.producer_epoch, one.verify_only) == (5, 3, not add)

    run(OTHER, scenario)


def test_questions_that_come_while_one_is_under_way_go_together_and_each_id_once() -> None:
    async def scenario(rig: Rig) -> None:
        rig.elsewhere.open.clear()
        first = asyncio.ensure_future(rig.admit("first"))
        while not rig.elsewhere.asked:
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(rig.admit(name)) for name in ("a", "b", "b", "c")]
        await asyncio.sleep(0.01)
        rig.elsewhere.open.set()
        for answer in await asyncio.gather(first, *others):
            assert answer == {T0: None, T1: None}
        names = [[each.transactional_id for each in request.transactions] for request in rig.elsewhere.asked]
        assert names == [["first"], ["a", "b", "c"], ["b"]]

    run(OTHER, scenario)


@pytest.mark.parametrize("error", [NotCoordinator("x"), CoordinatorLoading("x"), ConcurrentTransactions("x")])
def test_what_passes_is_asked_again(error: RunnelError) -> None:
    async def scenario(rig: Rig) -> None:
        rig.here.answers = [error, error]
        assert await rig.admit() == {T0: None, T1: None}
        assert len(rig.here.asked) == 3

    run(ME, scenario)


def test_a_coordinator_that_can_not_be_reached_is_looked_for_again() -> None:
    async def scenario(rig: Rig) -> None:
        rig.elsewhere.refusals = [BrokerUnreachable("x")] * 1_000
        asked = asyncio.ensure_future(rig.admit())
        while not rig.elsewhere.asked:
            await asyncio.sleep(0)
        rig.here.see(image_of(NO_LEADER))
        await asyncio.sleep(0.01)
        rig.here.see(image_of(ME))
        assert await asked == {T0: None, T1: None}

    run(OTHER, scenario)


@pytest.mark.parametrize(
    ("error", "add"), [(ProducerFenced("x"), True), (ConcurrentTransactions("x"), False), (RequestTimedOut("x"), True)]
)
def test_what_does_not_pass_is_answered_at_once(error: RunnelError, add: bool) -> None:
    async def scenario(rig: Rig) -> None:
        rig.here.answers = [error]
        assert await rig.admit(add=add) == {T0: error, T1: error}
        assert len(rig.here.asked) == 1

    run(ME, scenario)


def test_patience_ends_with_the_time_of_the_request() -> None:
    async def scenario(rig: Rig) -> None:
        rig.here.answers = [ConcurrentTransactions("x")] * 1_000_000
        errors = await rig.admit(timeout_ms=20)
        assert all(isinstance(error, ConcurrentTransactions) for error in errors.values())

    run(ME, scenario)


def test_no_coordinator_is_asked_that_is_older_than_one_that_has_spoken() -> None:
    async def scenario(rig: Rig) -> None:
        errors = await rig.admit(known=6, timeout_ms=20)
        assert all(isinstance(error, CoordinatorNotAvailable) for error in errors.values())
        assert rig.here.asked == []
        rig.here.see(image_of(ME, epoch=6))
        assert await rig.admit(known=6) == {T0: None, T1: None}

    run(ME, scenario)


def test_a_partition_that_the_answer_leaves_out_is_not_admitted() -> None:
    async def scenario(rig: Rig) -> None:
        rig.elsewhere.leaves_out = True
        errors = await rig.admit()
        assert all(isinstance(error, RequestTimedOut) for error in errors.values())

    run(OTHER, scenario)


def test_whoever_asks_hears_that_the_broker_closes() -> None:
    async def scenario(rig: Rig) -> None:
        rig.elsewhere.open.clear()
        asked = [asyncio.ensure_future(rig.admit(name, timeout_ms=10)) for name in ("a", "b", "b")]
        while not rig.elsewhere.asked:
            await asyncio.sleep(0)
        rig.gate.close()
        for errors in await asyncio.gather(*asked):
            assert all(isinstance(error, NotCoordinator) for error in errors.values())

    run(OTHER, scenario)
