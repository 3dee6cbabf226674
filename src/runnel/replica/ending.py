"""The end of a transaction in one partition, and who may still write to it: what its leader decides beside its log.

Both are decided when a batch gets its place in the log, so that what stood in line before it counts. That a marker is
of an older producer epoch, of an older coordinator, or was here before, the log itself knows (`log.producers`).

Rule 1: a batch belongs to the transaction that is open under its epoch, or opens one that its coordinator has just
        admitted. That counts only if no marker of its producer has come since before the coordinator was asked, and
        the partition was led in one epoch since then.
Rule 2: since transactions of version 2 a marker carries the epoch of the producer's next transaction (KIP-890). It
        ends lower epochs only: whatever is open in its own epoch is that next one. It voids no answer either: what
        comes late has an epoch that the log refuses, and the next transaction may be admitted before it comes.
Rule 3: a marker that has nothing left to do is done, and writes nothing: a coordinator that asks again must not be
        refused, or it would ask for ever (KAFKA-19999).
"""

from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from runnel.log.producers import Producer
from runnel.model.errors import InvalidTransactionState, RunnelError
from runnel.record.batch import BatchHeader

BUMPING: Final = 2  # since this version a transaction's end bumps its producer's epoch


class Ending(NamedTuple):
    """How a transaction ended, as its coordinator says."""

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int
    version: int = 1  # of the transaction: 2 if the epoch is higher than that of all that was written in it


class AlreadyEnded(RunnelError):
    """Rule 3: nothing is left to do."""


class Guard:
    """Stands for a question to a coordinator: its answer counts as long as the guard is valid."""

    __slots__ = ("__weakref__", "_admitted", "error")

    def __init__(self) -> None:
        self._admitted = -1
        self.error: RunnelError | None = None  # why it is valid no more

    @property
    def valid(self) -> bool:
        return self.error is None

    def admit(self, epoch: int) -> None:
        """The coordinator said that the transaction of this epoch may write here."""
        self._admitted = epoch

    def void(self, error: RunnelError) -> None:
        if self.error is None:
            self.error = error

    def admits(self, epoch: int) -> bool:
        return self._admitted == epoch


class Guards:
    """Those of one partition: one for a producer, for as long as anybody holds it."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: WeakValueDictionary[int, Guard] | None = None  # most partitions never need one

    def __len__(self) -> int:
        return 0 if self._guards is None else len(self._guards)

    def of(self, producer_id: int) -> Guard:
        if self._guards is None:
            self._guards = WeakValueDictionary()
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = Guard()
        return guard

    def void(self, producer_id: int, error: RunnelError) -> None:
        guard = None if self._guards is None else self._guards.pop(producer_id, None)
        if guard is not None:
            guard.void(error)

    def void_all(self, error: RunnelError) -> None:
        guards, self._guards = self._guards, None
        for guard in [] if guards is None else list(guards.values()):
            guard.void(error)


def is_open(known: Producer | None, header: BatchHeader) -> bool:
    """Whether a batch goes on with a transaction that is open."""
    return known is not None and known.txn_first_offset >= 0 and known.epoch == header.producer_epoch


def check_member(where: str, header: BatchHeader, guard: Guard | None, known: Producer | None) -> None:
    """Rule 1: raise unless a transactional batch may take its place now."""
    if is_open(known, header):
        return
    if guard is not None and guard.error is not None:
        raise guard.error
    if guard is None or not guard.admits(header.producer_epoch):
        raise InvalidTransactionState(
            f"no transaction of producer {header.producer_id}, epoch {header.producer_epoch}, is open in {where}:"
            " begin one, and add the partition to it"
        )


def is_late(ending: Ending, known: Producer | None) -> bool:
    """Rule 2: whether a marker has come here before, and the producer may have begun its next transaction."""
    return ending.version >= BUMPING and known is not None and known.epoch == ending.epoch


def check_marker(ending: Ending, known: Producer | None) -> None:
    """Raise unless a marker, which the log itself has nothing against, may take its place now."""
    if is_late(ending, known):
        raise AlreadyEnded(f"the transaction of producer {ending.producer_id} before epoch {ending.epoch} has ended")


def ended(ending: Ending) -> InvalidTransactionState:
    """Why a batch is refused whose transaction ended while its coordinator was asked."""
    return InvalidTransactionState(
        f"the transaction of producer {ending.producer_id}, epoch {ending.epoch}, ended before this batch came:"
        " begin another one"
    )
