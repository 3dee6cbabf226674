"""An event loop on which a whole cluster runs in one process: time is virtual, and chance comes from a seed.

Rule 1: callbacks run in the order in which they became ready, as asyncio promises; one process relies on it, and gets
        it. What nobody promises is drawn: when bytes and disk work arrive, which of two timers of the same instant
        comes first, and how long a callback takes (the clock may move on before the next one runs).
Rule 2: time stands still while there is something to run, lag apart; then it jumps to the next timer.
Rule 3: everything that runs belongs to a process of a host (a contextvar, inherited by tasks and callbacks), or to
        the world. What belongs to a process that is dead is dropped: no `finally`, no `except`, no last write.
Rule 4: no escape: threads, signals, sockets and name lookups are refused.

Hosts share nothing but the network (`testing.network`), where every message takes time: so the order between hosts
is drawn with the latencies.
"""

import asyncio
import contextvars
import gc
import heapq
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

from runnel.model.ids import Millis
from runnel.testing.clock import BEGIN_WALL_MS, SeededRng
from runnel.testing.disk import PowerCut
from runnel.testing.network import Network, Server

CLOSINGS_MAX = 10
STEPS_MAX = 2_000_000  # callbacks of one run: more means that something goes round in circles


class Deadlock(Exception):
    """Nothing is ready, and no timer is set: whoever waits, waits for ever."""


class Process:
    """One life of a program on a host, from its start to its end."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.dead = False
        self.connections: dict[Any, None] = {}
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process:
    process = _PROCESS.get()
    if process is None:
        raise RuntimeError("only a process of a host can use the network: start one with SimLoop.start")
    return process


class Host:
    """A machine: one program at a time, a clock of its own, power that can fail."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self._loop = loop
        self.name = name
        self.powered = True
        self.process: Process | None = None
        self.clock = SimClock(loop)
        self.held: deque[asyncio.Handle] | None = None  # while it is paused: what waits to run
        self.on_answer: Callable[[], None] | None = None  # called before bytes leave this host

    def start(self, main: Callable[[], Any]) -> "asyncio.Task[Any]":
        """Run a program; the last one must be dead."""
        assert self.process is None or self.process.dead
        self.powered = True
        process = self.process = Process(self)
        return process.context.run(lambda: self._loop.create_task(main()))

    @property
    def running(self) -> bool:
        return self.process is not None and not self.process.dead

    def kill(self) -> None:
        """SIGKILL: the process is gone, the system tells its peers."""
        self._end(lambda network, process: network.hang_up(process))

    def cut_power(self) -> None:
        """The machine is gone; nobody is told."""
        self.powered = False
        self._end(lambda network, process: network.forget(process))

    def _end(self, disconnect: Callable[[Network, Process], None]) -> None:
        self.resume()
        if self.process is not None and not self.process.dead:
            self._loop.bury()
            self.process.dead = True
            disconnect(self._loop.network, self.process)

    def pause(self) -> None:
        """SIGSTOP: nothing of this host runs, its connections stay."""
        if self.held is None:
            self.held = deque()

    def resume(self) -> None:
        held, self.held = self.held, None
        if held:
            self._loop.ready_again(held)


class SimClock:
    """A host's clocks: the monotonic one follows the loop, the wall clock can be set."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop
        self.offset_ms = 0

    def monotonic_ms(self) -> Millis:
        return Millis(int(self._loop.time() * 1000))

    def wall_ms(self) -> Millis:
        return Millis(BEGIN_WALL_MS + int(self._loop.time() * 1000) + self.offset_ms)


class SimLoop(asyncio.BaseEventLoop):
    """Use it as `with SimLoop(seed) as loop: loop.run_until_complete(...)`."""

    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int | str) -> None:
        super().__init__()
        self.set_debug(False)
        self.seed = seed
        self.rng = SeededRng(f"{seed}/loop")
        self.lag_chance = 0.0  # that a callback takes time
        self.lag_s = 0.0  # how much at most
        self.steps = 0
        self.trace_hash = 0
        self.tracer: Callable[[str], None] | None = None
        self.mishaps: list[str] = []  # exceptions that nobody caught
        self.world = contextvars.copy_context()
        self.network = Network(self, SeededRng(f"{seed}/network"))
        self.hosts: dict[str, Host] = {}
        self._now = 0.0
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []  # cancelled ones stay for their time
        self._chance = self.rng.fraction
        self._numbers = count()
        self._graves: list[asyncio.Task[Any]] = []
        self._owners: WeakKeyDictionary[asyncio.Future[Any], Process] = WeakKeyDictionary()
        self.set_exception_handler(self._mishap)

    def __enter__(self) -> "SimLoop":
        return self

    def __exit__(self, *_: object) -> None:
        """End what still waits, without a trace, and close."""
        self.set_exception_handler(lambda loop, context: None)
        for host in self.hosts.values():
            if host.process is not None:
                host.process.dead = True
        self.bury()
        at_once = True
        for task in self._graves:  # grows: what is ended may start something on its way out
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is no accident
                at_once &= _close(cast(Any, task.get_coro()))
        self._ready.clear()
        self._timers.clear()
        self._graves.clear()
        if not at_once:
            gc.collect()  # what is left below one that awaited ends here, not in the middle of something else
        self.close()

    def create_task(self, coro: Any, *, name: object = None, context: Any = None) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        if not self.is_running():
            self._graves.append(task)
        self._own(task)
        return task

    def create_future(self) -> "asyncio.Future[Any]":
        future = super().create_future()
        self._own(future)
        return future

    def _own(self, future: "asyncio.Future[Any]") -> None:
        process = _PROCESS.get()
        if process is not None:
            self._owners[future] = process

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(self, name)
        return self.hosts[name]

    def bury(self) -> None:
        """Keep all tasks alive, so that none is collected, and so ended, at a moment that no seed decides."""
        self._graves.extend(asyncio.all_tasks(self))

    def ready_again(self, held: deque[asyncio.Handle]) -> None:
        self._ready.extend(held)

    def trace(self, what: str) -> None:
        """Note what happened: two runs are the same if their traces are."""
        line = f"{self._now:.9f} {self.steps} {what}"
        self.trace_hash = zlib.crc32(line.encode(), self.trace_hash)
        if self.tracer is not None:
            self.tracer(line)

    # --- turning

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Chance decides between two timers of the same instant."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._chance(), next(self._numbers), timer))
        return timer

    def _run_once(self) -> None:
        if self.lag_chance and self._chance() < self.lag_chance:
            self._now += self.rng.uniform(0, self.lag_s)
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[3])
        if not self._ready:
            self._jump()
            return
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]  # typeshed leaves it out
        if process is not None:
            if process.dead:
                return
            if process.host.held is not None:
                process.host.held.append(handle)
                return
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Deadlock(f"{STEPS_MAX} callbacks ran and the end is not near")
        handle._run()

    def _jump(self) -> None:
        """Nothing is ready: go to the next timer."""
        timers = self._timers
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock("nothing is ready and no timer is set")
        self._now = max(self._now, timers[0][0])

    def _mishap(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        future = context.get("future") or context.get("task")
        owner = self._owners.get(future) if future is not None else None
        if owner is not None and owner.dead:
            return  # a process that ended asks for no results
        if not isinstance(error, PowerCut):
            self.mishaps.append(f"{context.get('message')}: {error!r}")

    # --- the network

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> Server:
        return self.network.listen(current_process(), protocol_factory, host, port, options.get("start_serving", True))

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(current_process(), protocol_factory, host, port)

    # --- no escape

    def _escape(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("escape from the simulation: what it needs must come through a seam")

    run_in_executor = _escape  # type: ignore[assignment]
    getaddrinfo = _escape
    add_reader = _escape  # type: ignore[assignment]
    add_signal_handler = _escape  # type: ignore[assignment]
    subprocess_exec = _escape

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _close(coroutine: Any) -> bool:
    """End it where it waits; whether it ended at once: an `except` that awaits wants to be told again."""
    for closing in range(CLOSINGS_MAX):
        with suppress(BaseException):
            coroutine.close()
            return closing == 0
    return False
