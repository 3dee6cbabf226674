"""The faults of a simulation: what each does, and for how long.

A fault that lasts returns what ends it; the end of the run ends all.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Protocol

from runnel.testing.clock import SeededRng
from runnel.testing.disk import Fault, SimDisk
from runnel.testing.loop import Host, SimLoop

FOREVER = 10**9
CALLS = ("", "sync", "sync", "write", "open", "sync_dir", "rename", "truncate", "remove")
End = Callable[[], None]


class Broker(Protocol):
    """What faults need of a simulated broker."""

    host: Host
    disk: SimDisk
    slowness: float  # of its disk

    def die(self, *, power: bool) -> None: ...

    def stop(self) -> None:
        """An orderly stop, in its own time."""
        ...


class Injector:
    """Strikes one broker or client at a time, by chance."""

    def __init__(
        self, loop: SimLoop, rng: SeededRng, brokers: Sequence[Broker], clients: Sequence[Host],
        kill_client: Callable[[Host], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._rng = rng
        self._brokers = brokers
        self._clients = clients
        self._kill_client = kill_client
        self._usual_latency_s = loop.network.conditions.latency_s
        self._ends: dict[int, End] = {}
        self.counts: dict[str, int] = {}

    def strike(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._loop.trace(f"fault {kind}")
        strike: Callable[[], End | None] = getattr(self, "_" + kind.replace("-", "_"))
        end = strike()
        if end is not None:
            number = len(self._ends)
            self._ends[number] = end
            delay_s = self._rng.uniform(0.1, self._rng.pick((0.5, 3.0, 8.0)))
            self._loop.call_later(delay_s, self._end, number)

    def _end(self, number: int) -> None:
        self._ends[number]()
        self._ends[number] = lambda: None

    def heal(self) -> None:
        for number in self._ends:
            self._end(number)
        for broker in self._brokers:
            broker.disk.heal()

    # --- a broker ends

    def _power(self) -> None:
        self._rng.pick(self._brokers).die(power=True)

    def _power_at(self) -> None:
        fault = Fault(self._rng.pick(CALLS), nth=1 + self._rng.below(self._rng.pick((3, 30))), power_cut=True)
        self._rng.pick(self._brokers).disk.inject(fault)

    def _kill(self) -> None:
        self._rng.pick(self._brokers).die(power=False)

    def _stop(self) -> None:
        self._rng.pick(self._brokers).stop()

    # --- a broker suffers

    def _pause(self) -> End:
        host = self._rng.pick([*(broker.host for broker in self._brokers), *self._clients])
        host.pause()
        return host.resume

    def _disk_full(self) -> End:
        short = self._rng.pick((None, 0, 7, 100, 700))
        fault = Fault("write", errno.ENOSPC, nth=1 + self._rng.below(4), times=FOREVER, short_bytes=short)
        return self._fail_disk(fault)

    def _disk_error(self) -> End:
        call = self._rng.pick(("write", "write", "read", "read_cached", "open", "truncate", "rename", "sync"))
        return self._fail_disk(Fault(call, errno.EIO, nth=1 + self._rng.below(5), times=1 + self._rng.below(2)))

    def _fail_disk(self, fault: Fault) -> End:
        self._rng.pick(self._brokers).disk.inject(fault)

        def end() -> None:
            fault.times = 0

        return end

    def _disk_slow(self) -> End:
        broker = self._rng.pick(self._brokers)
        broker.slowness = self._rng.pick((10.0, 100.0))

        def end() -> None:
            broker.slowness = 1.0

        return end

    # --- the network and the clocks

    def _reset(self) -> None:
        host = self._rng.pick([*(broker.host for broker in self._brokers), *self._clients])
        if host.process is not None:
            self._loop.network.reset_all(host.process)

    def _cut(self) -> End:
        broker, client = self._rng.pick(self._brokers).host.name, self._rng.pick(self._clients).name
        ways = self._rng.pick(([(broker, client)], [(client, broker)], [(broker, client), (client, broker)]))
        heals = [self._loop.network.cut(*way) for way in ways]

        def end() -> None:
            for heal in heals:
                heal()

        return end

    def _slow(self) -> End:
        conditions = self._loop.network.conditions
        conditions.latency_s = (0.05, self._rng.pick((0.3, 1.5)))

        def end() -> None:
            conditions.latency_s = self._usual_latency_s

        return end

    def _clock(self) -> None:
        host = self._rng.pick([*(broker.host for broker in self._brokers), *self._clients])
        host.clock.offset_ms = self._rng.below(3_000_000) - 1_500_000

    def _client_kill(self) -> None:
        self._kill_client(self._rng.pick(self._clients))
