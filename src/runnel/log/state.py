"""What a log knows of itself. The loop alone changes it; work off the loop gets copies of what it needs."""

from bisect import bisect_right

from runnel.log.damage import Damage
from runnel.log.epochs import Epochs
from runnel.log.outcomes import Kept
from runnel.log.recovery import Recovered
from runnel.log.segment import Segment
from runnel.model.ids import Offset


class State:
    """Segments in order of offsets, the last of which is written to, and how far everything is."""

    __slots__ = (
        "active", "cleaned_offset", "cuts", "damage", "end_offset", "epochs", "folder", "lost", "outcomes", "producers",
        "sealed_bytes", "segments", "start_offset", "synced_offset",
    )  # fmt: skip

    def __init__(self, folder: str, found: Recovered, damage: Damage) -> None:
        self.folder = folder
        self.damage = damage
        self.take(found)

    def take(self, found: Recovered) -> None:
        """Become what was found on the disk."""
        self.lost = False  # a change of files failed half-way: what the disk holds is not known yet
        self.start_offset = found.start_offset
        self.end_offset = found.end_offset
        self.synced_offset = found.end_offset
        self.cleaned_offset = found.cleaned_offset  # compaction has seen what is below
        self.epochs = Epochs(lambda: self.end_offset, found.epochs)
        self.producers = found.producers
        self.outcomes = Kept()  # of sealed segments
        self.cuts = found.cuts
        self.damage.restore(found.damage)
        self.set_segments(found.segments)

    def set_segments(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.active = segments[-1]
        self.sealed_bytes = sum(segment.size for segment in segments[:-1])

    @property
    def size_bytes(self) -> int:
        return self.sealed_bytes + self.active.size

    def segment_of(self, offset: int) -> Segment:
        """The segment that has or had this offset."""
        if offset >= self.active.base_offset:
            return self.active
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return self.segments[max(at - 1, 0)]

    def end_of(self, segment: Segment) -> Offset:
        """Where the next segment begins, or will."""
        if segment is self.active:
            return self.end_offset
        at = bisect_right(self.segments, segment.base_offset, key=lambda other: other.base_offset)
        return self.segments[at].base_offset if at < len(self.segments) else self.end_offset
