"""How far the replicas of one partition have come, and what follows for readers and acknowledgements.

Rule 1: a replica holds what its flush mode made durable, nothing more.
Rule 2: the high watermark is what every in-sync replica holds, and never goes back.
"""

from collections.abc import Iterable

from runnel.model.ids import BrokerId, Offset


class Progress:
    """Held offsets of the replicas of a partition that this broker leads."""

    def __init__(self, in_sync: Iterable[BrokerId], high_watermark: Offset) -> None:
        self._held: dict[BrokerId, Offset] = dict.fromkeys(in_sync, high_watermark)
        self.high_watermark = high_watermark

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        return frozenset(self._held)

    def advance(self, replica: BrokerId, held: Offset) -> bool:
        """Note what a replica holds now; True if the high watermark moved."""
        if replica not in self._held:
            return False
        self._held[replica] = held
        lowest = min(self._held.values())
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True
