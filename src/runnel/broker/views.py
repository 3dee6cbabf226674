"""Views: topics that show those messages of another topic, their source, that pass a filter.

Rule 1: a view has no data. Its partitions, leaders, offsets and epochs are those of its source; what does not pass is
        missing, as after compaction.
Rule 2: one read is bounded in bytes and in time. Where it ends before the end of the source, it says how far it came,
        so that the reader goes on from there even if nothing passed.
Rule 3: a stretch up to the end in which nothing passes is looked at once, however many readers wait at it. It is
        remembered within a leader epoch and for one filter.
Rule 4: who has read all that passes is at the end, by all that it is told: there is no lag where nothing is to come. An
        end that anybody was told can be reached: readers are led there even if nothing passes before it.
Rule 5: messages of aborted transactions are taken out here for who wants none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from runnel.broker.fetch import Look, Shown, read_committed
from runnel.broker.partitions import Partitions
from runnel.broker.thinning import Thinning, passed_over
from runnel.cluster.image import VIEW_FILTER, Change, Image, Topic
from runnel.log.log import AbortedTransaction
from runnel.model.errors import InvalidFilter, as_value
from runnel.model.ids import Epoch, Offset, TopicId
from runnel.model.limits import KIB, MIB
from runnel.record.batch import next_offset
from runnel.replica.partition import Partition
from runnel.route import filter as filters
from runnel.route.filter import Filter

CHUNK_BYTES: Final = 256 * KIB  # of the source, read at once
SCAN_BYTES: Final = 16 * MIB  # of the source, looked at in one read
BACK_OFFSETS: Final = 10_000  # looked at to find an end; readers that are further behind it are told to go on

_Side: TypeAlias = tuple[int, bool]  # of a partition: the number, and whether for committed messages alone


class Gap(NamedTuple):
    """From `start` up to `end`, nothing passes; `end` was the end of the source in that leader epoch."""

    epoch: Epoch
    start: Offset
    end: Offset


class View:
    """One view. `chosen` is its filter, or what is wrong with that."""

    def __init__(self, topic: Topic) -> None:
        self.text = topic.config[VIEW_FILTER]
        self._gaps: dict[_Side, Gap] = {}
        self._told: dict[int, Offset] = {}  # the latest end that anybody was told, whatever it reads
        self.chosen: Filter | InvalidFilter
        try:
            self.chosen = filters.compile(self.text)
        except InvalidFilter as problem:  # an older broker of the cluster may not know all that newer ones do
            self.chosen = as_value(problem)

    async def read(self, asked: Look, until_s: float) -> Shown:
        """What passes; looks further until `until_s` (of the loop's time), one piece at least."""
        scan = _Scan(self._thinning(asked.partition), asked, self._skipped(asked))
        await scan.run(until_s)
        if scan.at_end:
            self._note_gap(asked, scan.passed, scan.place)
        goal = self._goal(asked, scan)
        if goal > scan.passed:
            self._tell(asked.partition.key.number, goal)
        return Shown(scan.result(goal), goal if scan.at_end else None, not scan.at_end)

    async def end(self, partition: Partition, until_s: float, *, committed_only: bool) -> Offset:
        """Behind the last message that passes, if that can be known in time; else as far as the source can be read."""
        until = partition.readable_until(committed_only=committed_only)
        begin = Offset(max(partition.log.start_offset, until - BACK_OFFSETS))
        asked = Look(partition, begin, 0, committed_only, first=True)
        scan = _Scan(self._thinning(partition), asked, self._skipped(asked), keeps=False)
        await scan.run(until_s)
        end, number = partition.readable_until(committed_only=committed_only), partition.key.number
        if scan.at_end:
            gap = self._note_gap(asked, scan.passed, scan.place)
            end = max(gap.start, min(self._told.get(number, gap.start), end))
        self._tell(number, end)
        return end

    def _tell(self, number: int, end: Offset) -> None:
        """Somebody stands, or will stand, at this end of a partition."""
        self._told[number] = max(end, self._told.get(number, end))

    def _thinning(self, partition: Partition) -> Thinning:
        if isinstance(self.chosen, InvalidFilter):
            raise self.chosen
        return Thinning(self.chosen, partition)

    def _goal(self, asked: Look, scan: "_Scan") -> Offset:
        """Where the reader shall stand with this answer."""
        if not scan.at_end:
            return scan.place
        told = self._told.get(asked.partition.key.number, scan.passed)
        if scan.passed < told <= scan.place:  # somebody was told to expect messages up to there
            return told
        return scan.place if scan.place - scan.passed >= BACK_OFFSETS else scan.passed

    def _skipped(self, asked: Look) -> Offset:
        """Where to begin to look: behind the stretch where nothing passes, if it begins in there."""
        gap = self._gap(asked)
        return gap.end if gap is not None and gap.start <= asked.offset <= gap.end else asked.offset

    def _note_gap(self, asked: Look, start: Offset, end: Offset) -> Gap:
        """Nothing passes from `start` up to `end`, where the source ends."""
        gap = self._gap(asked)
        if gap is not None and gap.start <= start <= gap.end:
            start = gap.start
        gap = self._gaps[_side(asked)] = Gap(asked.partition.leader_epoch, start, end)
        return gap

    def _gap(self, asked: Look) -> Gap | None:
        gap = self._gaps.get(_side(asked))
        return gap if gap is not None and gap.epoch == asked.partition.leader_epoch else None


def _side(asked: Look) -> _Side:
    return asked.partition.key.number, asked.committed_only


class _Scan:
    """Looks for messages that pass, from a place on."""

    def __init__(self, thinning: Thinning, asked: Look, place: Offset, *, keeps: bool = True) -> None:
        self._thinning = thinning
        self._asked = asked
        self._keeps = keeps
        self._room = asked.bytes_max if keeps else SCAN_BYTES
        self._parts: list[bytes] = []
        self._looked_bytes = 0
        self.passed = asked.offset  # behind the last message that passed
        self.place = place  # looked at up to here
        self.at_end = False

    async def run(self, until_s: float) -> None:
        """Look until the end, until enough is found, or until the time is over."""
        clock = asyncio.get_running_loop().time
        while await self._step():
            if clock() >= until_s:
                return

    async def _step(self) -> bool:
        """Look at the next batches; whether there is more, and room for it."""
        data, aborted = await self._read()
        if not data:
            self.at_end = True
            return False
        for left in await self._thinning.thin(data, aborted, self.place):
            if self._keeps and not self._take(left.data):
                return False
            self.place = self.passed = Offset(left.end)
        self.place = Offset(next_offset(data))
        self._looked_bytes += len(data)
        return self._room > 0 and self._looked_bytes < SCAN_BYTES

    def _take(self, data: bytes) -> bool:
        if len(data) > self._room and (self._parts or not self._asked.first):
            return False
        self._parts.append(data)
        self._room -= len(data)
        return True

    async def _read(self) -> tuple[bytes | memoryview, Sequence[AbortedTransaction] | None]:
        partition, place = self._asked.partition, self.place
        if self._asked.committed_only:
            return await read_committed(partition, place, CHUNK_BYTES)
        cached = partition.read_cached(place, CHUNK_BYTES)
        return (await partition.read(place, CHUNK_BYTES) if cached is None else cached), None

    def result(self, goal: Offset) -> bytes:
        """What was found, and how to get to the goal."""
        if goal > self.passed:
            last = Offset(goal - 1)
            self._parts.append(passed_over(last, self._asked.partition.log.epochs.epoch_of(last)))
        return b"".join(self._parts)


class Views:
    """All views of the cluster, by id."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
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
            self._views[topic.id] = View(topic)

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
        return as_value(problem)
    return None
