"""What a queue knows of the messages of one partition: an exact state for every offset, in runs.

Rule 1: below `done` everything is done; at and above `next` everything is fresh. Only between them something is kept,
        in chunks of 1,024 offsets; a chunk that is not there is done as a whole. So memory follows the messages that
        are out, wait or were passed over, and neither the backlog nor what is done.
Rule 2: a chunk is a list of runs, each with one status. Runs that touch and are the same are one run.
Rule 3: `flush` gives the records of what changed since the last one. A change that lies below `done` by then needs no
        record of its chunk: the mark says it all.
Rule 4: what was passed over, and never had, is ready with no attempts. It costs what its runs cost, not what it counts:
        so it is counted apart from what somebody had, and so are the runs.
Rule 5: a chunk is kept from when something in it is not done any more until all of it is; so a chunk that is not kept
        and lies below `next` is done, also for who reads the records.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Final, NamedTuple

from runnel.model.step import Record
from runnel.queues.records import CHUNK_OFFSETS, Mark, Run, chunk_record, mark_record
from runnel.queues.status import DONE, DONE_STATUS, FRESH, FRESH_STATUS, LEASED, READY, WAIT, Status

SHIFT: Final = CHUNK_OFFSETS.bit_length() - 1
CHUNK: Final = CHUNK_OFFSETS
NEVER: Final = 1 << 62
PASSED, RUNS = 5, 6  # of the counts: messages that were passed over and never had, and runs; those below are by kind


class Piece(NamedTuple):
    """Some neighbours with one status."""

    first: int
    last: int
    status: Status


class Chunk:
    """The runs of 1,024 offsets: where each starts, and the status of each."""

    __slots__ = ("base", "dirty_to", "due", "kept", "live", "ready", "starts", "statuses")

    def __init__(self, base: int, first: int) -> None:
        """Everything below `first` is done, the rest is fresh."""
        self.base = base
        self.starts = [base, first] if first > base else [base]
        self.statuses = [DONE_STATUS, FRESH_STATUS] if first > base else [FRESH_STATUS]
        self.live = base + CHUNK - first  # offsets that are not done
        self.ready = 0
        self.due = NEVER  # no lease or wait ends before
        self.dirty_to = -1  # the last offset that changed
        self.kept = False

    @property
    def end(self) -> int:
        return self.base + CHUNK

    def put(self, first: int, last: int, status: Status, counts: list[int]) -> None:
        """These offsets have this status now."""
        starts, statuses = self.starts, self.statuses
        end = last + 1
        low = bisect_right(starts, first) - 1  # the first run that is touched, and behind the last one
        high = bisect_left(starts, end, low + 1)
        counts[RUNS] -= len(starts)
        limit = starts[high] if high < len(starts) else self.base + CHUNK
        self._recount(low, high, first, end, status, counts)
        new_starts, new_statuses = [first], [status]
        if starts[low] < first:
            if statuses[low] == status:
                new_starts[0] = starts[low]
            else:
                new_starts.insert(0, starts[low])
                new_statuses.insert(0, statuses[low])
        elif low and statuses[low - 1] == status:
            low -= 1
            new_starts[0] = starts[low]
        if limit > end:
            if statuses[high - 1] != status:
                new_starts.append(end)
                new_statuses.append(statuses[high - 1])
        elif high < len(starts) and statuses[high] == status:
            high += 1
        starts[low:high] = new_starts
        statuses[low:high] = new_statuses
        counts[RUNS] += len(starts)
        if status.until and status.until < self.due:
            self.due = status.until
        if last > self.dirty_to:
            self.dirty_to = last

    def _recount(self, low: int, high: int, first: int, end: int, status: Status, counts: list[int]) -> None:
        starts, statuses = self.starts, self.statuses
        size = end - first
        counts[status.kind] += size
        self.live -= size if status.kind == DONE else 0
        self.ready += size if status.kind == READY else 0
        counts[PASSED] += size if status.kind == READY and not status.attempts else 0
        left = first
        for at in range(low, high):
            right = min(starts[at + 1], end) if at + 1 < high else end
            kind = statuses[at].kind
            counts[kind] -= right - left
            if kind == READY:
                self.ready -= right - left
                counts[PASSED] -= 0 if statuses[at].attempts else right - left
            elif kind == DONE:
                self.live += right - left
            left = right

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """What is known of these offsets; all are in this chunk."""
        starts, statuses = self.starts, self.statuses
        at = bisect_right(starts, first) - 1
        while first <= last:
            right = starts[at + 1] - 1 if at + 1 < len(starts) else self.base + CHUNK - 1
            yield Piece(first, min(right, last), statuses[at])
            first, at = right + 1, at + 1

    def settled_to(self, offset: int) -> int:
        """The first offset at or above this one that is not done, or the chunk's end."""
        at = bisect_right(self.starts, offset) - 1
        if self.statuses[at].kind != DONE:
            return offset
        return self.starts[at + 1] if at + 1 < len(self.starts) else self.base + CHUNK


class Window:
    """The state of all offsets of a partition."""

    def __init__(self) -> None:
        self.done = 0
        self.next = 0
        self.counts = [0] * 7  # messages by kind (those of fresh and done mean nothing), PASSED and RUNS
        self.due = NEVER  # no lease or wait ends before
        self._chunks: dict[int, Chunk] = {}  # by number, in their order
        self._ready: set[int] = set()  # chunks that have something ready
        self._dirty: set[int] = set()
        self._gone: list[int] = []  # chunks that are kept, and not needed any more
        self._moved = False  # the mark is not what is kept

    # --- reading
    @property
    def open(self) -> int:
        """Messages between `done` and `next` that are not done."""
        counts = self.counts
        return counts[READY] + counts[WAIT] + counts[LEASED]

    @property
    def passed(self) -> int:
        """Of those: what was passed over, and nobody ever had."""
        return self.counts[PASSED]

    @property
    def tried(self) -> int:
        """Of those: what somebody has, or had."""
        return self.open - self.counts[PASSED]

    @property
    def runs(self) -> int:
        """What memory follows."""
        return self.counts[RUNS]

    @property
    def chunks(self) -> Iterable[Chunk]:
        return self._chunks.values()

    def at(self, offset: int) -> Status:
        return next(self.pieces(offset, offset)).status

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """What is known of these offsets, in their order."""
        if first < self.done:
            yield Piece(first, min(last, self.done - 1), DONE_STATUS)
            first = self.done
        bound = min(last, self.next - 1)
        while first <= bound:
            right = min(bound, first | (CHUNK - 1))
            chunk = self._chunks.get(first >> SHIFT)
            if chunk is not None:
                yield from chunk.pieces(first, right)
            else:
                right = min(bound, self._hole_end(first) - 1)
                yield Piece(first, right, DONE_STATUS)
            first = right + 1
        if first <= last:
            yield Piece(first, last, FRESH_STATUS)

    def unsettled(self, *kinds: int) -> Iterator[Piece]:
        """All runs of these kinds, in their order. They may be changed meanwhile."""
        for chunk in list(self._chunks.values()):
            for piece in list(chunk.pieces(chunk.base, chunk.end - 1)):
                if piece.status.kind in kinds:
                    yield piece

    def ready(self, messages_max: int, *, since: int = 0, passed_since: int = 0) -> list[Piece]:
        """The first messages that are ready, about so many, from an offset on; of those passed over, from another."""
        found: list[Piece] = []
        for number in sorted(self._ready):
            chunk = self._chunks[number]
            if chunk.end <= since:
                continue
            for piece in chunk.pieces(max(chunk.base, since), chunk.end - 1):
                if piece.status.kind != READY:
                    continue
                if not piece.status.attempts:
                    piece = piece._replace(first=max(piece.first, passed_since))
                if piece.first <= piece.last:
                    found.append(piece)
                    messages_max -= piece.last - piece.first + 1
                    if messages_max <= 0:
                        return found
        return found

    def open_from(self, offset: int) -> int:
        """The first offset at or above this one that is not done; `next` if there is none below it."""
        offset = max(offset, self.done)
        while offset < self.next:
            chunk = self._chunks.get(offset >> SHIFT)
            if chunk is None:
                offset = min(self._hole_end(offset), self.next)
            elif (beyond := chunk.settled_to(offset)) == offset:
                return offset
            else:
                offset = beyond
        return self.next

    def _hole_end(self, offset: int) -> int:
        """Where the next chunk begins that is there."""
        number = offset >> SHIFT
        return next((other for other in self._chunks if other > number), NEVER) << SHIFT

    # --- changing
    def put(self, first: int, last: int, status: Status) -> None:
        """These offsets have this status now. None of them is done; what is fresh below them is passed over first."""
        if first > self.next:
            self.put(self.next, first - 1, Status(READY))
        while first <= last:
            right = min(last, first | (CHUNK - 1))
            self._put(first, right, status)
            first = right + 1
        if status.kind == DONE:
            self._advance()
        elif status.until and status.until < self.due:
            self.due = status.until

    def _put(self, first: int, last: int, status: Status) -> None:
        number = first >> SHIFT
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = Chunk(number << SHIFT, first)
            self.counts[RUNS] += len(chunk.starts)
        chunk.put(first, last, status, self.counts)
        self.next = max(self.next, last + 1)
        if chunk.ready:
            self._ready.add(number)
        else:
            self._ready.discard(number)
        self._dirty.add(number)
        if not chunk.live:
            self._drop(number)

    def ripen(self, now: int) -> list[Piece]:
        """What waited until now is ready; gives it. Nothing of that is kept: the moment says it."""
        ripe: list[Piece] = []
        if now < self.due:
            return ripe
        for number, chunk in self._chunks.items():
            if chunk.due <= now:
                ripe += self._ripen(number, chunk, now)
        self.due = min((chunk.due for chunk in self._chunks.values()), default=NEVER)
        return ripe

    def _ripen(self, number: int, chunk: Chunk, now: int) -> list[Piece]:
        ends = [piece for piece in chunk.pieces(chunk.base, chunk.end - 1) if piece.status.until]
        ripe = [piece for piece in ends if piece.status.kind == WAIT and piece.status.until <= now]
        dirty_to = chunk.dirty_to
        for piece in ripe:
            chunk.put(piece.first, piece.last, Status(READY, piece.status.attempts), self.counts)
        chunk.dirty_to = dirty_to
        still = (until for _, _, (kind, _, until, _, _) in ends if kind == LEASED or until > now)
        chunk.due = min(still, default=NEVER)
        if chunk.ready:
            self._ready.add(number)
        return ripe

    def overdue(self, now: int) -> list[Piece]:
        """The leases that ended by now."""
        if now < self.due:
            return []
        return [
            piece
            for chunk in self._chunks.values()
            if chunk.due <= now
            for piece in chunk.pieces(chunk.base, chunk.end - 1)
            if piece.status.kind == LEASED and 0 < piece.status.until <= now
        ]

    def pass_done(self, offset: int) -> None:
        """Everything fresh below this offset is done, however much it is."""
        if offset <= self.next:
            return
        chunk = self._chunks.get(self.next >> SHIFT)
        if chunk is not None:
            self._put(self.next, min(offset, chunk.end) - 1, DONE_STATUS)
        self.next = max(self.next, offset)
        self._moved = True
        self._advance()

    def reset(self, offset: int) -> None:
        """Begin again here: nothing is known."""
        for number in list(self._chunks):
            self._drop(number)
        self.counts = [0] * 7
        self.due = NEVER
        self.done = self.next = offset
        self._moved = True

    def _advance(self) -> None:
        """Bring `done` to the first offset that is not done, and forget what lies below."""
        done = self.open_from(self.done)
        if done == self.done:
            return
        self.done = done
        self._moved = True
        for number in list(takewhile((done >> SHIFT).__gt__, self._chunks)):
            self._drop(number)

    def _drop(self, number: int) -> None:
        chunk = self._chunks.pop(number)
        self.counts[RUNS] -= len(chunk.starts)
        self._ready.discard(number)
        self._dirty.discard(number)
        self._moved = True  # it may have been what told how far `next` is
        if chunk.kept:
            self._gone.append(number)

    # --- keeping
    def touch(self) -> None:
        """What the mark says beside has changed."""
        self._moved = True

    def flush(self, mark: Mark, records: list[Record]) -> None:
        """Add the records of what changed."""
        records.extend(chunk_record(number, None) for number in self._gone)
        self._gone.clear()
        for number in sorted(self._dirty):
            chunk = self._chunks[number]
            if chunk.dirty_to >= self.done:
                chunk.kept = True
                records.append(chunk_record(number, self._runs(chunk)))
            chunk.dirty_to = -1
        self._dirty.clear()
        if self._moved:
            self._moved = False
            records.append(mark_record(mark))

    def _runs(self, chunk: Chunk) -> list[Run]:
        pieces = chunk.pieces(chunk.base, chunk.end - 1)
        return [
            Run(last - first + 1, kind, attempts, 0 if bound else until)
            for first, last, (kind, attempts, until, _, bound) in pieces
            if kind != FRESH
        ]

    def restore(self, done: int, following: int, chunks: dict[int, list[Run]]) -> None:
        """Take over what was kept. Leases without a moment are returned as they were: they ended with their leader."""
        covered = max((_covered(number, runs) for number, runs in chunks.items()), default=0)
        self.done, self.next = done, max(done, following, covered)
        for number in sorted(chunks):
            if (number << SHIFT) + CHUNK <= done:
                self._gone.append(number)
            else:
                self._restore(number, chunks[number])
        self._advance()
        self._dirty.clear()

    def _restore(self, number: int, runs: list[Run]) -> None:
        base = number << SHIFT
        chunk = self._chunks[number] = Chunk(base, base)
        self.counts[RUNS] += len(chunk.starts)
        first = base
        for run in runs:
            status = DONE_STATUS if run.kind == DONE else Status(run.kind, run.attempts, run.until)
            self._restore_run(chunk, first, first + run.length - 1, status)
            first += run.length
        if first < min(self.next, chunk.end):
            chunk.put(first, min(self.next, chunk.end) - 1, DONE_STATUS, self.counts)
        chunk.kept = True
        chunk.dirty_to = -1
        self.due = min(self.due, chunk.due)
        if chunk.ready:
            self._ready.add(number)
        if not chunk.live:
            self._drop(number)

    def _restore_run(self, chunk: Chunk, first: int, last: int, status: Status) -> None:
        below = min(last, self.done - 1)
        if first <= below:
            chunk.put(first, below, DONE_STATUS, self.counts)
        if last > below:
            chunk.put(max(first, below + 1), last, status, self.counts)


def _covered(number: int, runs: list[Run]) -> int:
    """Where the offsets end of which a kept chunk says something."""
    return (number << SHIFT) + sum(run.length for run in runs)
