"""Fetch: read whole batches below the high watermark, and wait for more where there is too little.

Readers alone; what followers fetch is served by `followers`.

Rule 1: an error in one partition is answered at once, and costs the others nothing.
Rule 2: bytes are bounded by the request and by the broker; only the first batch may be larger than what was asked.
Rule 3: what is in the page cache is read on the loop, the rest off it.
Rule 4: who can read from followers reads below the follower's own high watermark, and is sent to a follower near it
        only if that is in sync and has what it asks for (KIP-392). A follower never says that an offset above is out of
        range: it may have heard nothing of its leader yet, and the reader would begin again at the start.
Rule 5: who asks for committed messages alone reads below the last stable offset, and is told which transactions in
        what it gets were aborted: their records are there, and are for the reader to leave out.
Rule 6: who reads through a lens (a view) may be shown nothing of much: it is answered when it can go on, and when it
        is known that there is nothing more.
Rule 7: what all readers are given together is bounded: a reader gets what is left of the budget of answers, 1 MiB at
        least.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from runnel.log.log import AbortedTransaction
from runnel.model.errors import (
    FencedEpoch,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RunnelError,
    UnknownEpoch,
    as_value,
)
from runnel.model.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset
from runnel.net.bounds import Bounds
from runnel.record.batch import next_offset
from runnel.replica.partition import Partition

WAIT_MS_MAX = 300_000  # a client that asks to wait longer is answered empty, and asks again
TURN = 200  # partitions that are read in one go: about a millisecond
LOOK_S = 0.25  # how long one request looks through lenses for what is to be seen

T = TypeVar("T")


class Look(NamedTuple):
    """What a lens is asked for."""

    partition: Partition
    offset: Offset
    bytes_max: int
    committed_only: bool
    first: bool  # what comes first may be larger than asked


class Shown(NamedTuple):
    """What is seen through a lens."""

    records: bytes
    end: Offset | None  # nothing more is to be seen from there on, as far as can be read; None: nobody looked
    goes_on: bool  # there is more to look at, at once


class Lens(Protocol):
    """Shows some of the messages of a partition."""

    async def read(self, asked: Look, until_s: float) -> Shown: ...


class Read(NamedTuple):
    """What one partition is asked for."""

    partition: Partition | RunnelError
    offset: Offset
    bytes_max: int
    leader_epoch: Epoch = NO_EPOCH
    last_epoch: Epoch = NO_EPOCH  # of the last batch the reader has: shows whether its log went another way
    leader_only: bool = False  # the reader does not know that followers can be read
    rack: str = ""  # where the reader is
    committed_only: bool = False  # nothing of transactions that are open
    lens: Lens | None = None


class Divergence(NamedTuple):
    """The reader's log left ours here (KIP-320): the last epoch we share and where it ends with us."""

    epoch: Epoch
    end_offset: Offset


class ReadResult(NamedTuple):
    """What one partition gave."""

    records: bytes | memoryview
    high_watermark: Offset
    start_offset: Offset
    last_stable_offset: Offset
    aborted: Sequence[AbortedTransaction] | None = None  # those that the records are of; None: nobody asked
    error: RunnelError | None = None
    divergence: Divergence | None = None
    read_from: BrokerId | None = None  # the replica to read from instead
    shown_end: Offset | None = None  # through a lens: the end that the reader is told instead of both others
    goes_on: bool = False  # there is more at once


NOTHING = ReadResult(b"", NO_OFFSET, NO_OFFSET, NO_OFFSET)


class Waiter(Protocol):
    """Whoever waits, and can be told that it is over."""

    def end(self) -> None: ...


class _Growth:
    """Waits until enough bytes have become readable in any of some partitions."""

    def __init__(self, missing_bytes: int) -> None:
        self._missing = missing_bytes
        self.enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grown(self, bytes_added: int) -> None:
        self._missing -= bytes_added
        if self._missing <= 0:
            self.end()

    def end(self) -> None:
        if not self.enough.done():
            self.enough.set_result(None)


class _End:
    """Waits for the end of a wait alone."""

    def __init__(self) -> None:
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.told.done():
            self.told.set_result(None)


class Waits:
    """What one client waits for. It ends with the client: nobody reads for the dead."""

    def __init__(self) -> None:
        self.over = False
        self._waiting: dict[Waiter, None] = {}

    def begin(self, waiter: Waiter) -> None:
        self._waiting[waiter] = None

    def done(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)

    def end(self) -> None:
        """Answer at once, now and from now on."""
        self.over = True
        for waiter in list(self._waiting):
            waiter.end()

    async def within(self, timeout_s: float, work: Coroutine[Any, Any, T]) -> T | None:
        """What some work gives; None if it takes longer than this, or than the client is there: it is cancelled."""
        task, end = asyncio.ensure_future(work), _End()
        self.begin(end)
        try:
            if not self.over:
                await asyncio.wait((task, end.told), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            self.done(end)
            task.cancel()
            await asyncio.wait((task,))


class Fetching:
    """The verb. `near` names the replica that a reader in a rack is better served by."""

    def __init__(
        self, bytes_max: int, near: Callable[[Partition, str, Offset], BrokerId | None] = lambda *_: None,
        bounds: Bounds | None = None,
    ) -> None:  # fmt: skip
        self._bytes_max = bytes_max
        self._bounds = bounds or Bounds()
        self._near = near
        self._all = Waits()

    async def fetch(
        self, reads: Sequence[Read], waits: Waits, *, bytes_min: int, bytes_max: int, wait_ms: int
    ) -> list[ReadResult]:
        """Read; where it is too little, wait until it is enough, but not longer than asked, nor than `waits`."""
        loop = asyncio.get_running_loop()
        bytes_max = min(bytes_max, self._bytes_max)
        deadline: float | None = None
        while True:
            results = await self._read_all(reads, bytes_max)
            missing = bytes_min - sum(len(result.records) for result in results)
            if missing <= 0 or not reads or any(_is_final(result) for result in results):
                return results
            if self._all.over or waits.over:
                return results
            if deadline is None:
                deadline = loop.time() + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000
            if (left_s := deadline - loop.time()) <= 0:
                return results
            await self._wait_for_growth(reads, results, waits, missing, left_s)

    def close(self) -> None:
        """Answer all who wait, at once."""
        self._all.end()

    async def _read_all(self, reads: Sequence[Read], bytes_max: int) -> list[ReadResult]:
        """Charged to the budget of answers meanwhile (rule 7); the connection charges what is not sent at once."""
        answers = self._bounds.answers
        wanted = min(bytes_max, sum([read.bytes_max for read in reads]))
        share = self._bounds.share_of_answers(wanted)
        if share < wanted:
            bytes_max = share
        answers.charge(share)
        try:
            results = []
            left = bytes_max
            until_s = asyncio.get_running_loop().time() + LOOK_S
            for number, read in enumerate(reads, 1):
                if number % TURN == 0:
                    await asyncio.sleep(0)
                result = await self._read_one(read, left, until_s, first=left == bytes_max)
                left -= len(result.records)
                results.append(result)
            return results
        finally:
            answers.release(share)

    async def _wait_for_growth(
        self, reads: Sequence[Read], results: Sequence[ReadResult], waits: Waits, missing: int, left_s: float
    ) -> None:
        if any(_has_grown(read, result) for read, result in zip(reads, results, strict=True)):
            return  # it grew while another partition was read from the disk
        partitions = [(read.partition, read.committed_only) for read in reads if isinstance(read.partition, Partition)]
        growth = _Growth(missing)
        timer = asyncio.get_running_loop().call_later(left_s, growth.end)
        for those in (self._all, waits):
            those.begin(growth)
        for partition, committed_only in partitions:
            partition.watch(growth, committed_only=committed_only)
        try:
            await growth.enough
        finally:
            timer.cancel()
            for those in (self._all, waits):
                those.done(growth)
            for partition, _ in partitions:
                partition.unwatch(growth)

    async def _read_one(self, read: Read, bytes_left: int, until_s: float, *, first: bool) -> ReadResult:
        partition = read.partition
        if isinstance(partition, RunnelError):
            return NOTHING._replace(error=partition)
        try:
            _check(partition, read)
            if read.last_epoch >= 0 and (divergence := divergence_of(partition, read.last_epoch, read.offset)):
                return _result(partition)._replace(divergence=divergence)
            if read.rack and (near := self._near(partition, read.rack, read.offset)) is not None:
                return _result(partition)._replace(read_from=near)
            limit = min(read.bytes_max, bytes_left)
            if limit <= 0 and not first:
                return _result(partition)
            if read.lens is not None:
                look = Look(partition, read.offset, limit, read.committed_only, first)
                return _seen(partition, read, await read.lens.read(look, until_s))
            aborted = None
            if read.committed_only:
                records, aborted = await read_committed(partition, read.offset, limit)
            else:
                cached = partition.read_cached(read.offset, limit)
                records = await partition.read(read.offset, limit) if cached is None else cached
        except RunnelError as error:
            return _result(partition)._replace(error=as_value(error))
        if len(records) > bytes_left and not first:
            records = b""  # the one batch that is larger than asked is for the first partition only
        return _result(partition, records, aborted)


def _check(partition: Partition, read: Read) -> None:
    """Refuse who asks the wrong broker, or for what this one does not know yet."""
    check_epoch(partition, read.leader_epoch)
    if partition.is_leader:
        return
    if read.leader_only or not partition.is_follower:
        raise NotLeader(f"{partition.name} is not led here any more: ask for metadata, then read from its leader")
    if read.offset > partition.high_watermark:  # only the leader knows whether that is out of range
        raise OffsetNotAvailable(f"{partition.name} has no offset {read.offset} on this follower yet: try again")


async def read_committed(
    partition: Partition, offset: Offset, bytes_max: int
) -> tuple[bytes | memoryview, Sequence[AbortedTransaction]]:
    """Batches below the last stable offset, and the aborted transactions that some of them are of.

    Compaction and retention forget both. They may come in between, so both are of the same log, or asked for again.
    """
    log = partition.log
    while True:
        generation = log.generation
        records = partition.read_cached(offset, bytes_max, committed_only=True)
        if records is None:
            records = await partition.read(offset, bytes_max, committed_only=True)
        found = records and log.has_transactions
        aborted = await log.aborted(offset, next_offset(records)) if found else ()
        partition.check_readable(offset)
        if log.generation == generation:
            return records, aborted


def _has_grown(read: Read, result: ReadResult) -> bool:
    partition = read.partition
    if isinstance(partition, RunnelError):
        return False
    if read.committed_only:
        return partition.last_stable_offset > result.last_stable_offset
    return partition.high_watermark > result.high_watermark


def _result(
    partition: Partition, records: bytes | memoryview = b"", aborted: Sequence[AbortedTransaction] | None = None
) -> ReadResult:
    start, stable = partition.log.start_offset, partition.last_stable_offset
    return ReadResult(records, partition.high_watermark, start, stable, aborted)


def _seen(partition: Partition, read: Read, shown: Shown) -> ReadResult:
    """A lens leaves out what was aborted."""
    result = _result(partition, shown.records, () if read.committed_only else None)
    return result._replace(shown_end=shown.end, goes_on=shown.goes_on)


def _is_final(result: ReadResult) -> bool:
    """Whether it is to be told at once."""
    return bool(result.error or result.divergence or result.goes_on) or result.read_from is not None


def check_epoch(partition: Partition, epoch: Epoch) -> None:
    """Refuse a client whose view of the leadership is older, or newer, than ours."""
    if epoch == NO_EPOCH or epoch == partition.leader_epoch:
        return
    if epoch < partition.leader_epoch:
        raise FencedEpoch(f"{partition.name} has leader epoch {partition.leader_epoch}, not {epoch}: refresh metadata")
    raise UnknownEpoch(f"{partition.name} has leader epoch {partition.leader_epoch}, {epoch} is not known here yet")


def divergence_of(partition: Partition, last_epoch: Epoch, offset: Offset) -> Divergence | None:
    """Where a log that ends at `offset` with a batch of `last_epoch` left ours, if it did."""
    epoch, end_offset = partition.epoch_end(last_epoch)
    if epoch == NO_EPOCH:
        raise OffsetOutOfRange(f"{partition.name} knows nothing of leader epoch {last_epoch}: seek to the end")
    if epoch < last_epoch or end_offset < offset:
        return Divergence(epoch, end_offset)
    return None
