"""Messages between processes: delayed, out of order, doubled, lost, cut; and the processes they go to.

Rule 1: a message is for one life of a process; its next life never gets it.
Rule 2: a paused process gets everything when it goes on, and its timers with it.
"""

from collections.abc import Callable
from typing import Any

from runnel.testing.core.scheduler import Scheduler


class Process:
    """Something that runs, can be paused, and dies."""

    __slots__ = ("_deferred", "id", "life", "paused", "scheduler", "up")

    def __init__(self, scheduler: Scheduler, number: int) -> None:
        self.scheduler = scheduler
        self.id = number
        self.life = 0
        self.up = False
        self.paused = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def begin(self) -> None:
        self.life += 1
        self.up = True

    def end(self) -> None:
        """Nothing that was under way goes on."""
        self.life += 1
        self.up = self.paused = False
        self._deferred.clear()

    def after(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        """Do something later, if this life lasts."""
        self.scheduler.after(delay_ms, self.deliver, self.life, what, args)

    def deliver(self, life: int, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life != self.life:
            return
        if self.paused:
            self._deferred.append((what, args))
        else:
            what(*args)

    def resume(self) -> None:
        """Go on; what has gathered meanwhile comes in any order, soon."""
        self.paused = False
        waiting, self._deferred = self._deferred, []
        for what, args in waiting:
            self.after(self.scheduler.uniform(0, 5), what, *args)


class Network:
    """Carries calls from one process to another."""

    __slots__ = ("_double", "_far", "_lose", "_reach", "_scheduler", "cut")

    def __init__(self, scheduler: Scheduler, *, reach_ms: float, far: float, lose: float, double: float) -> None:
        self._scheduler = scheduler
        self._reach = reach_ms  # the usual delay is below this
        self._far = far  # how many messages take much longer
        self._lose = lose
        self._double = double
        self.cut: set[tuple[int, int]] = set()  # (from, to)

    def send(self, sender: int, to: Process, what: Callable[..., None], *args: Any) -> None:
        rng = self._scheduler.rng.random
        if (sender, to.id) in self.cut or not to.up or (self._lose and rng() < self._lose):
            return
        times = 2 if self._double and rng() < self._double else 1
        for _ in range(times):
            delay = self._reach * rng() + 0.1
            if self._far and rng() < self._far:
                delay *= 40 * rng()
            self._scheduler.after(delay, self._arrive, sender, to, to.life, what, args)

    def _arrive(self, sender: int, to: Process, life: int, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if (sender, to.id) not in self.cut:
            to.deliver(life, what, args)

    def heal(self) -> None:
        self.cut.clear()
        self._lose = self._double = self._far = 0.0
