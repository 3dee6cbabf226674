"""What sinks order is carried out: tried again as long as that helps, told when it is done, left when nobody leads."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runnel.broker import sinks_errands
from runnel.broker.sinks_errands import Errands
from runnel.model.errors import (
    ConcurrentTransactions,
    InvalidTransactionTimeout,
    NotCoordinator,
    ProducerFenced,
    RunnelError,
    StorageFailed,
)
from runnel.model.sinks import Finish, Finished, Handle, Hold, Opened, OpenSlot
from runnel.shell.rng import SystemRng
from runnel.transactions.sink_values import FinishSlot, HoldSlot, SlotHeld, SlotOpened
from runnel.transactions.sink_values import OpenSlot as OrderOpen

HANDLE = Handle("sink/s/0", 7, 3)


class Leads:
    """As much of a shard as errands see."""

    def __init__(self) -> None:
        self.closed = self.lost = False
        self.told: list[tuple[str, Any]] = []

    def tell(self, verb: str, news: Any) -> None:
        self.told.append((verb, news))


class Coordinators:
    """Says what was put in, in this order, and the last of it again and again."""

    def __init__(self, *says: Any) -> None:
        self.says = list(says)
        self.asked: list[Any] = []

    def _next(self, asked: Any) -> Any:
        self.asked.append(asked)
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, RunnelError):
            raise said
        return said

    async def open(self, request: OpenSlot) -> Opened:
        opened: Opened = self._next(request)
        return opened

    async def hold(self, request: Hold) -> None:
        self._next(request)

    async def finish(self, request: Finish) -> Finished:
        finished: Finished = self._next(request)
        return finished


def carried_out(order: Any, *says: Any) -> tuple[list[tuple[str, Any]], Coordinators]:
    """What is told of an order, when something is."""
    coordinators = Coordinators(*says)

    async def work(errands: Errands, shard: Leads) -> None:
        errands.carry_out(shard, order)  # type: ignore[arg-type]
        while not shard.told:
            await asyncio.sleep(0.001)

    return with_errands(coordinators, work), coordinators


def with_errands(
    coordinators: Coordinators, work: Callable[[Errands, Leads], Coroutine[Any, Any, None]]
) -> list[tuple[str, Any]]:
    shard = Leads()

    async def main() -> None:
        errands = Errands(coordinators, SystemRng())  # type: ignore[arg-type]
        await asyncio.wait_for(work(errands, shard), 30)
        errands.close()

    asyncio.run(main())
    return shard.told


def test_a_transaction_is_opened_once_the_one_before_has_ended() -> None:
    order = OrderOpen("s", 0, 500)
    told, coordinators = carried_out(
        order, ConcurrentTransactions("it ends"), NotCoordinator("moved"), Opened(HANDLE, 500)
    )
    assert told == [("opened", SlotOpened(order, HANDLE, 500))]
    assert coordinators.asked == [OpenSlot("sink/s/0", 500)] * 3


def test_opening_is_given_up_after_a_while_and_at_once_if_it_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_errands, "PATIENCE_S", 0.02)
    moved, wrong = NotCoordinator("moved"), InvalidTransactionTimeout("too long")
    order = OrderOpen("s", 0, 500)
    told, coordinators = carried_out(order, moved)
    assert told == [("opened", SlotOpened(order, moved))]
    assert len(coordinators.asked) > 1
    told, coordinators = carried_out(order, wrong)
    assert told == [("opened", SlotOpened(order, wrong))]
    assert len(coordinators.asked) == 1


def test_what_is_refused_to_be_held_is_told_and_what_passes_is_tried_again() -> None:
    order = HoldSlot("s", 0, HANDLE)
    assert carried_out(order, NotCoordinator("moved"), None)[0] == [("held", SlotHeld(order))]
    fenced = ProducerFenced("another has it")
    assert carried_out(order, NotCoordinator("moved"), fenced)[0] == [("held", SlotHeld(order, fenced))]


def test_an_end_is_told_when_every_partition_knows_whatever_was_said_before() -> None:
    order = FinishSlot("s", 0, HANDLE, True, True)
    says = (StorageFailed("no room"), Finished(False, True), ProducerFenced("?"), Finished(True, True))
    told, coordinators = carried_out(order, *says)
    assert told == [("finished", order)]
    assert coordinators.asked == [Finish("s", HANDLE, True, True)] * 4


@pytest.mark.parametrize("over", ["closed", "lost"])
def test_who_does_not_lead_any_more_asks_nobody(over: str) -> None:
    coordinators = Coordinators(NotCoordinator("moved"))

    async def work(errands: Errands, shard: Leads) -> None:
        for order in (OrderOpen("s", 0, 500), HoldSlot("s", 0, HANDLE), FinishSlot("s", 0, HANDLE, True, True)):
            errands.carry_out(shard, order)  # type: ignore[arg-type]
        while len(coordinators.asked) < 6:
            await asyncio.sleep(0.001)
        setattr(shard, over, True)
        while errands._tasks:
            await asyncio.sleep(0.001)

    assert with_errands(coordinators, work) == []


def test_a_batch_that_was_torn_by_force_is_told_loudly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "runnel.sinks")
    carried_out(FinishSlot("s", 0, HANDLE, False, True), Finished(True, False))
    carried_out(FinishSlot("s", 0, HANDLE, True, True), Finished(True, True))
    assert not caplog.records
    carried_out(FinishSlot("s", 0, HANDLE, True, True), Finished(True, False))
    [record] = caplog.records
    assert (record.levelname, "by force" in record.message) == ("ERROR", True)


def test_who_has_to_wait_long_for_a_coordinator_complains_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks_errands, "PAUSE_MS_MAX", 1)
    caplog.set_level(logging.WARNING, "runnel.sinks")
    moved = NotCoordinator("moved")
    carried_out(HoldSlot("s", 0, HANDLE), *[moved] * (2 * sinks_errands.LOUD_AFTER), None)
    assert [record.message.partition(", tried")[0] for record in caplog.records] == ["'sink/s/0' is not held yet"] * 2
