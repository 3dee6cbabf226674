"""What is known to be rotten or missing in a log, by offsets.

Rule 1: no read reaches into known damage, nor across it: it is never taken for a gap that compaction left.
Rule 2: it is kept in the checkpoint, so a restart does not forget it. Truncation and a new start end what they remove.
Rule 3: nothing of it is repaired in place: a replica cuts the log before it, and fetches the rest from its leader.
"""

from collections.abc import Callable, Iterator, Sequence

from runnel.log.checkpoint import Checkpoint
from runnel.log.layout import LOG, numbered
from runnel.log.segment import Hole, Segment
from runnel.model.errors import Corruption
from runnel.model.ids import Offset


def rotten(segment: Segment, hole: Hole) -> Corruption:
    """What to say of a hole in a segment."""
    gone = hole.position == hole.end_position
    return described(segment.log_path, hole.position, hole.first_offset, hole.next_offset, gone=gone)


def described(path: str, position: int, first: int, end: int, *, gone: bool) -> Corruption:
    fate = "were synced and are missing" if gone else "are not what was written"
    what = f"offsets {first} to {end - 1} {fate}"
    return Corruption(what, path=path, position=position, first_offset=first, next_offset=end)


def entries_of(found: Sequence[Corruption]) -> list[tuple[int, int, str, int]]:
    """(first offset, next offset, file name, byte), as a checkpoint keeps them."""
    return [(one.first_offset, one.next_offset, one.path.rpartition("/")[2], one.position) for one in found]


def known_damage(folder: str, known: Checkpoint) -> list[Corruption]:
    """What a checkpoint knew between the start and its recovery point: what lies beyond is scanned again."""
    return [
        described(
            f"{folder}/{name}", position, max(first, known.start_offset), min(end, known.recovery_offset), gone=False
        )
        for first, end, name, position in known.damage
        if first < known.recovery_offset and known.start_offset < end
    ]


def missing(folder: str, segment: Segment | None, first: int, end: int) -> Corruption:
    """Offsets of which not even rotten bytes are there."""
    path, position = (segment.log_path, segment.size) if segment else (f"{folder}/{numbered(first, LOG)}", 0)
    return described(path, position, first, end, gone=True)


class Damage:
    """The known damage of one log; mostly there is none."""

    __slots__ = ("_found", "_on_found")

    def __init__(self, on_found: Callable[[Corruption], None]) -> None:
        self._on_found = on_found
        self._found: list[Corruption] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[Corruption]:
        return iter(self._found)

    def restore(self, found: Sequence[Corruption]) -> None:
        """What the opening found, or the checkpoint knew."""
        self._found = sorted(found, key=lambda one: one.first_offset)

    def note(self, one: Corruption) -> None:
        """Something is found to be rotten; whoever wants to know is told, once."""
        if not any(known.first_offset <= one.first_offset and one.next_offset <= known.next_offset for known in self):
            self._found.append(one)
            self._found.sort(key=lambda known: known.first_offset)
            self._on_found(one)

    @property
    def first_offset(self) -> Offset | None:
        return Offset(self._found[0].first_offset) if self._found else None

    def bound(self, offset: int, upto: int) -> int:
        """How far a read from `offset` may go; raises the Corruption that `offset` lies in."""
        for known in self._found:
            if known.first_offset <= offset < known.next_offset:
                raise known
            if offset < known.first_offset < upto:
                upto = known.first_offset
        return upto

    def touches(self, first: int, end: int) -> bool:
        return any(known.first_offset < end and first < known.next_offset for known in self._found)

    def truncate(self, end_offset: int) -> None:
        """The log ends at `end_offset` now."""
        self._found = [
            known if known.next_offset <= end_offset else _clipped(known, known.first_offset, end_offset)
            for known in self._found
            if known.first_offset < end_offset
        ]

    def trim(self, start_offset: int) -> None:
        """The log starts at `start_offset` now."""
        self._found = [
            known if start_offset <= known.first_offset else _clipped(known, start_offset, known.next_offset)
            for known in self._found
            if start_offset < known.next_offset
        ]


def _clipped(known: Corruption, first: int, end: int) -> Corruption:
    return described(known.path, known.position, first, end, gone=False)
