"""Opening a log: what is on the disk, and what of it counts.

Rule 1: what lies below the recovery point was synced. It is not scanned, but must be there: segments that end early or
        are missing are damage.
Rule 2: above it a batch counts if it is whole, has its checksum, and continues offsets and epochs. The first that does
        not, and all that follows, is the torn tail: it is cut off; but what the mark says was synced is damage.
Rule 3: without a checkpoint nobody knows what was synced: only what nothing good follows is a torn tail; else it is
        damage.
Rule 4: damage stays where it is, is reported, and is not served. Its offsets are not used again.
Rule 5: index, epochs and producers are functions of the log: what is missing or does not fit is built again.
Rule 6: a file whose name is not ours is left alone.
Rule 7: what no sync is known of is written again before it is synced: after a sync that failed, the system may read it
        from memory, and say yes to the next sync, though the disk never got it. Without a checkpoint that is all of the
        log. (flush.mode os promises nothing.)
Rule 8: a snapshot of producers from above the end is removed, durably, before anything is appended: it would stand for
        other batches than those that it was taken of.
"""

from dataclasses import dataclass, field

import msgspec

from runnel.log import checkpoint as checkpoints
from runnel.log import mark as marks
from runnel.log.checkpoint import Checkpoint
from runnel.log.damage import known_damage, missing, rotten
from runnel.log.epochs import Epochs
from runnel.log.index import Index
from runnel.log.indexing import IndexWriter, fits, footer_of, load_or_build, unscanned
from runnel.log.layout import (
    CLEANED,
    DAMAGED,
    INDEX,
    LOG,
    PRODUCERS,
    SWAP,
    TRANSACTIONS,
    is_our_tmp,
    numbered,
    offsets_of,
    ranged,
    ranges_of,
)
from runnel.log.outcomes import Extent, outcomes_at_end, save_or_leave
from runnel.log.outcomes import load_or_build as load_or_build_outcomes
from runnel.log.producers import Producers
from runnel.log.scan import find_hole, marker_at, misplaced, walk
from runnel.log.segment import Hole, Segment
from runnel.log.snapshots import drop_snapshots, newest_snapshot, replay
from runnel.log.transactions import Aborted
from runnel.model.errors import Corruption
from runnel.model.ids import Offset
from runnel.model.seams import Disk, File
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record.batch import BatchHeader


@dataclass(slots=True)
class Recovered:
    """A log as it was found."""

    segments: list[Segment]
    start_offset: Offset
    end_offset: Offset
    cleaned_offset: Offset
    epochs: list[tuple[int, int]]
    producers: Producers
    known: bool  # there was a checkpoint
    scanned: bool = False  # the last stop was not clean
    cuts: int = 0
    fresh: bool = False  # there was nothing at all
    damage: list[Corruption] = field(default_factory=list)
    file: File | None = None  # of a new log, still open: somebody is about to write to it


def recover(disk: Disk, folder: str, config: TopicConfig, now_ms: int) -> Recovered:
    """Open what is in the folder, repairing what a crash left. Blocks: call it off the loop."""
    disk.make_dir(folder)
    names = finish_swaps(disk, folder, disk.list(folder))
    for name in filter(is_our_tmp, names):
        disk.remove(f"{folder}/{name}")
    known = checkpoints.load(disk, folder)
    if known is None and not names:
        return _new(disk, folder, now_ms)
    if known is not None and known.anew:
        known = _begin(disk, folder, names, known, now_ms)
        names = disk.list(folder)
    return _Recovery(disk, folder, names, known, config, now_ms).run()


def _new(disk: Disk, folder: str, now_ms: int) -> Recovered:
    """A log that begins. Its segment and its checkpoint are new names in one folder: one sync keeps both."""
    segment = Segment(folder, 0, 0, now_ms, Index())
    nothing = Checkpoint(
        start_offset=0, recovery_offset=0, segment=0, position=0, created_ms=now_ms, snapshot=False,
        cleaned_offset=0, index=Index().mark(), epochs=[],
    )  # fmt: skip
    found = Recovered([segment], Offset(0), Offset(0), Offset(0), [], Producers(), known=True, fresh=True)
    found.file = file = disk.open(segment.log_path, create=True)
    try:
        checkpoints.sync(file)
        try:
            checkpoints.save(disk, folder, nothing)
        except OSError:  # it can do without, as ever
            found.known = False
            checkpoints.sync_dir(disk, folder)
    except BaseException:
        file.close()
        raise
    return found


def _begin(disk: Disk, folder: str, names: list[str], decided: Checkpoint, now_ms: int) -> Checkpoint:
    """Let the log begin where it was decided; the decision is taken off before anything can be appended."""
    for suffix in (INDEX, TRANSACTIONS, PRODUCERS, LOG):
        for offset in reversed(offsets_of(names, suffix)):
            path = f"{folder}/{numbered(offset, suffix)}"
            if suffix == LOG and decided.anew == "aside" and _size(disk, path):
                disk.rename(path, f"{folder}/{numbered(offset, DAMAGED)}")
            else:
                disk.remove(path)
    checkpoints.sync_dir(disk, folder)
    _, file = create_segment(disk, folder, decided.start_offset, now_ms)
    file.close()
    done = msgspec.structs.replace(decided, anew="", created_ms=now_ms)
    checkpoints.save(disk, folder, done)
    return done


def finish_swaps(disk: Disk, folder: str, names: list[str]) -> list[str]:
    """Complete what compaction had decided, drop what it had not; the names after that."""
    unfinished = ranges_of(names, CLEANED)
    swaps = ranges_of(names, SWAP)
    for base, end in unfinished:
        disk.remove(f"{folder}/{ranged(base, end, CLEANED)}")
    for base, end in swaps:
        finish_swap(disk, folder, base, end, offsets_of(names, LOG))
    return disk.list(folder) if unfinished or swaps else names


def finish_swap(disk: Disk, folder: str, base: int, end: int, bases: list[Offset]) -> None:
    """Let the one cleaned segment stand for those of [base, end). May be done again after a crash at any point."""
    for old in bases:
        if base <= old < end:
            remove_if_there(disk, f"{folder}/{numbered(old, INDEX)}")
            remove_if_there(disk, f"{folder}/{numbered(old, TRANSACTIONS)}")
            if old != base:
                remove_if_there(disk, f"{folder}/{numbered(old, LOG)}")
    checkpoints.sync_dir(disk, folder)
    disk.rename(f"{folder}/{ranged(base, end, SWAP)}", f"{folder}/{numbered(base, LOG)}")
    checkpoints.sync_dir(disk, folder)


def remove_if_there(disk: Disk, path: str) -> None:
    if disk.exists(path):
        disk.remove(path)


def _size(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


def create_segment(disk: Disk, folder: str, base_offset: int, now_ms: int) -> tuple[Segment, File]:
    """A new, empty segment that survives a power loss: file synced, then folder synced."""
    segment = Segment(folder, base_offset, 0, now_ms, Index())
    file = disk.open(segment.log_path, create=True)
    try:
        file.truncate(0)
        checkpoints.sync(file)
        checkpoints.sync_dir(disk, folder)
    except BaseException:
        file.close()
        raise
    return segment, file


class _Recovery:
    """One opening of one folder."""

    def __init__(
        self, disk: Disk, folder: str, names: list[str], known: Checkpoint | None, config: TopicConfig, now_ms: int
    ) -> None:  # fmt: skip
        self.disk = disk
        self.folder = folder
        self.interval = config.index_interval_bytes
        self.gapless = not config.compacts
        self.promises = config.flush_mode is not FlushMode.OS
        self.now_ms = now_ms
        self.bases = offsets_of(names, LOG)
        self.snapshots = offsets_of(names, PRODUCERS)
        self.known = known
        self.start = Offset(known.start_offset if known else self.bases[0] if self.bases else 0)
        self.synced = Offset(known.recovery_offset if known else 0)
        self.mark = marks.load(disk, folder, known.cuts) if known else None
        if self.mark is not None:
            self.synced = Offset(max(self.synced, self.mark.offset))
        self.trusted = False  # everything below the recovery point is there
        self.unsynced: list[tuple[int, int]] = []  # of the segment that is scanned: good, and no sync is known of it
        self.scanned = False
        self.damage = known_damage(folder, known) if known else []
        self.end = Offset(0)
        self.epochs = Epochs(lambda: self.end)
        self.producers = Producers()
        self.segments: list[Segment] = []

    def run(self) -> Recovered:
        known, start = self.known, self.start
        fresh = known is None and not self.bases
        self._drop_trimmed(start)
        self._take_all(self._resume() or self._start_over(start))
        self._keep_offsets_unique(start)
        if self.segments[0].base_offset > start:
            self._lost(None, start, self.segments[0].base_offset)
        for segment in self.segments[:-1]:
            segment.index = None  # sealed: its file is checked when it is needed
        drop_snapshots(self.disk, self.folder, self.end)
        return Recovered(
            self.segments, start, self.end, Offset(known.cleaned_offset if known else 0), self.epochs.entries(),
            self.producers, known is not None, self.scanned, known.cuts if known else 0, fresh, self.damage,
        )  # fmt: skip

    def _take_all(self, rest: list[tuple[Segment, int]]) -> None:
        """Go through the segments that may have unsynced batches; the first that does not continue ends the log."""
        for number, (segment, position) in enumerate(rest):
            if number and self.trusted and segment.base_offset != self.end:
                if self.end >= self.synced:
                    break
                self._lost(self.segments[-1], self.end, segment.base_offset)
            if number:
                self._leave(self.segments[-1], segment.base_offset)
            if self._ends_in(segment, position, number + 1 == len(rest)):
                break
        self._drop([segment for segment, _ in rest if segment not in self.segments])

    def _lost(self, segment: Segment | None, first: int, end: int) -> None:
        """Something that was synced is not there, behind this segment or before all."""
        if segment is not None:
            segment.holes += (Hole(segment.size, segment.size, first, end),)
        self._note(missing(self.folder, segment, first, end))

    def _note(self, one: Corruption) -> None:
        if not any(
            known.first_offset <= one.first_offset and one.next_offset <= known.next_offset for known in self.damage
        ):
            self.damage.append(one)
            self.scanned = True

    def _drop_trimmed(self, start: Offset) -> None:
        """Remove the segments below the start: a crash kept retention from doing so."""
        while len(self.bases) > 1 and self.bases[1] <= start:
            self._drop([self._segment(self.bases.pop(0))])

    def _drop(self, segments: list[Segment]) -> None:
        """Remove segments, durably: one that came back would stand beside those that took its place."""
        for segment in reversed(segments):
            for path in segment.paths_beside:
                remove_if_there(self.disk, path)
            self.disk.remove(segment.log_path)
        if segments:
            checkpoints.sync_dir(self.disk, self.folder)

    def _resume(self) -> list[tuple[Segment, int]]:
        """Take what was synced as it is; the segments that may have unsynced batches, and where these begin."""
        known = self.known
        if known is None or known.segment not in self.bases:
            return []
        at = self.bases.index(Offset(known.segment))
        segment = self._segment(self.bases[at])
        if segment.size < known.position:
            return []
        segment.created_ms = known.created_ms
        segment.index = Index(known.index, next_at=known.position)
        self.segments = [self._segment(base) for base in self.bases[:at]]
        self._check_sealed()
        self.epochs = Epochs(lambda: self.end, list(known.epochs))
        self.epochs.truncate(known.recovery_offset)
        self.end = Offset(known.recovery_offset)
        self.trusted = True
        if known.snapshot:
            older = [snapshot for snapshot in self.snapshots if snapshot <= self.end]
            self._resume_producers(older, [*self.segments, segment], known.position)
        return [(segment, known.position), *((self._segment(base), 0) for base in self.bases[at + 1 :])]

    def _resume_producers(self, snapshots: list[Offset], synced: list[Segment], position: int) -> None:
        """Know the producers again as of the recovery point, and what was aborted in the segment that has it."""
        begin, self.producers = newest_snapshot(self.disk, self.folder, snapshots, synced)
        replay(self.disk, synced, self.producers, begin, self.end, self.now_ms)
        built = begin != self.end
        transactions = self.producers.transactions
        if transactions.since < self.end:
            ends = [*(segment.base_offset for segment in synced[1:]), self.end]
            extents = [Extent(segment, segment.size, end) for segment, end in zip(synced, ends, strict=True)]
            extents[-1] = extents[-1]._replace(size=position)
            found = load_or_build_outcomes(self.disk, extents, transactions.since)
            built = built or len(found) > 1
            transactions.aborted = found[-1].aborted
        self.scanned = self.scanned or built  # so that it is written down

    def _leave(self, segment: Segment, next_offset: int) -> None:
        """The log goes on in another segment."""
        transactions = self.producers.transactions
        if transactions.since < next_offset:
            extent = Extent(segment, segment.size, next_offset)
            save_or_leave(self.disk, extent, outcomes_at_end(transactions))
        transactions.aborted = Aborted()

    def _check_sealed(self) -> None:
        """See whether the segments that are not scanned are there, and as long as they were."""
        for segment, next_base in zip(self.segments, self.bases[1:], strict=False):
            if not fits(footer_of(self.disk, segment), segment, next_base):
                segment.index, holes = load_or_build(self.disk, segment, next_base, self.interval, gapless=self.gapless)
                self._take_holes(segment, holes)

    def _take_holes(self, segment: Segment, holes: tuple[Hole, ...]) -> None:
        segment.holes += holes
        for hole in holes:
            self._note(rotten(segment, hole))

    def _start_over(self, start: Offset) -> list[tuple[Segment, int]]:
        self.end = self.bases[0] if self.bases else max(start, self.synced)
        return [(self._segment(base), 0) for base in self.bases]

    def _segment(self, base: Offset) -> Segment:
        segment = Segment(self.folder, base, 0, self.now_ms, None)
        segment.size = _size(self.disk, segment.log_path)
        return segment

    def _ends_in(self, segment: Segment, position: int, is_last: bool) -> bool:
        """Scan the rest of one segment; whether the log ends there, with a torn tail that was cut off."""
        self.segments.append(segment)
        self.end = max(self.end, segment.base_offset)
        index = segment.index = segment.index or Index()
        if position == segment.size and is_last:
            return False
        self.scanned = True
        footer = footer_of(self.disk, segment)
        file = self.disk.open(segment.log_path)
        writer = IndexWriter(self.disk, segment.index_path, segment.base_offset, index)
        try:
            good = self._scan(file, segment, position, is_last, writer)
            torn = good < segment.size
            if torn:
                file.truncate(good)
                segment.size = good
                remove_if_there(self.disk, segment.transactions_path)
                checkpoints.sync_dir(self.disk, self.folder)
            if self.promises:
                self._write_again(file)
            checkpoints.sync(file)
        finally:
            file.close()
        if not is_last and not self.trusted:
            gapless = self.gapless and not index.gaps
            hole = unscanned(footer, segment, self.end, self._bound(segment), gapless=gapless)
            if hole is not None:
                self._take_holes(segment, (hole,))
                self.end = Offset(hole.next_offset)
        writer.finish(segment, None if is_last or torn else self._bound(segment))
        index.next_at = segment.size
        return torn

    def _scan(self, file: File, segment: Segment, position: int, is_last: bool, writer: IndexWriter) -> int:
        """Up to where the segment is good, rot apart."""
        bound, unsynced_at, self.unsynced = self._bound(segment), position, []
        while True:
            for at, header in walk(file, position, segment.size):
                if not self._may_follow(file, segment, at, header, bound):
                    break
                writer.note(header, at, self.end, self.interval)
                if header.leader_epoch != self.epochs.latest:
                    self.epochs.note(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0:
                    self.producers.replay(header, self.now_ms, marker_at(file, at, header))
                self.end = Offset(header.base_offset + header.last_offset_delta + 1)
                position = at + header.size
                if self.end <= self.synced:
                    unsynced_at = position
            self.unsynced.append((unsynced_at, position))
            if position == segment.size or (self.trusted and self.end >= self.synced):
                return position
            hole = find_hole(file, position, segment.size, self.end, bound)
            if hole.end_position == segment.size and is_last:
                if self.end >= self.synced:
                    return position
                hole = hole._replace(next_offset=self.synced)
            self._take_holes(segment, (hole,))
            position = unsynced_at = hole.end_position
            self.end = Offset(hole.next_offset)
            if position == segment.size:
                return position

    def _write_again(self, file: File) -> None:
        """Rule 7."""
        for position, end in self.unsynced:
            checkpoints.write_again(file, position, end)

    def _may_follow(self, file: File, segment: Segment, at: int, header: BatchHeader, bound: int) -> bool:
        """Whether a whole batch continues the log: its offset and epoch lie outside its checksum."""
        base, last, end = header.base_offset, header.last_offset, self.end
        if base < end or last >= bound or header.leader_epoch < self.epochs.latest:
            return False
        if self.mark is not None and not self.mark.may_have(header.leader_epoch, last, end, self.start):
            return False
        return base == end or not misplaced(file.read, last, end, at + header.size, segment.size)

    def _bound(self, segment: Segment) -> int:
        """No offset of this segment can be as high."""
        higher = [base for base in self.bases if base > segment.base_offset]
        return higher[0] if higher else max(self.synced, self.end + 2**31)

    def _keep_offsets_unique(self, start: Offset) -> None:
        """If the end is not where it was, go on after it: an offset means one message for ever."""
        due = max(self.synced, start)
        if self.segments and self.end >= due:
            return
        begin = self.end if self.segments else start
        if self.synced > max(begin, start):
            self._lost(self.segments[-1] if self.segments else None, begin, due)
        self.end = max(self.end, due)
        if self.segments:
            self._leave(self.segments[-1], self.end)
        segment, file = create_segment(self.disk, self.folder, self.end, self.now_ms)
        file.close()
        self.segments.append(segment)
        self.scanned = True
