"""What sinks order: transactions are opened, held and ended at their coordinators, and the sink is told.

Rule 1: an order is carried out as long as its shard leads; whoever leads next orders again what was not done.
Rule 2: to open is given up after a while, as somebody waits for it. To hold and to end is tried for ever, with pauses
        that grow: nothing else frees what waits for it. What a coordinator refuses to hold is told at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from runnel.broker.shard import Shard
from runnel.broker.sinks_coordinators import Coordinators
from runnel.model import sinks as m
from runnel.model.errors import RetriableError, RunnelError, as_value
from runnel.model.seams import Rng
from runnel.transactions.sink_records import transactional_id
from runnel.transactions.sink_values import FinishSlot, HoldSlot, OpenSlot, SlotHeld, SlotOpened

PATIENCE_S: Final = 10.0  # for a transaction to write in; who waits for it asks again
PAUSE_MS, PAUSE_MS_MAX = 2, 2_000
AT_ONCE_MAX: Final = 128  # questions to coordinators that are under way
LOUD_AFTER: Final = 10  # tries: about four seconds

logger = logging.getLogger("runnel.sinks")
T = TypeVar("T")


class Errands:
    """Carries out what the sinks of this broker's shards order."""

    def __init__(self, coordinators: Coordinators, rng: Rng) -> None:
        self._coordinators = coordinators
        self._rng = rng
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def carry_out(self, shard: Shard[Any], order: object) -> None:
        match order:
            case OpenSlot():
                self._spawn(self._open(shard, order))
            case HoldSlot():
                self._spawn(self._hold(shard, order))
            case FinishSlot():
                self._spawn(self._finish(shard, order))
            case _:
                raise AssertionError(f"sinks do not order {order!r}")

    def _spawn(self, errand: Any) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("an errand of a sink failed", exc_info=error)

    async def _open(self, shard: Shard[Any], order: OpenSlot) -> None:
        asked = m.OpenSlot(transactional_id(order.sink, order.slot), order.timeout_ms)
        end = asyncio.get_running_loop().time() + PATIENCE_S
        pause_ms = PAUSE_MS
        while _leads(shard):
            try:
                opened = await self._ask(lambda: self._coordinators.open(asked))
                shard.tell("opened", SlotOpened(order, opened.handle, opened.timeout_ms))
                return
            except RunnelError as error:
                if not isinstance(error, RetriableError) or asyncio.get_running_loop().time() >= end:
                    shard.tell("opened", SlotOpened(order, as_value(error)))
                    return
            pause_ms = await self._pause(pause_ms)

    async def _hold(self, shard: Shard[Any], order: HoldSlot) -> None:
        pause_ms, tries = PAUSE_MS, 0
        while _leads(shard):
            try:
                await self._ask(lambda: self._coordinators.hold(m.Hold(order.sink, order.handle)))
                shard.tell("held", SlotHeld(order))
                return
            except RetriableError as error:
                tries += 1
                _complain(order, tries, error)
            except RunnelError as error:
                shard.tell("held", SlotHeld(order, as_value(error)))
                return
            pause_ms = await self._pause(pause_ms)

    async def _finish(self, shard: Shard[Any], order: FinishSlot) -> None:
        asked = m.Finish(order.sink, order.handle, order.commit, order.held)
        pause_ms, tries = PAUSE_MS, 0
        while _leads(shard):
            try:
                done = await self._ask(lambda: self._coordinators.finish(asked))
                if done.complete:
                    _check_outcome(order, done)
                    shard.tell("finished", order)
                    return
            except RunnelError as error:
                tries += 1
                _complain(order, tries, error)
            pause_ms = await self._pause(pause_ms)

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        async with self._room:
            return await question()

    async def _pause(self, pause_ms: int) -> int:
        await asyncio.sleep((pause_ms + self._rng.below(pause_ms)) / 1000)
        return min(2 * pause_ms, PAUSE_MS_MAX)


def _leads(shard: Shard[Any]) -> bool:
    return not shard.closed and not shard.lost


def _complain(order: HoldSlot | FinishSlot, tries: int, error: RunnelError) -> None:
    level = logging.WARNING if tries % LOUD_AFTER == 0 else logging.DEBUG
    what = "held" if isinstance(order, HoldSlot) else "committed" if order.commit else "aborted"
    logger.log(level, "%r is not %s yet, tried %d times: %s", order.handle.transactional_id, what, tries, error)


def _check_outcome(order: FinishSlot, done: m.Finished) -> None:
    """Somebody who aborts by force what a sink holds tears a batch; nothing else can."""
    if order.commit and not done.committed:
        logger.error(
            "%r (producer %d, epoch %d) was to be committed for sink %r, and its coordinator does not know that it was:"
            " was it aborted by force? Look for what its batch lacks",
            order.handle.transactional_id, order.handle.producer_id, order.handle.epoch, order.sink,
        )  # fmt: skip
