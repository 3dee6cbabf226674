"""Views: topics that show those messages of another topic, their source, that pass a filter.

Rule 1: a view has no data. Its partitions, leaders, offsets and epochs are those of its source; what does not pass is
        missing, as after compaction.
Rule 2: one read is bounded in bytes and in time. Where it ends before the end of the source, it says how far it came,
        so that the reader goes on from there even if nothing passed.
Rule 3: a stretch up to the end in which nothing passes is looked at once, however many readers wait at it. It is
        remembered within a leader epoch and for one filter.
Rule 4: who has read all that passes is at the end, by all that it is told: there is no lag where nothing is to come. An
        end that was told to a reader is never taken back.
Rule 5: messages of aborted transactions are taken out here for who wants none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from runnel.broker.fetch import Look, Shown, read_committed
from runnel.broker.partitions import Partitions
from runnel.broker.thinning import Thinning, passed_over
from runnel.cluster.image import VIEW_FILTER, Change, Image, Topic
from runnel.log.log import AbortedTransaction
from runnel.model.errors import InvalidFilter
from runnel.model.ids import Epoch, Offset, TopicId
from runnel.model.limits import KIB, MIB
from runnel.model.seams import Disk
from runnel.record.batch import next_offset
from runnel.replica.partition import Partition
from runnel.route import filter as filters
from runnel.route.filter import Filter

CHUNK_BYTES: Final = 256 * KIB  # of the source, read at once
SCAN_BYTES: Final = 16 * MIB  # of the source, looked at in one read
TOLD_OFFSETS: Final = 10_000  # a reader whose place is so far behind what was looked at is told to go on


class Gap(NamedTuple):
    """From `start` up to `end`, nothing passes; readers were told to go on from `told`."""

    epoch: Epoch
    start: Offset
    end: Offset
    told: Offset


class View:
    """One view. `chosen` is its filter, or what is wrong with that."""

    def __init__(self, topic: Topic, disk: Disk) -> None:
        self.text = topic.config[VIEW_FILTER]
        self._disk = disk
        self._gaps: dict[tuple[int, bool], Gap] = {}
        self.chosen: Filter | InvalidFilter
        try:
            self.chosen = filters.compile(self.text)
        except InvalidFilter as problem:  # an older broker of the cluster may not know all that newer ones do
            self.chosen = problem

    def end(self, partition: Partition, *, committed_only: bool) -> Offset:
        """Behind the last message that passes, if that is known; else as far as the source can be read."""
        until = partition.readable_until(committed_only=committed_only)
        gap = self._gap(partition, committed_only)
        return until if gap is None or not gap.start <= until <= gap.end else min(until, gap.told)

    async def read(self, asked: Look, until_s: float) -> Shown:
        """What passes; looks further until `until_s` (of the loop's time), one piece at least."""
        if isinstance(self.chosen, InvalidFilter):
            raise self.chosen
        partition = asked.partition
        scan = _Scan(self, Thinning(self.chosen, partition.topic, partition.key.number, self._disk), asked)
        clock = asyncio.get_running_loop().time
        while await scan.step():
            if clock() >= until_s:
                break
        return scan.shown()

    def skipped(self, asked: Look) -> Offset:
        """Where to begin to look: behind the stretch where nothing passes, if it begins in there."""
        gap = self._gap(asked.partition, asked.committed_only)
        return gap.end if gap is not None and gap.start <= asked.offset <= gap.end else asked.offset

    def note_gap(self, asked: Look, start: Offset, end: Offset) -> None:
        """Nothing passes from `start` up to `end`, which was the end of the source."""
        gap = self._gap(asked.partition, asked.committed_only)
        told = start
        if gap is not None and gap.start <= start <= gap.end:
            start, told = gap.start, gap.told
        place = asked.partition.key.number, asked.committed_only
        self._gaps[place] = Gap(asked.partition.leader_epoch, start, end, told)

    def note_told(self, asked: Look, offset: Offset) -> None:
        """A reader was told to go on from here."""
        gap = self._gap(asked.partition, asked.committed_only)
        if gap is not None and gap.told < offset <= gap.end:
            self._gaps[asked.partition.key.number, asked.committed_only] = gap._replace(told=offset)

    def _gap(self, partition: Partition, committed_only: bool) -> Gap | None:
        gap = self._gaps.get((partition.key.number, committed_only))
        return gap if gap is not None and gap.epoch == partition.leader_epoch else None


class _Scan:
    """One read of a view."""

    def __init__(self, view: View, thinning: Thinning, asked: Look) -> None:
        self._view = view
        self._thinning = thinning
        self._asked = asked
        self._room = asked.bytes_max
        self._parts: list[bytes] = []
        self._passed = asked.offset  # behind the last batch of which something passed
        self._place = view.skipped(asked)  # looked at up to here
        self._looked_bytes = 0
        self._at_end = False

    async def step(self) -> bool:
        """Look at the next batches; whether there is more, and room for it."""
        data, aborted = await self._read()
        if not data:
            self._at_end = True
            return False
        for left in await self._thinning.thin(data, aborted, self._place):
            if len(left.data) > self._room and (self._parts or not self._asked.first):
                self._room = 0
                return False
            self._parts.append(left.data)
            self._room -= len(left.data)
            self._place = self._passed = Offset(left.end)
        self._place = Offset(next_offset(data))
        self._looked_bytes += len(data)
        return self._room > 0 and self._looked_bytes < SCAN_BYTES

    async def _read(self) -> tuple[bytes | memoryview, Sequence[AbortedTransaction] | None]:
        partition, place = self._asked.partition, self._place
        if self._asked.committed_only:
            return await read_committed(partition, place, CHUNK_BYTES)
        cached = partition.read_cached(place, CHUNK_BYTES)
        return (await partition.read(place, CHUNK_BYTES) if cached is None else cached), None

    def shown(self) -> Shown:
        """What to tell the reader."""
        asked = self._asked
        if self._at_end:
            self._view.note_gap(asked, self._passed, self._place)
        behind = self._place - self._passed
        if behind > 0 and (not self._at_end or behind >= TOLD_OFFSETS):
            last = Offset(self._place - 1)
            self._parts.append(passed_over(last, asked.partition.log.epochs.epoch_of(last)))
            self._passed = self._place
            self._view.note_told(asked, self._place)
        return Shown(b"".join(self._parts), self._passed if self._at_end else None, not self._at_end)


class Views:
    """All views of the cluster, by id."""

    def __init__(self, partitions: Partitions, disk: Disk) -> None:
        self._partitions = partitions
        self._disk = disk
        self._image: Image
        self._views: dict[TopicId, View] = {}

    def start(self, image: Image) -> None:
        self._image = image
        for topic in image.topics.values():
            self._follow(topic)

    def follow(self, change: Change) -> None:
        self._image = change.after
        for topic_id, topic in change.delta.topics.items():
            if topic is None:
                self._views.pop(topic_id, None)
            else:
                self._follow(topic)

    def _follow(self, topic: Topic) -> None:
        known = self._views.get(topic.id)
        if topic.is_view and (known is None or known.text != topic.config[VIEW_FILTER]):
            self._views[topic.id] = View(topic, self._disk)

    def get(self, topic: str | TopicId) -> View | None:
        """The view of this name or id, if it is one."""
        if not self._views:
            return None
        topic_id = self._image.names.get(topic) if isinstance(topic, str) else topic
        return None if topic_id is None else self._views.get(topic_id)

    def find(self, topic: str, number: int) -> tuple[Partition, View | None]:
        """The partition that a topic's messages are in, if this broker leads it; the view that shows some of them."""
        view = self.get(topic)
        if view is None:
            return self._partitions.find(topic, number), None
        source = self._image.source_of(self._image.topic_named(topic))
        return self._partitions.find_by_id(source.id, number), view

    def find_readable(self, topic: str | TopicId, number: int) -> tuple[Partition, View | None]:
        """The same, if this broker leads or follows it."""
        view = self.get(topic)
        if view is None:
            if isinstance(topic, str):
                return self._partitions.find_readable(topic, number), None
            return self._partitions.find_readable_by_id(topic, number), None
        image = self._image
        shown = image.topic_named(topic) if isinstance(topic, str) else image.topic_with_id(topic)
        return self._partitions.find_readable_by_id(image.source_of(shown).id, number), view


def filter_problem(config: Mapping[str, str]) -> InvalidFilter | None:
    """What is wrong with the filter of a view that is to be made or changed."""
    if VIEW_FILTER not in config:
        return None
    try:
        filters.compile(config[VIEW_FILTER])
    except InvalidFilter as problem:
        return problem
    return None
