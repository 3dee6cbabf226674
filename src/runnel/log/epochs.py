"""Which leader epoch wrote which offsets.

Rule 1: epochs and their first offsets only rise.
Rule 2: the cache is a function of the log and follows it at both ends: truncated with it, trimmed with its start.
"""

from bisect import bisect_right
from collections.abc import Callable

from runnel.model.ids import NO_EPOCH, NO_OFFSET, Epoch, Offset


class Epochs:
    """The leader epochs of one log, oldest first."""

    __slots__ = ("_entries", "_log_end", "latest")

    def __init__(self, log_end: Callable[[], int], entries: list[tuple[int, int]] | None = None) -> None:
        self._log_end = log_end
        self._entries = entries or []
        self.latest = Epoch(self._entries[-1][0]) if self._entries else NO_EPOCH

    def copy(self) -> "Epochs":
        """The same for work off the loop, while this one grows."""
        return Epochs(self._log_end, self.entries())

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset), oldest first."""
        return list(self._entries)

    def note(self, epoch: int, offset: int) -> None:
        """A batch of `epoch` begins at `offset`, which is the end of the log."""
        if epoch > self.latest:
            self._entries.append((epoch, offset))
            self.latest = Epoch(epoch)

    def epoch_of(self, offset: int) -> Epoch:
        """The epoch that wrote `offset`."""
        return Epoch(self.entry_of(offset)[0])

    def entry_of(self, offset: int) -> tuple[int, int]:
        """The epoch that wrote `offset`, and its first offset; -1 and -1 if nothing is known of it."""
        entries = self._entries
        if entries and offset >= entries[-1][1]:
            return entries[-1]
        at = bisect_right(entries, offset, key=lambda entry: entry[1])
        return entries[at - 1] if at else (NO_EPOCH, NO_OFFSET)

    def may_have(self, epoch: int, offset: int) -> bool:
        """Whether a batch that has `offset` can be of this epoch; of offsets that were trimmed nothing is known."""
        entries = self._entries
        if not entries:
            return True
        newest, begin = entries[-1]
        return epoch == newest if offset >= begin else self.epoch_of(offset) in (epoch, NO_EPOCH)

    def end_offset(self, epoch: int) -> tuple[Epoch, Offset]:
        """The largest epoch not above `epoch`, and the first offset after it.

        The answer to OffsetsForLeaderEpoch (KIP-101, KIP-279); -1 and -1 for an epoch this log has not seen yet.
        """
        if epoch < 0:
            return NO_EPOCH, NO_OFFSET
        at = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        if at == len(self._entries):
            known = bool(self._entries) and self._entries[-1][0] == epoch
            return (Epoch(epoch), Offset(self._log_end())) if known else (NO_EPOCH, NO_OFFSET)
        found = Epoch(self._entries[at - 1][0]) if at else Epoch(epoch)
        return found, Offset(self._entries[at][1])

    def forget_above(self, epoch: int) -> Offset | None:
        """There were no epochs above this one; where the first that was believed in began, None if there is none."""
        first = None
        while self._entries and self._entries[-1][0] > epoch:
            first = Offset(self._entries.pop()[1])
        self.latest = Epoch(self._entries[-1][0]) if self._entries else NO_EPOCH
        return first

    def truncate(self, end_offset: int) -> None:
        """The log ends at `end_offset` now: epochs that began there or later never were."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()
        self.latest = Epoch(self._entries[-1][0]) if self._entries else NO_EPOCH

    def trim(self, start_offset: int) -> None:
        """The log starts at `start_offset` now: the epoch that spans it begins there."""
        keep = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if keep:
            self._entries[:keep] = [(self._entries[keep - 1][0], max(start_offset, self._entries[keep - 1][1]))]
