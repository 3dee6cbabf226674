"""How many dead letters a queue has now, in the partitions that are led here.

Rule 1: a letter counts while `dead.list` would list it: it is in the topic, it is the queue's, and it did not go back.
Rule 2: where one queue alone puts its dead letters into a topic, offsets are counted, and no letter is looked at. Where
        several do, the letters say whose they are; they are read once, and then only those that came since.
Rule 3: what is known of a partition counts as long as this broker leads it in the same epoch.
"""

from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Final

from runnel.broker.messages import Messages
from runnel.broker.sources import Sources
from runnel.model.ids import Offset, PartitionKey
from runnel.queues.letters import is_letter_of
from runnel.queues.redrive import Redriving
from runnel.replica.partition import Partition

PIECES_MAX: Final = 1_000  # of one partition, read for one question: the next one goes on from there


class DeadLetterCounts:
    """`machine` knows which letters of a queue went back; it may have to be read first."""

    def __init__(
        self, sources: Sources, messages: Messages, machine: Callable[[str, Partition], Awaitable[Redriving]]
    ) -> None:
        self._sources = sources
        self._messages = messages
        self._machine = machine
        self._own: dict[tuple[str, PartitionKey], _Own] = {}

    async def count(self, queue: str, partition: Partition) -> int:
        if partition.last_stable_offset <= partition.log.start_offset:
            return 0
        machine = await self._machine(queue, partition)
        if self._sources.is_shared_grave(partition.topic):
            found = await self._count_own(queue, partition)
        else:
            found = max(0, partition.last_stable_offset - partition.log.start_offset)
        return max(0, found - machine.went_from(partition.log.start_offset))

    async def _count_own(self, queue: str, partition: Partition) -> int:
        own = self._own.get((queue, partition.key))
        if own is None or own.partition is not partition or own.epoch != partition.leader_epoch:
            own = self._own[queue, partition.key] = _Own(queue, partition)
        await own.read_on(self._messages)
        return own.count()

    def forget_led_elsewhere(self) -> None:
        """Rule 3."""
        self._own = {name: own for name, own in self._own.items() if own.stands}


class _Own:
    """Which letters of a partition are one queue's."""

    def __init__(self, queue: str, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self._queue = queue
        self._offsets = array("q")
        self._upto = 0

    @property
    def stands(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self.epoch

    async def read_on(self, messages: Messages) -> None:
        """Look at the letters that came since; of many, at a part."""
        for _ in range(PIECES_MAX):
            at = max(self._upto, self.partition.log.start_offset)
            if at >= self.partition.last_stable_offset:
                return
            found = await messages.read(self.partition, Offset(at))
            if self._upto > at or found.end <= at:
                return  # somebody else asked, too, or there is nothing to be read now
            self._offsets.extend(
                letter.offset for letter in found.since(at) if is_letter_of(self._queue, letter.headers)
            )
            self._upto = found.end

    def count(self) -> int:
        """How many of them the log still has; of those that were not looked at, each is taken for the queue's."""
        del self._offsets[: bisect_left(self._offsets, self.partition.log.start_offset)]
        unread = self.partition.last_stable_offset - max(self._upto, self.partition.log.start_offset)
        return len(self._offsets) + max(0, unread)
