"""One replica's log as the model has it: entries in a list, with the real epochs and the real producers.

Rule 1: what is appended survives the process; what is synced survives the power.
Rule 2: epochs and producers are functions of the log: whatever cuts it rebuilds them.
"""

from typing import Final, NamedTuple

from runnel.log.epochs import Epochs
from runnel.log.producers import Duplicate, Producers
from runnel.model.ids import Epoch, Offset
from runnel.record.batch import BatchHeader


class Entry(NamedTuple):
    """One batch of one record."""

    epoch: int
    value: int
    producer: int  # -1: not idempotent
    sequence: int


LOST: Final = Entry(-1, -1, -1, -1)  # below the start of the log, where nobody reads


def header(epoch: int, producer: int, sequence: int, offset: int) -> BatchHeader:
    return BatchHeader(offset, 0, epoch, 2, 0, 0, 0, 0, 0, producer, 0, sequence, 1)


class ModelLog:
    """Appended, synced, cut."""

    __slots__ = ("cuts", "entries", "epochs", "producers", "start", "synced", "syncs", "verified")

    def __init__(self, syncs: bool) -> None:
        self.entries: list[Entry] = []
        self.start = 0
        self.cuts = 0  # a sync that began before the last cut says nothing about what came after
        self.synced = 0
        self.syncs = syncs  # flush mode commit: held is what is synced
        self.verified = 0  # up to here it was compared with what is committed; the invariants' own
        self.epochs = Epochs(lambda: len(self.entries))
        self.producers = Producers()

    @property
    def start_offset(self) -> Offset:
        return Offset(self.start)

    @property
    def end_offset(self) -> Offset:
        return Offset(len(self.entries))

    @property
    def held_offset(self) -> Offset:
        """What the flush mode has made durable."""
        return Offset(self.synced if self.syncs else len(self.entries))

    @property
    def last_epoch(self) -> Epoch:
        return self.epochs.latest

    def check(self, producer: int, sequence: int) -> Duplicate | None:
        """What the real producer state says of a batch; raises what it raises."""
        return self.producers.check(header(0, producer, sequence, 0))

    def append(self, entry: Entry) -> None:
        offset = len(self.entries)
        self.epochs.note(entry.epoch, offset)
        self.entries.append(entry)
        if entry.producer >= 0:
            self.producers.record(header(entry.epoch, entry.producer, entry.sequence, offset), offset, 0)
            self.producers.settle()

    def sync(self, end: int, cuts: int) -> None:
        """A sync that began when the log ended at `end` is done."""
        if cuts == self.cuts:
            self.synced = max(self.synced, end)

    def truncate(self, end: int) -> None:
        """Cut, durably."""
        self.cuts += 1
        del self.entries[end:]
        self.start = min(self.start, end)
        self.synced = min(self.synced, end)
        self.verified = min(self.verified, end)
        self.epochs.truncate(end)
        self.rebuild()

    def begin_anew(self, offset: int) -> None:
        self.cuts += 1
        self.entries[:] = [LOST] * offset
        self.start = self.synced = self.verified = offset
        self.epochs = Epochs(lambda: len(self.entries))
        self.rebuild()

    def advance_start(self, offset: int) -> None:
        """Retention: what lies below is read no more. The producers remember it."""
        self.start = max(self.start, offset)
        self.epochs.trim(self.start)

    def rebuild(self) -> None:
        self.producers = self.replay()

    def replay(self) -> Producers:
        """The producers as the log alone tells them."""
        producers = Producers()
        for offset, (epoch, _, producer, sequence) in enumerate(self.entries):
            if producer >= 0:
                producers.record(header(epoch, producer, sequence, offset), offset, 0)
        producers.settle()
        return producers

    def power_loss(self, keep: int) -> None:
        """Of what was not synced, `keep` entries happened to reach the disk."""
        self.truncate(min(len(self.entries), self.synced + keep))
        self.synced = len(self.entries)

    def wipe(self) -> None:
        self.begin_anew(0)
