"""Messages of a queue that are out with one consumer who is granted so many at a time.

Rule 1: no more are out than are granted. What is settled makes room, whoever settles it, and wherever.
Rule 2: leases are extended as long as this lives; what is out when it ends is given back at once.
Rule 3: nobody tells what others settled. While all that was granted is out, it is looked for: soon at first, then ever
        more rarely, since each look extends leases, which is written.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.client.outcome import error_of_failure
from runnel.model.calls import QUEUE_EXTEND, QUEUE_RECEIVE, QUEUE_SETTLE, Delivered, Extend, Receive, Settle, Settlement
from runnel.model.errors import LeaseLost, RetriableError, RunnelError
from runnel.model.ids import BrokerId
from runnel.model.limits import KIB

PART_BYTES: Final = 256 * KIB
LOOK_S_MIN, LOOK_S_MAX = 0.2, 2.0  # between two looks at what others settled
ANSWER_MS: Final = 15_000  # beyond the wait that was asked for


class Grants:
    """Used as a block: it ends with it."""

    def __init__(
        self, calls: Calls, me: BrokerId, queue: str, lease_ms: int, credit: int, waits: Waits, *,
        filter: str = "", consumer: str = "",
    ) -> None:  # fmt: skip
        self._calls = calls
        self._me = me
        self._queue = queue
        self._lease_ms = lease_ms
        self._waits = waits
        self._filter = filter
        self._consumer = consumer
        self.credit = credit
        self._out: dict[str, None] = {}  # receipts
        self._changed = asyncio.Event()  # what is out, or may be
        self._full_since_s: float | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._out:
            try:
                await self.settle([Settlement(receipt, "release", 0) for receipt in self._out])
            except RunnelError:
                return  # their leases end by themselves

    @property
    def out(self) -> int:
        return len(self._out)

    async def receive(self, limit: int, timeout_s: float) -> list[Delivered]:
        """The next few, as far as there is room; waits for the first, or for room, no longer than asked."""
        end_s = asyncio.get_running_loop().time() + timeout_s
        room = min(limit, await self._room(end_s))
        if room <= 0:
            return []
        wait_ms = max(0, int((end_s - asyncio.get_running_loop().time()) * 1000))
        asked = Receive(self._queue, room, PART_BYTES, wait_ms, None, self._consumer, self._filter)
        found = await self._calls.ask(self._me, QUEUE_RECEIVE, asked, timeout_ms=wait_ms + ANSWER_MS, waits=self._waits)
        self._out.update((one.receipt, None) for one in found.messages)
        return found.messages

    def grant(self, credit: int) -> None:
        """From now on so many may be out."""
        self.credit = credit
        self._changed.set()

    async def _room(self, end_s: float) -> int:
        """How many more may be out, as soon as there is room, or when it is time."""
        loop = asyncio.get_running_loop()
        while (room := self.credit - len(self._out)) <= 0 and loop.time() < end_s and not self._waits.over:
            self._changed.clear()
            self._full_since_s = self._full_since_s or loop.time()
            pause_s = min(look_after_s(loop.time() - self._full_since_s), end_s - loop.time())
            if not await self._waits.within(pause_s, self._changed.wait()):
                await self._look()
        if room > 0:
            self._full_since_s = None
        return room

    async def settle(self, settlements: list[Settlement]) -> list[RunnelError | None]:
        """What the consumer says of messages; for each, why that does not count."""
        answer = await self._calls.ask(self._me, QUEUE_SETTLE, Settle(self._queue, settlements))
        errors = [error_of_failure(failure) for failure in answer.failures]
        for one, error in zip(settlements, errors, strict=True):
            if error is None or isinstance(error, LeaseLost):
                self.forget(one.receipt)
        return errors

    def forget(self, receipt: str) -> None:
        """It is out no more, or could not be settled: its lease ends by itself."""
        self._out.pop(receipt, None)
        self._changed.set()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            await self._look()

    async def _look(self) -> None:
        """Extend what is out; what is not leased any more was settled."""
        receipts = list(self._out)
        if not receipts:
            return
        try:
            answer = await self._calls.ask(self._me, QUEUE_EXTEND, Extend(self._queue, receipts))
        except RetriableError:
            return
        for receipt, failure in zip(receipts, answer.failures, strict=True):
            if isinstance(error_of_failure(failure), LeaseLost):
                self.forget(receipt)


def look_after_s(full_s: float) -> float:
    """When to look for what others settled: whoever works on messages for long notices a tenth of that the least."""
    return min(max(full_s / 10, LOOK_S_MIN), LOOK_S_MAX)
