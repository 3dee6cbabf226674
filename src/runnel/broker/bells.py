"""Those who wait for messages of queues, and the bells that wake them.

Rule 1: a bell wakes one waiter, the one that has waited longest: one message is no reason for a thousand to look.
Rule 2: no ring is lost. Who was woken and goes away without having looked passes it on, and who found something rings
        for the next if there may be more.
Rule 3: a bell says that there may be something, never that there is: who is woken looks, and waits again.
Rule 4: nobody waits by looking again and again. Where nobody waits, nothing is watched.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Waiter(Protocol):
    """Who waits at a bell. Hashed by identity."""

    def wake(self) -> None:
        """There may be something; called once for each time that it waits."""


class Sleeper:
    """A waiter of this broker's own: it looks, and sleeps until it is woken."""

    def __init__(self) -> None:
        self._rung: asyncio.Future[bool] | None = None
        self.woken = False  # and has not looked since

    def wake(self) -> None:
        self.woken = True
        self._finish(True)

    def end(self) -> None:
        """What it waits for is of no use any more: its client went, or the broker stops."""
        self._finish(False)

    def _finish(self, rung: bool) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(rung)

    async def sleep(self, timeout_s: float) -> bool:
        """Wait; returns whether a bell rang."""
        if self.woken:
            return True
        loop = asyncio.get_running_loop()
        self._rung = loop.create_future()
        timer = loop.call_later(timeout_s, self._finish, False)
        try:
            return await self._rung
        finally:
            timer.cancel()
            self._rung = None


def _ignore(queue: str) -> None:
    """Nobody wants to know."""


class Bells:
    """One for each queue that somebody waits for. `on_first`, `on_last`: there are waiters from now on, or no more."""

    def __init__(self, on_first: Callable[[str], None] = _ignore, on_last: Callable[[str], None] = _ignore) -> None:
        self._on_first = on_first
        self._on_last = on_last
        self._waiting: dict[str, dict[Waiter, None]] = {}

    def __contains__(self, queue: str) -> bool:
        """Whether anybody waits for messages of this queue."""
        return queue in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, queue: str, waiter: Waiter) -> None:
        """Begin to wait, behind all who do."""
        if queue not in self._waiting:
            self._waiting[queue] = {}
            self._on_first(queue)
        self._waiting[queue][waiter] = None

    def remove(self, queue: str, waiter: Waiter) -> None:
        waiting = self._waiting.get(queue)
        if waiting is None or waiter not in waiting:
            return
        del waiting[waiter]
        if not waiting:
            del self._waiting[queue]
            self._on_last(queue)

    def ring(self, queue: str) -> bool:
        """Wake who has waited longest; returns whether there was anybody."""
        waiting = self._waiting.get(queue)
        if not waiting:
            return False
        waiter = next(iter(waiting))
        self.remove(queue, waiter)
        waiter.wake()
        return True

    def ring_all(self, queue: str | None = None) -> None:
        """Let everybody look: what they wait for may be elsewhere now."""
        for name in [queue] if queue is not None else list(self._waiting):
            for _ in range(len(self._waiting.get(name, ()))):
                self.ring(name)

    @contextmanager
    def waiting(self, queue: str) -> Iterator[Sleeper]:
        """Somebody who looks and sleeps in turns, for as long as the block lasts; see `again`."""
        sleeper = Sleeper()
        self.add(queue, sleeper)
        try:
            yield sleeper
        finally:
            self.remove(queue, sleeper)
            if sleeper.woken:
                self.ring(queue)  # rule 2

    def again(self, queue: str, sleeper: Sleeper) -> None:
        """The sleeper is about to look: what rings from now on, it hears."""
        sleeper.woken = False
        self.add(queue, sleeper)
