"""The cluster as Spark's processes see it: calls that block.

Rule 1: a process has one gateway for each list of brokers, kept for as long as it lives: Spark uses its Python workers
        again, and so connections and what is known of leaders outlive a task. A fork begins without.
Rule 2: nothing here decides: `plan` does, from what is asked here.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from runnel.client import offsets
from runnel.client.cluster import Cluster, ClusterSettings
from runnel.client.log_sizes import log_sizes
from runnel.client.metadata import ClusterView, TopicPartition
from runnel.client.offsets import EARLIEST, LATEST, Committed
from runnel.client.positions import Bounds, bounds
from runnel.pipelines.connector.reading.options import Topics
from runnel.pipelines.connector.reading.ranges import Lost, Range, RangeReader, time_at
from runnel.shell.background import LoopThread
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.wire.kafka.error_codes import ErrorCode

T = TypeVar("T")

SETTINGS = ClusterSettings(client_id="runnel-spark", retry_timeout_ms=60_000)  # an election may take its time
COMMIT_MS = 5_000  # progress that is only shown must not hold up the query that makes it

Offsets = dict[TopicPartition, int]


class Gateway:
    """One cluster, for threads that wait. Any thread may call."""

    def __init__(self, brokers: tuple[str, ...]) -> None:
        self._loop = LoopThread()
        self.cluster = self._loop.run(_cluster(brokers))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of a coroutine, on the loop of the cluster's connections."""
        return self._loop.run(work)

    def close(self) -> None:
        self.run(self.cluster.close())
        self._loop.close()

    # --- what there is
    def partitions(self, topics: Topics) -> list[TopicPartition]:
        """What is to be read and exists now, in order."""
        if topics.partitions:
            there = set(self._of_topics({where.topic for where in topics.partitions}))
            return [where for where in topics.partitions if where in there]
        if topics.pattern is not None:
            view = self.run(self.cluster.persist(lambda: self.cluster.view(None)))
            return _listed(view, [t.name for t in view.topics.values() if not t.internal and topics.matches(t.name)])
        return self._of_topics(topics.names)

    def _of_topics(self, names: Iterable[str]) -> list[TopicPartition]:
        wanted = sorted(names)
        view = self.run(self.cluster.persist(lambda: self.cluster.refresh(wanted)))
        for name, code in view.errors.items():
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.run(self.cluster.topic(name))  # waits until it can be told, or raises why not
        if again := [name for name in view.errors if self.cluster.known_topic(name)]:
            return sorted([*_listed(view, view.topics), *self._of_topics(again)])
        return _listed(view, view.topics)

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
        """What tells topics of one name apart, as it was when their partitions were looked up."""
        known = {where.topic: self.cluster.known_topic(where.topic) for where in partitions}
        return {name: topic.id for name, topic in known.items() if topic is not None}

    def bounds(self, partitions: Iterable[TopicPartition], isolation: int) -> dict[TopicPartition, Bounds]:
        """What partitions hold and this isolation may see."""
        return self.run(bounds(self.cluster, list(partitions), isolation=isolation))

    def starts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset that is kept of each."""
        return self._listed(dict.fromkeys(partitions, EARLIEST), 0)

    def ends(self, partitions: Iterable[TopicPartition], isolation: int) -> Offsets:
        """The first offset that can't be read yet of each."""
        return self._listed(dict.fromkeys(partitions, LATEST), isolation)

    def by_time(self, times_ms: Mapping[TopicPartition, int], isolation: int) -> Offsets:
        """The first offset at or after a time; -1 where there is none."""
        return self._listed(times_ms, isolation)

    def _listed(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Offsets:
        if not wanted:
            return {}
        found = self.run(offsets.list_offsets(self.cluster, wanted, isolation=isolation))
        return {where: found[where].offset for where in wanted}

    def sizes(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, list[int]]:
        """How many bytes of the log lie before these offsets, about: an index of the log knows some of them."""
        return self.run(log_sizes(self.cluster, wanted)) if wanted else {}

    def times(self, spans: Iterable[Range], isolation: int) -> list[int | None]:
        """When the first batch of each of these ranges was written."""

        async def ask() -> list[int | None]:
            return await asyncio.gather(*(time_at(self.cluster, span, isolation) for span in spans))

        return self.run(ask())

    # --- groups
    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Offsets:
        found = self.run(offsets.fetch_committed(self.cluster, group, list(partitions)))
        return {where: stored.offset for where, stored in found.items()}

    def commit(self, group: str, reached: Mapping[TopicPartition, int]) -> None:
        """Store how far a group is; it must have no members."""
        stored = {where: Committed(offset) for where, offset in reached.items()}
        self.run(offsets.commit(self.cluster, group, stored, timeout_ms=COMMIT_MS))

    # --- messages
    def read(self, span: Range, isolation: int, lost: Callable[[Lost], None]) -> Iterator[memoryview]:
        """The batches of a range, as they lie in the log; `lost` is told what is not there any more, and may raise."""
        reader = RangeReader(self.cluster, span, isolation)
        try:
            while (found := self.run(reader.next())) is not None:
                if isinstance(found, Lost):
                    lost(found)
                else:
                    yield from found
        finally:
            self.run(reader.close())


async def _cluster(brokers: tuple[str, ...]) -> Cluster:
    return Cluster(brokers, clock=SystemClock(), rng=SystemRng(), settings=SETTINGS)


def _listed(view: ClusterView, names: Iterable[str]) -> list[TopicPartition]:
    return [where for name in sorted(names) for where in view.topics[name].places.values()]


# --- one for each process and list of brokers
_gateways: dict[tuple[str, ...], Gateway] = {}
_lock = threading.Lock()


def gateway(brokers: tuple[str, ...]) -> Gateway:
    """The gateway of this process to these brokers."""
    with _lock:
        found = _gateways.get(brokers)
        if found is None:
            found = _gateways[brokers] = Gateway(brokers)
        return found


def close_all() -> None:
    """Close every gateway of this process."""
    with _lock:
        while _gateways:
            _gateways.popitem()[1].close()


def _forget() -> None:
    """After a fork: threads do not survive it, and connections belong to the parent."""
    global _lock
    _gateways.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
