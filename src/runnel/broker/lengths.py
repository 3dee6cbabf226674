"""Queues that refuse messages when they are full (`max.length` with `overflow=refuse`), whichever door they come by.

Rule 1: a partition that no such queue delivers is not looked at: its appends pay for one comparison with None.
Rule 2: what is appended counts from then on, not from when it is committed or has its place: also what waits in line,
        and what goes in the same batch.
Rule 3: while it is not known how long a queue is, nothing is added to it; producers try again.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from runnel.broker.deliveries import Deliveries
from runnel.broker.partitions import Partitions
from runnel.broker.sources import Sources
from runnel.cluster.image import GROUP, Change, Image
from runnel.model.errors import LeaderNotAvailable, PolicyViolation, RunnelError
from runnel.model.ids import PartitionKey
from runnel.model.queue_config import Overflow
from runnel.replica.partition import Partition


class Lengths:
    """Sets the quotas of partitions."""

    def __init__(self, partitions: Partitions, deliveries: Deliveries, sources: Sources) -> None:
        self._partitions = partitions
        self._deliveries = deliveries
        self._sources = sources
        self._limited: set[str] = set()
        self._set: dict[PartitionKey, Partition] = {}

    def start(self, image: Image) -> None:
        self._learn(image.configs)
        self._apply(image)

    def follow(self, change: Change) -> None:
        self._learn(change.delta.configs)
        if self._limited or self._set:
            self._apply(change.after)

    def _learn(self, configs: Mapping[str, object]) -> None:
        for key in configs:
            queue = key.removeprefix(GROUP)
            if not key.startswith(GROUP):
                continue
            config = self._sources.config(queue)
            refuses = config.max_length > 0 and config.overflow is Overflow.REFUSE
            (self._limited.add if refuses else self._limited.discard)(queue)

    def _apply(self, image: Image) -> None:
        wanted: dict[PartitionKey, list[str]] = {}
        for queue in self._limited:
            topic = image.topic(self._sources.config(queue).topic_of(queue))
            for number in range(len(topic.partitions) if topic is not None else 0):
                assert topic is not None
                wanted.setdefault(PartitionKey(topic.id, number), []).append(queue)
        for partition in self._set.values():
            partition.quota = None
        self._set = {}
        for key, queues in wanted.items():
            if (led := self._led(key)) is not None:
                self._set[key] = led
                self._limit(led, queues)

    def _led(self, key: PartitionKey) -> Partition | None:
        try:
            return self._partitions.find_by_id(*key)
        except RunnelError:
            return None

    def _limit(self, partition: Partition, queues: list[str]) -> None:
        def quota(messages: int, ahead: int = 0) -> None:
            for queue in queues:
                self._check(queue, partition, messages, ahead)

        partition.quota = quota
        for queue in queues:
            self._deliveries.find(queue, partition.key)  # how long it is has to be known before the first message

    def _check(self, queue: str, partition: Partition, messages: int, ahead: int) -> None:
        outlet = self._deliveries.find(queue, partition.key)
        outlet.used()
        if not outlet.shard.loaded:
            raise LeaderNotAvailable(f"how long queue {queue!r} is in {partition.name} is being read: try again")
        length = outlet.machine.length(replace(outlet.view(), end=partition.log.end_offset)) + partition.in_line + ahead
        if length + messages > outlet.config.max_length:
            outlet.refusals.messages += messages
            room = max(0, outlet.config.max_length - length)
            raise PolicyViolation(
                f"queue {queue!r} has {length} messages in {partition.name}, max.length is {outlet.config.max_length}:"
                f" of {messages} offered at once {room} fit. Send {'fewer at once' if room else 'again'}"
                f"{'' if room else ' when some are settled'}, or raise the setting"
            )
