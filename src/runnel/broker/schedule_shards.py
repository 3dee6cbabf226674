"""The shards of the schedule on this broker: an index of each partition that is kept here, and who sends what waits in
those that are led here.

Rule 1: the shard of a target follows from its topic's id and its number alone, so that all that waits for one
        partition is sent by one broker, in order.
Rule 2: the index of a shard is kept on every replica of it, so that the next leader can begin at once.
Rule 3: what others ask is answered for the shards that are led here, and no others.
Rule 4: a message is parked only if it can be kept, read again, and sent when it is due. The leader of its shard checks
        that, whoever asks.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from runnel.broker.calls import Calls, failure_of
from runnel.broker.due_tail import Tail
from runnel.broker.internal import SCHEDULE, refuse_internal
from runnel.broker.once import Once
from runnel.broker.partitions import Partitions
from runnel.broker.schedule_shard import ScheduleShard
from runnel.broker.unserved import Unserved
from runnel.cluster.image import NO_LEADER, VIEW_OF, Change, Image
from runnel.model.calls import PendingCount
from runnel.model.errors import BatchTooLarge, InvalidRecord, NotLeader, ReadOnlyTopic, RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import (
    SCHEDULE_CHANGE_HERE,
    SCHEDULE_COUNT_HERE,
    SCHEDULE_FIRST_HERE,
    SCHEDULE_NAMED_HERE,
    SCHEDULE_PARK,
    CancelHere,
    ChangedHere,
    CountHere,
    FirstHere,
    NamedHere,
    OpenDueIndex,
    Park,
    Parked,
    Row,
    WaitingRow,
    WaitingRows,
    WhenDue,
)
from runnel.model.seams import Clock, Disk, Rng
from runnel.queues.schedule import check


@dataclass(slots=True)
class _Here:
    """One partition of the schedule that is kept here."""

    tail: Tail
    shard: ScheduleShard | None = None


class ScheduleShards:
    """All that is kept here of the schedule."""

    def __init__(
        self, partitions: Partitions, calls: Calls, once: Once, image: Callable[[], Image], clock: Clock, rng: Rng,
        disk: Disk, open_index: OpenDueIndex,
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._once = once
        self._image = image
        self._clock = clock
        self._rng = rng
        self._disk = disk
        self._open_index = open_index
        self._here: dict[int, _Here] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False
        calls.serve(SCHEDULE_PARK, self._park_here)
        calls.serve(SCHEDULE_CHANGE_HERE, self._change_here)
        calls.serve(SCHEDULE_FIRST_HERE, self._first_here)
        calls.serve(SCHEDULE_COUNT_HERE, self._count_here)
        calls.serve(SCHEDULE_NAMED_HERE, self._named_here)

    def __iter__(self) -> Iterator[ScheduleShard]:
        """Those that are led here."""
        return iter([here.shard for here in self._here.values() if here.shard is not None])

    def unserved(self) -> Iterator[Unserved]:
        """The shards that are led here, and do not serve."""
        topic = self._image().topic(SCHEDULE)
        for number, error in self._partitions.failures(topic) if topic else ():
            yield Unserved(SCHEDULE, number, error)
        for number, here in self._here.items():
            if here.shard is not None and (not here.shard.loaded or here.shard.trouble is not None):
                yield Unserved(SCHEDULE, number, here.shard.trouble)

    # --- following the image

    def start(self, image: Image) -> None:
        self.open()

    def follow(self, change: Change) -> None:
        """Lead new shards, follow others, and let go what waits for topics that are gone."""
        self.open()
        if change.delta.deleted:
            for shard in self:
                shard.look_for_deleted()

    def open(self) -> None:
        """Keep an index of each partition that is kept here, and a shard of each that is led here."""
        topic = self._image().topic(SCHEDULE)
        if self._closed:
            return
        for number in range(len(topic.partitions) if topic else 0):
            self._keep(number)

    def _keep(self, number: int) -> None:
        try:
            partition = self._partitions.find_readable(SCHEDULE, number)
        except RunnelError:
            self._leave(number)
            return
        here = self._here.get(number)
        if here is None or here.tail.partition is not partition:
            self._leave(number)
            here = self._here[number] = _Here(Tail(partition, self._open_index, self._disk))
            here.tail.start()
        if here.shard is not None and not here.shard.belongs_to(partition if partition.is_leader else None):
            here.shard.close()
            here.shard = None
        if here.shard is None and partition.is_leader:
            here.shard = ScheduleShard(here.tail, self._once, self, self._clock, self._rng)
            here.shard.open()

    def _leave(self, number: int) -> None:
        here = self._here.pop(number, None)
        if here is not None:
            if here.shard is not None:
                here.shard.close()
            task = asyncio.get_running_loop().create_task(here.tail.stop())
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        for shard in self:
            shard.close()

    async def stop(self) -> None:
        self.close()
        for number in list(self._here):
            self._leave(number)
        if self._endings:
            await asyncio.wait(list(self._endings))

    # --- topics, as shards see them

    def has(self, target: PartitionKey) -> bool:
        topic = self._image().topics.get(target.topic_id)
        return topic is not None and 0 <= target.number < len(topic.partitions)

    def is_led(self, target: PartitionKey) -> bool:
        topic = self._image().topics.get(target.topic_id)
        return topic is None or topic.partitions[target.number].leader != NO_LEADER

    def check(self, target: PartitionKey, messages: Sequence[Parked]) -> None:
        """Rule 4: raise unless these messages can wait for this target."""
        topic = self._image().topic_with_id(target.topic_id)
        refuse_internal(topic.name)
        if topic.is_view:
            raise ReadOnlyTopic(f"topic {topic.name!r} is a view of {topic.config[VIEW_OF]!r}: send to that topic")
        config = self._partitions.effective(topic)
        for message in messages:
            check(message)
            if (size := _size(message)) > config.max_message_bytes:
                raise BatchTooLarge(
                    f"a message of {size} bytes for {topic.name} is above max.message.bytes, {config.max_message_bytes}"
                )
            if config.compacted and message.key is None:
                raise InvalidRecord(f"{topic.name} is compacted: every message needs a key")

    # --- asked by others

    async def _park_here(self, request: Park) -> WhenDue:
        target = PartitionKey(TopicId(request.topic_id), request.partition)
        self.check(target, request.messages)
        topic = self._image().topic(SCHEDULE)  # it may be quite new, and not known here yet
        here = None if topic is None else self._here.get(shard_of(target, len(topic.partitions)))
        if here is None or here.shard is None:
            raise NotLeader(f"the schedule of {target} is not kept by this broker: look for its leader")
        return WhenDue(await here.shard.park(target, request.messages))

    async def _change_here(self, request: CancelHere) -> ChangedHere:
        found, failures = [], []
        for id in request.ids:
            is_found, failure = False, None
            for shard in self:
                try:
                    changed = shard.cancel(id) if request.due_ms is None else shard.move(id, request.due_ms)
                    is_found = await changed or is_found
                except RunnelError as error:
                    failure = failure_of(error)
            found.append(is_found)
            failures.append(failure)
        return ChangedHere(found, failures)

    async def _first_here(self, request: FirstHere) -> WaitingRows:
        rows = []
        for shard in self:
            rows += await shard.first(
                _wanted(request.topic_id), request.from_ms, request.after_id, request.messages_max
            )
        rows.sort(key=lambda row: (row.due_ms, row.id))
        return _told(rows[: request.messages_max])

    async def _named_here(self, request: NamedHere) -> WaitingRows:
        return _told([row for shard in self for row in await shard.named(request.id)])

    async def _count_here(self, request: CountHere) -> PendingCount:
        counts = [await shard.count(_wanted(request.topic_id)) for shard in self]
        first = min((due for _, due in counts if due is not None), default=-1)
        return PendingCount(sum(count for count, _ in counts), first)


def _told(rows: Sequence[Row]) -> WaitingRows:
    return WaitingRows(
        [WaitingRow(row.target.topic_id, row.target.number, row.id, row.due_ms, row.body) for row in rows]
    )


def _wanted(topic_id: object) -> Callable[[PartitionKey], bool]:
    return lambda target: topic_id is None or target.topic_id == topic_id


def shard_of(target: PartitionKey, shards: int) -> int:
    """Stable for ever: the place of what waits depends on it."""
    return int(crc32c(target.topic_id.bytes + target.number.to_bytes(4, "big"))) % shards


def _size(message: Parked) -> int:
    size = len(message.key or b"") + len(message.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in message.headers)
