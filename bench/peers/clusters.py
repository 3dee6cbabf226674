"""Several brokers on one machine as one contender: what keeps copies of its messages.

Rule 1: brokers are known by their number; each can be ended and started again on its own, with its port and its data.
Rule 2: at the end everything is killed: what is measured is over, and the data is thrown away.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from bench.load import Refused, ask
from bench.peers import HOST, DidNotStart, Peer, Server, spawn, wait_for_port
from runnel.dev.zookeeper import ZooKeeperServer

SESSION_MS = 6_000  # a silent broker is taken for dead after so long: Runnel's default, and Kafka is told the same
END_S_MAX = 180.0


@runtime_checkable
class Clustered(Peer, Protocol):
    """A kind of server that keeps copies on others of its kind."""

    lost_words: str | None  # in the log of a broker that was taken for dead while it ran; None: it does not say

    def cluster_missing(self) -> str | None:
        """Why no cluster of it can be had on this machine, or None if one can."""
        ...

    def start_cluster(self, data: Path, brokers: int) -> "Cluster": ...

    def controller(self, asker: ask.Asker) -> int:
        """The number of the broker that decides who leads."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where one broker lives, and how it is started there."""

    command: Sequence[str]
    port: int
    data: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


class Cluster:
    """Brokers that run, by number; and the ZooKeeper beside them, if they need one."""

    def __init__(self, peer: Clustered, places: Mapping[int, Place], keeper: ZooKeeperServer | None = None) -> None:
        self.peer = peer
        self.places = places
        self.brokers: dict[int, Server] = {}
        self._keeper = keeper

    def started(self) -> Self:
        """Start everything and wait until the brokers know each other."""
        try:
            if self._keeper:
                self._keeper.start()
                self._keeper.wait()
            self.start(*self.places)
        except RuntimeError as error:
            self.close()
            raise DidNotStart(str(error)) from error
        except BaseException:
            self.close()
            raise
        return self

    def start(self, *numbers: int) -> None:
        """Start these brokers side by side, and wait until each is known to all that run."""
        for number in numbers:
            place = self.places[number]
            self.brokers[number] = spawn(self.peer, place.command, place.port, place.data, place.environment)
        for number in numbers:
            wait_for_port(self.brokers[number])
        for number in self.brokers:
            ask.await_brokers(self.places[number].address, len(self.brokers))

    def end(self, number: int, how: signal.Signals) -> None:
        """End a broker with this signal; returns when it is gone."""
        process = self.brokers[number].process
        process.send_signal(how)
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            raise Refused(f"broker {number} had not ended {END_S_MAX:.0f} s after {how.name}") from None
        del self.brokers[number]

    def count_lost(self) -> int:
        """How often brokers that run were taken for dead, as far as they say."""
        words = self.peer.lost_words
        logs = (broker.log.read_text(errors="replace") for broker in self.brokers.values())
        return sum(log.count(words) for log in logs) if words else 0

    @property
    def replication(self) -> int:
        return len(self.places)

    @property
    def address(self) -> str:
        """Where clients begin: all brokers that run."""
        return ",".join(self.places[number].address for number in sorted(self.brokers))

    @property
    def any_address(self) -> str:
        return self.address.split(",")[0]

    @property
    def broker_pids(self) -> list[int]:
        return [broker.pid for broker in self.brokers.values()]

    @property
    def pids(self) -> list[int]:
        return [*self.broker_pids, *([self._keeper.process.pid] if self._keeper else [])]

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        if self._keeper:
            self._keeper.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
