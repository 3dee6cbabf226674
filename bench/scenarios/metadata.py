"""Many partitions in a cluster: making them, what each takes in memory, and how long a broker's end is felt.

A stock client goes on sending to a topic of its own all the while. What it feels of an end is the longest time from
when a message was due to its acknowledgement, for each partition. Both contenders take a broker that fell silent for
dead after the same time.

Rule 1: whatever is waited for is waited for so long and no longer; so a run ends, with numbers or with the reason.
Rule 2: many topics are made and ended once: a round of them takes minutes, and the small ones have shown the spread.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.load import Refused, ask, librdkafka
from bench.load.ask import Asker, Place
from bench.machine import resident_bytes
from bench.peers import Flush
from bench.peers.clusters import Cluster, Clustered
from bench.scenarios import BROKERS, Cell, Run

NAME = "metadata"
PARTITIONS = 10  # of each topic
TOPICS_IN_REQUEST = 20  # 200 partitions: a slow disk must not make a request outlast the time that it is given
MANY = 500  # topics: from here on, one round
WATCHED = 12  # partitions that the stock client sends to
WATCH_RATE = 20.0  # messages a second to each of them
WATCH_SIZE = 100
AROUND_S = 1.0  # before and after an end, the client's messages count
BEGIN_S_MAX = 60.0
CONTROLLER = "the controller"


def measure(run: Run) -> None:
    for peer in run.clustered():
        if run.scale.lone_topics:
            _lone(run, peer, max(run.scale.topics))
        for topics in run.scale.topics:
            with run.cluster(peer) as cluster:
                _Life(run, cluster, topics).measure()


def _lone(run: Run, peer: Clustered, topics: int) -> None:
    """Topics without copies: what making them costs a broker."""
    with run.cluster(peer) as cluster:
        cell = run.cell(NAME, f"{topics:,} topics of {PARTITIONS}, 1 copy", peer.name, 1)
        _create(run, cluster, topics, 1, cell)


def _create(run: Run, cluster: Cluster, topics: int, replication: int, cell: Cell) -> list[str]:
    """Make topics, and time it until the cluster said yes, and until every partition took a message."""
    run.say(f"{NAME}: {cell.contender} makes {topics:,} topics of {PARTITIONS} partitions, {replication} copies")
    names = [f"topic{number:05}" for number in range(topics)]
    before = sum(map(resident_bytes, cluster.broker_pids))
    begun = time.monotonic()
    for at in range(0, topics, TOPICS_IN_REQUEST):
        asked = names[at : at + TOPICS_IN_REQUEST]
        librdkafka.create_topics(cluster.address, asked, PARTITIONS, replication, _settings(cluster, replication))
    cell.record("made", "s", time.monotonic() - begun)
    places = [(name, number) for name in names for number in range(PARTITIONS)]
    _, taken = ask.await_acks(cluster.any_address, places)
    cell.record("every partition took a message", "s", taken - begun)
    cell.record("partitions", "/s", len(places) / (taken - begun))
    more = sum(map(resident_bytes, cluster.broker_pids)) - before
    cell.record("memory of each copy", "KB", more / 1000 / len(places) / replication)
    return names


def _settings(cluster: Cluster, replication: int) -> dict[str, str]:
    """No syncs on either side: it is not the disk that is measured."""
    return {**cluster.peer.topic_config(Flush.OS), "min.insync.replicas": str(max(1, replication - 1))}


class _Life:
    """One cluster with so many topics: they are made, a broker stops, and one is killed."""

    def __init__(self, run: Run, cluster: Cluster, topics: int) -> None:
        self._run = run
        self._cluster = cluster
        self._topics = topics
        self._names: list[str] = []
        self._watched = "watched"

    def measure(self) -> None:
        case = f"{self._topics:,} topics of {PARTITIONS}, {BROKERS} copies"
        self._names = _create(self._run, self._cluster, self._topics, BROKERS, self._cell(case))
        librdkafka.create_topics(
            self._cluster.address, [self._watched], WATCHED, BROKERS, _settings(self._cluster, BROKERS)
        )
        ask.await_acks(self._cluster.any_address, [(self._watched, number) for number in range(WATCHED)])
        many, counted = self._topics >= MANY, self._run.scale.end_rounds
        for number in range(1, 2) if many else self._run.rounds(counted):
            self._stop(number)
        for number in range(1, 2 if many else counted + 1):
            for whom in self._run.scale.failovers:
                self._kill(whom, number)
        self._tell_lost(case)

    def _tell_lost(self, case: str) -> None:
        """Whoever could not prove that it was alive has another life: what was measured around it is of little use."""
        if lost := self._cluster.count_lost():
            self._run.note(f"{NAME}, {self._cluster.peer.name}, {case}: brokers lost their sessions {lost} times")

    def _cell(self, case: str, number: int = 1) -> Cell:
        return self._run.cell(NAME, case, self._cluster.peer.name, number)

    def _stop(self, number: int) -> None:
        """An orderly stop (SIGTERM) of one broker: others take over before it goes; then it comes back."""
        cell = self._cell(f"{self._topics * PARTITIONS:,} partitions, a broker stops", number)
        victim = self._victim("a broker")
        with self._watch(cell):
            begun = time.monotonic()
            self._cluster.end(victim, signal.SIGTERM)
            cell.record("until it has ended", "s", time.monotonic() - begun)
        self._come_back(victim, cell)

    def _kill(self, whom: str, number: int) -> None:
        """SIGKILL of a broker that leads its share."""
        cell = self._cell(f"{self._topics * PARTITIONS:,} partitions, {whom} is killed", number)
        victim = self._victim(whom)
        with self._watch(cell):
            led = self._led_by(victim)
            cell.record("led by it", "partitions", len(led))
            begun = time.monotonic()
            self._cluster.end(victim, signal.SIGKILL)
            found = ask.await_leaders(self._cluster.any_address, dict.fromkeys(topic for topic, _ in led), gone=victim)
            cell.record("until all have leaders", "s", found - begun)
            _, taken = ask.await_acks(self._cluster.any_address, led)
            cell.record("until all took a message", "s", taken - begun)
        self._come_back(victim, cell)

    def _come_back(self, victim: int, cell: Cell) -> None:
        begun = time.monotonic()
        self._cluster.start(victim)
        cell.record("started again: until it serves", "s", time.monotonic() - begun)
        cell.record("until all are in sync again", "s", ask.await_in_sync(self._cluster.any_address) - begun)

    def _victim(self, whom: str) -> int:
        """The broker that leads most of those it can be: the controller, or one that is not."""
        with Asker(self._cluster.any_address) as asker:
            controller, view = self._cluster.peer.controller(asker), asker.look()
        if whom == CONTROLLER:
            return controller
        return max(view.brokers.keys() - {controller}, key=lambda broker: len(view.led_by(broker)))

    def _led_by(self, broker: int) -> list[Place]:
        with Asker(self._cluster.any_address) as asker:
            return [place for place in asker.look().led_by(broker) if place[0] != self._watched]

    @contextmanager
    def _watch(self, cell: Cell) -> Iterator[None]:
        """Let a stock client send meanwhile, and record what it felt of what happened in the block."""
        self._run.say(f"{NAME}: {cell.contender}, {cell.case}")
        files = self._run.data("watch")
        begun, end = files.with_suffix(".begun"), files.with_suffix(".end")
        places = (self._cluster.address, self._watched, WATCHED)
        worker = self._run.workers[0]
        worker.begin(librdkafka.watch, librdkafka.Watch(*places, WATCH_SIZE, WATCH_RATE, str(begun), str(end)))
        try:
            _await_file(begun)
            time.sleep(AROUND_S)
            event = time.monotonic()
            yield
            time.sleep(AROUND_S)
        finally:
            end.touch()  # also when something failed: the client is not to go on for ever
        record_waits(cell, worker.finish(), event)


def record_waits(cell: Cell, acked: Sequence[librdkafka.Acked], event: float) -> None:
    """For each partition, the longest that a message around the event waited for its acknowledgement."""
    longest = dict.fromkeys(range(WATCHED), 0.0)
    for partition, due, seconds in acked:
        if due > event - AROUND_S:
            longest[partition] = max(longest[partition], seconds)
    cell.record("a client's longest wait, median of partitions", "s", median(longest.values()))
    cell.record("a client's longest wait, worst partition", "s", max(longest.values()))


def _await_file(path: Path) -> None:
    deadline = time.monotonic() + BEGIN_S_MAX
    while not path.exists():
        if time.monotonic() > deadline:
            raise Refused(f"the client that watches did not begin within {BEGIN_S_MAX:.0f} s")
        time.sleep(0.01)
