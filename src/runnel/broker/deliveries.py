"""The outlets of queues on this broker: one for each queue and each partition that is led here, as far as it is used.

Rule 1: an outlet is opened when it is first used, in the leader epoch of its partition, and closed when that ends, when
        its topic goes, and when nobody has used it for a while and nothing in it waits for its time.
Rule 2: an idle queue costs nothing: no task, no timer, no memory.
Rule 3: what was copied forward is delivered from the first copy on that the queue made, wherever it begins itself. So
        is what lies in a partition that was added after the queue, or the share group, had come to the topic.
Rule 4: a lease that belongs to a connection ends with it, wherever the connection is: with its broker's life, too.
Rule 5: while a queue is being deleted nothing is opened under its name; and what was opened for it is not for a queue
        that is made under its name afterwards.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from runnel.broker.bells import Bells
from runnel.broker.end_offsets import commit_written
from runnel.broker.keepers import Keepers
from runnel.broker.leaving import Exits, Leaver
from runnel.broker.messages import Messages
from runnel.broker.offers import Passes, Rules
from runnel.broker.outlet import Outlet, Parts
from runnel.broker.partitions import Partitions
from runnel.broker.sources import Sources
from runnel.cluster.image import Change, Image
from runnel.model.errors import QueueBeingDeleted, RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.queue_config import Ago, QueueConfig, Start
from runnel.model.seams import Clock, Rng
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.route.filter import compile
from runnel.route.message import view_of

IDLE_MS: Final = 300_000  # an outlet that nobody uses is closed after so long


class Deliveries:
    """All that this broker delivers."""

    def __init__(
        self, partitions: Partitions, keepers: Keepers, messages: Messages, exits: Exits, clock: Clock, rng: Rng,
        sources: Sources, share_began: Callable[[str, TopicId], Awaitable[int]],
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._keepers = keepers
        self._exits = exits
        self._clock = clock
        self._sources = sources
        self._share_began = share_began
        self.bells = Bells(self._watch, self._unwatch)
        self._parts = Parts(messages, self.bells, clock, rng)
        self._outlets: defaultdict[str, dict[PartitionKey, Outlet]] = defaultdict(dict)
        self._image: Image
        self._closed = False

    def start(self, image: Image) -> None:
        self._image = image

    def follow(self, change: Change) -> None:
        """The image changed: close what is led elsewhere now or gone, heed settings, let those who wait look."""
        self._image = change.after
        delta = change.delta
        for outlet in list(self):
            moved = outlet.partition.key.topic_id in delta.topics or bool(delta.brokers)
            if moved and not outlet.shard.belongs_to(self._led(outlet.partition.key)):
                self.close_outlet(outlet)
                self._parts.messages.forget(outlet.partition)
            elif delta.configs:
                self._reconfigure(outlet)
        if delta.topics:
            self._wake_readers_of({topic.name for topic in delta.topics.values() if topic is not None})

    def _wake_readers_of(self, topics: set[str]) -> None:
        """These may be led elsewhere now: let those who wait for their messages look."""
        for queue in list(self.bells):
            config = self._sources.config(queue)
            if not topics.isdisjoint((config.topic_of(queue), config.retry_topic_of(queue))):
                self.bells.ring_all(queue)

    def close(self) -> None:
        """The broker is about to stop."""
        self._closed = True
        for outlet in list(self):
            outlet.close()
        self._outlets.clear()
        self.bells.ring_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def __iter__(self) -> Iterator[Outlet]:
        return (outlet for outlets in list(self._outlets.values()) for outlet in list(outlets.values()))

    def __len__(self) -> int:
        return sum(map(len, self._outlets.values()))

    def of(self, queue: str) -> Mapping[PartitionKey, Outlet]:
        """Those of a queue that are open."""
        return self._outlets.get(queue) or {}

    def sweep(self) -> None:
        """Close what nobody has used for a while; rule 1."""
        before = self._clock.monotonic_ms() - IDLE_MS
        for outlet in list(self):
            if outlet.used_ms < before and outlet.is_idle and not self._is_waited_for(outlet):
                self.close_outlet(outlet)

    # --- one outlet

    def find(self, queue: str, key: PartitionKey) -> Outlet:
        """The outlet of a queue on a partition, opened if need be; raises unless the partition is led here."""
        partition = self._partitions.find_by_id(*key)
        outlet = self._outlets[queue].get(key)
        if outlet is not None and outlet.shard.belongs_to(partition) and not outlet.shard.lost:
            return outlet
        if outlet is not None:
            self.close_outlet(outlet)
        return self._open(queue, partition)

    def _open(self, queue: str, partition: Partition) -> Outlet:
        if self._sources.being_deleted(queue):
            raise QueueBeingDeleted(f"queue {queue!r} is being deleted: wait a moment, then try again")
        config = self._config(queue, partition)
        outlet: Outlet

        def tell(verb: str, news: object) -> None:
            outlet.tell(verb, news)

        def partitions() -> int:
            topic = self._image.topic(outlet.config.topic_of(queue))
            return len(topic.partitions) if topic is not None else 1

        leaver = Leaver(
            queue, partition, lambda: outlet.config, partitions, self._exits, tell, lambda: outlet.made,
            lambda: outlet.rules,
        )  # fmt: skip
        made = self._sources.made(queue)

        async def begin() -> None:
            if (
                not outlet.defined
                and 0 <= await self._share_began(queue, partition.key.topic_id) <= partition.key.number
            ):
                outlet.begin_at_start()
                return
            await commit_written(partition)  # the end is behind all that was acknowledged
            if isinstance(config.start, Ago):
                await outlet.begin_at(self._clock.wall_ms() - config.start.duration_ms)

        asks = None if config.start is Start.EARLIEST else begin
        journal = self._keepers.journal(queue, partition, made, asks)
        rules = self._rules(queue, partition, config)
        outlet = Outlet(queue, partition, journal, config, rules, self._parts, leaver, made)
        outlet.defined = self._sources.defined(queue)
        self._outlets[queue][partition.key] = outlet
        outlet.open()
        if self._is_waited_for(outlet):
            outlet.watch()
        return outlet

    def close_outlet(self, outlet: Outlet) -> None:
        outlets = self._outlets.get(outlet.queue, {})
        if outlets.get(outlet.partition.key) is outlet:
            del outlets[outlet.partition.key]
            if not outlets:
                del self._outlets[outlet.queue]
        outlet.close()

    def _led(self, key: PartitionKey) -> Partition | None:
        try:
            return self._partitions.find_by_id(*key)
        except RunnelError:
            return None

    def _reconfigure(self, outlet: Outlet) -> None:
        made = self._sources.made(outlet.queue)
        if (outlet.defined and not self._sources.defined(outlet.queue)) or outlet.made not in (0, made):
            self.close_outlet(outlet)  # the queue was deleted
            self.bells.ring_all(outlet.queue)
            return
        outlet.made, outlet.defined = made, self._sources.defined(outlet.queue)
        config = self._config(outlet.queue, outlet.partition)
        if config != outlet.config:
            outlet.reconfigure(config, self._rules(outlet.queue, outlet.partition, config))
            self.bells.ring_all(outlet.queue)

    def _config(self, queue: str, partition: Partition) -> QueueConfig:
        """The settings of a queue, as they hold for one partition (rule 3)."""
        config = self._sources.config(queue)
        early = partition.topic == config.retry_topic_of(queue) or self._sources.added_later(
            queue, partition.topic, partition.key
        )
        return replace(config, start=Start.EARLIEST) if early else config

    def _rules(self, queue: str, partition: Partition, config: QueueConfig) -> Rules:
        copies = partition.topic == config.retry_topic_of(queue)
        passes = None if copies or not config.filter else passes_of(config.filter, partition)
        return Rules(config.keyed, passes, copies)

    # --- waiting

    def _watch(self, bell: str) -> None:
        for outlet in self._behind(bell):
            outlet.watch()

    def _unwatch(self, bell: str) -> None:
        for outlet in self._behind(bell):
            if not self._is_waited_for(outlet):
                outlet.unwatch()

    def _behind(self, bell: str) -> list[Outlet]:
        """The outlets that ring a bell: all of a queue's, or one."""
        one = [outlet for outlet in self.of(bell.rpartition("\0")[0]).values() if outlet.bell == bell]
        return [*self.of(bell).values(), *one]

    def _is_waited_for(self, outlet: Outlet) -> bool:
        return outlet.queue in self.bells or outlet.bell in self.bells


def passes_of(text: str, partition: Partition) -> Passes:
    """Whether a message of a partition passes a filter."""
    filtered, topic, number = compile(text), partition.topic, partition.key.number

    def passes(record: Record) -> bool:
        return filtered.passes(view_of(record, topic, number))

    return passes
