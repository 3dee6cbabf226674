"""The delivery of one queue over one partition: the verbs.

Rule 1: a verb never waits. It returns a Step at once: records to keep, and what may happen once they are kept. So a
        lease is kept before its message leaves, and settling is answered when nobody can forget it.
Rule 2: a receipt is an offset, an attempt and a generation. Whoever settles compares and sets: a receipt that is not
        that of the present lease changes nothing. Accepting what was accepted is no error. A verdict counts for all
        of its messages, or for none.
Rule 3: attempts never go back, but with a rewind: it begins a new generation, which voids all receipts that are out.
        And where there are no receipts (bound leases), if their owner says in good order that it did not begin.
Rule 4: leases that end at a moment outlive the leader; those of connections end with it.
Rule 5: time is what the wall clock said when this leader began, and goes on with the clock that never goes back. What
        another leader's clock said is not believed where that is longer than any lease or wait ever was.
Rule 6: messages that leave (dead, or copied forward) are done here, and wait in the outbox: see `outbox`.
Rule 7: whoever finds nothing to lease is told when that may have changed (the order Available): see `demand`.
Rule 8: what was kept for another queue of the same name, which was deleted since, counts for nothing, and is taken out.
        What a share group kept is the queue's that it was made into.
Rule 9: copies that do not count are done when they are offered: see `copies`.
Rule 10: messages of a chunk that can't be read are delivered again; without the mark, all that are there. If it can't
        be read that messages were leaving, these do not leave any more: they are in the log alone.
"""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import Millis
from runnel.model.queue_config import LEASE_MS_MAX, Consumers, Expired, Start
from runnel.model.step import Reply, Step
from runnel.queues.breaker import Breaker
from runnel.queues.course import Course, Turn
from runnel.queues.demand import Demand
from runnel.queues.holder import Holder
from runnel.queues.keys import Keys
from runnel.queues.past import OTHERWISE
from runnel.queues.records import (
    CHUNK_OFFSETS,
    MARK_KEY,
    KeptChunk,
    KeptLeaving,
    KeptMark,
    KeptPast,
    KeptSince,
    Mark,
    Run,
    chunk_number,
    chunk_record,
    decode,
)
from runnel.queues.retry import rounded_up
from runnel.queues.status import DONE, DONE_STATUS, LEASED, READY, STATES, WAIT, Status
from runnel.queues.taking import Taking
from runnel.queues.values import (
    Aimed,
    Available,
    Describe,
    Described,
    Extend,
    Lease,
    Leased,
    LeavingId,
    Outcome,
    OwnerGone,
    Purge,
    Purged,
    Rewind,
    Rewound,
    Settle,
    Settled,
    Span,
    Standing,
    Unsent,
    Verdict,
    View,
    Void,
    Voided,
    Why,
)
from runnel.queues.verdicts import settled
from runnel.queues.window import NEVER, Piece

R = TypeVar("R")


class Delivery:
    """A Machine for broker/shard.py, with View as its view."""

    def __init__(self) -> None:
        self._course = Course()
        self._window = self._course.window
        self._outbox = self._course.outbox
        self._breaker = Breaker()
        self._holder = Holder()
        self._lead_ms = 0  # from the clock that never goes back to the wall's
        self._now = 0  # of the last verb, rule 5
        self._demand = Demand(self._course, self._breaker, self._holder)
        self._kept_mark: Mark | None = None
        self._kept_chunks: dict[int, list[Run]] = {}
        self._lost_chunks: set[int] = set()  # rule 10
        self._lost_mark = False

    # --- loading
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one kept record."""
        try:
            kept = decode(key, value)
        except RecordUnreadable:
            self._lose(key)
            raise
        match kept:
            case KeptMark(mark):
                self._kept_mark = mark
            case KeptChunk(number, None):
                self._kept_chunks.pop(number, None)
            case KeptChunk(number, runs) if runs is not None:
                self._kept_chunks[number] = runs
            case KeptLeaving(id, leaving):
                self._outbox.restore(id, leaving)
            case KeptPast(first, note):
                self._course.past.restore(first, note)
            case KeptSince(origin, generation):
                self._course.copies.restore(origin, generation)

    def _lose(self, key: bytes) -> None:
        """Rule 10: what this record said is not known."""
        if (number := chunk_number(key)) is not None:
            self._lost_chunks.add(number)
        self._lost_mark = self._lost_mark or key == MARK_KEY

    def wake(self, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: all that was kept is read. Connections of the time before are gone; what leaves goes on."""
        self._lead_ms = wall_ms - now_ms
        mark = self._kept_mark
        of_another = mark is not None and mark.made not in (0, view.made)
        if mark is None or of_another:
            self._course.generation = self._course.made = view.made
            self._window.reset(view.start if self._lost_mark else _first(view))
        else:
            self._restore(mark)
        turn = self._begin(view, now_ms, wall_ms)
        if of_another or self._lost_mark:
            self._forget(turn.step)
        self._demand.all_wait()
        self._outbox.wake(turn.step)
        if self._holder.name:
            self._holder.seen(self._holder.name, view.config.lease_ms, turn.now)
        self._course.promise(view.config.lease_ms)
        self._course.bound_moments(turn.now)
        for piece in self._window.unsettled(LEASED):
            if not piece.status.until:
                self._course.give_back(piece, 0, turn)
        return self._finish(turn)

    def _forget(self, step: Step) -> None:
        """Rule 8: begin as if nothing had been kept."""
        step.records.extend(chunk_record(number, None) for number in self._kept_chunks.keys() | self._lost_chunks)
        self._kept_chunks, self._lost_chunks = {}, set()
        self._outbox.clear(step)
        self._course.copies.clear(step)
        self._course.past.rewind(step)

    def _restore(self, mark: Mark) -> None:
        self._course.made = mark.made
        self._course.generation, self._course.counters, self._holder.name = mark.generation, mark.counters, mark.holder
        self._course.past.sure_from, self._course.longest_ms = mark.sure_from, mark.longest_ms
        for number in self._lost_chunks:
            first = number * CHUNK_OFFSETS
            untold = min(CHUNK_OFFSETS, mark.next - first)
            if untold > 0:
                self._kept_chunks[number] = [Run(untold, READY, 1, 0)]
        self._window.restore(mark.done, mark.next, self._kept_chunks)
        self._kept_chunks = {}

    # --- time
    def next_deadline_ms(self) -> Millis | None:
        due = min(self._window.due, self._demand.due(self._now))
        return None if due >= NEVER else Millis(due - self._lead_ms)

    def tick(self, now_ms: Millis, view: View, wall_ms: Millis) -> Step:
        """Do what is due."""
        turn = self._begin(view, now_ms, wall_ms)
        self._do_due(turn)
        return self._finish(turn)

    def _do_due(self, turn: Turn) -> None:
        for piece in self._window.overdue(turn.now):
            size = piece.last - piece.first + 1
            self._course.counters.timed_out += size
            self._breaker.ended(turn.config, size, True, turn.now)
            self._course.give_back(piece, None, turn)
        self._course.ripen(turn.now)
        self._course.trim(turn)

    # --- what to read
    def wants(
        self, owner: str, view: View, now_ms: Millis, messages_max: int, chosen_from: tuple[int, int] | None = None
    ) -> list[Span]:
        """What to read and offer for `owner`, in the order of offsets; nothing if it can't have anything now.

        About as many messages as it may have; fresh ones to the end, of which to read as many as are needed. On a
        key-ordered queue it may be messages that can't be leased, for their keys alone: ask again after offering them.
        Who chooses gets all there are, from an offset on; what nobody ever had from another one on, if that is higher.
        It is told when that may have changed, from now on: it may find nothing that it wants.
        """
        turn = self._begin(view, now_ms, 0)
        self._course.ripen(turn.now)
        return self._demand.wants(owner, turn, messages_max, chosen_from)

    @property
    def generation(self) -> int:
        """Another one after a rewind."""
        return self._course.generation

    def is_crowded(self, view: View) -> bool:
        """Whether what was passed over leaves no room for what is fresh: only with key order."""
        return self._demand.is_crowded(view)

    @property
    def next_new(self) -> int:
        """Nothing at or above was ever leased or passed over."""
        return self._window.next

    @property
    def is_leased(self) -> bool:
        """Whether anything is: what belongs to a connection has no deadline, and ends with this machine."""
        return self._demand.leased > 0

    def length(self, view: View) -> int:
        """Offsets that are not done, for max.length with overflow=refuse."""
        return self._course.length(view)

    def standing(self, offset: int) -> Standing:
        """How one offset stands (peek)."""
        status = self._window.at(offset)
        attempts = 0 if status.kind == DONE else status.attempts
        return Standing(STATES[status.kind], attempts, status.until, status.owner)

    # --- leasing
    def lease(self, request: Lease, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Leased: what was offered and may be had; kept before it is answered."""
        turn = self._begin(view, now_ms, wall_ms)
        self._do_due(turn)
        return self._answer(self._lease, request, ticket, turn)

    def _lease(self, request: Lease, turn: Turn) -> Leased:
        config = turn.config
        lease_ms = min(config.lease_ms if request.lease_ms is None else request.lease_ms, LEASE_MS_MAX)
        until = rounded_up(turn.now + lease_ms, lease_ms) if lease_ms else 0
        self._course.promise(lease_ms)
        room = min(request.messages_max, self._demand.room(request.owner, turn))
        taking = Taking(
            self._window, self._course.keys, request.owner, until, turn.wall_ms, bound=request.bound,
            messages_max=room, bytes_max=request.bytes_max, window_max=config.window_max,
            counts=lambda maker: self._course.copies.count(maker, turn.view.made),
        )  # fmt: skip
        taking.take(request.offers if room > 0 else ())
        self._expire(taking, turn)
        self._course.counters.filtered += taking.filtered
        self._course.counters.delivered += taking.delivered
        if taking.delivered:
            self._breaker.began(taking.delivered)
            self._hold(request.owner, lease_ms, turn)
        return Leased(tuple(taking.grants), self._course.generation, until)

    def _hold(self, owner: str, lease_ms: int, turn: Turn) -> None:
        if turn.config.consumers is Consumers.SINGLE and self._holder.asked(owner, lease_ms, turn.now):
            self._window.touch()

    def _expire(self, taking: Taking, turn: Turn) -> None:
        for first, last, attempts in taking.expired:
            self._course.counters.expired += last - first + 1
            if turn.config.expired is Expired.DEAD:
                self._course.leave(Piece(first, last, Status(READY, attempts)), Why.EXPIRED, "", 0, turn)
            elif attempts:
                self._course.end(Piece(first, last, DONE_STATUS), OTHERWISE, turn)

    # --- settling
    def settle(self, request: Settle, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Settled."""
        return self._answer(self._settle, request, ticket, self._begin(view, now_ms, wall_ms))

    def _settle(self, request: Settle, turn: Turn) -> Settled:
        def judge(piece: Piece, verdict: Verdict) -> None:
            self._judge(piece, verdict, turn)

        return settled(self._course, request.verdicts, request.owner, judge)

    def _judge(self, piece: Piece, verdict: Verdict, turn: Turn) -> None:
        """Do what a consumer says of messages."""
        size = piece.last - piece.first + 1
        self._breaker.ended(turn.config, size, verdict.outcome is not Outcome.ACCEPT, turn.now)
        if verdict.outcome is Outcome.ACCEPT:
            self._course.counters.accepted += size
            self._course.put_done(piece.first, piece.last)
            self._course.end(piece, piece.status.attempts, turn)
        elif verdict.outcome is Outcome.RELEASE:
            self._course.counters.released += size
            self._course.give_back(piece, verdict.delay_ms, turn, verdict.reason)
        else:
            self._course.put_done(piece.first, piece.last)
            self._course.leave(piece, Why.REJECTED, verdict.reason, 0, turn)

    def extend(self, request: Extend, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Settled."""
        return self._answer(self._extend, request, ticket, self._begin(view, now_ms, wall_ms))

    def _extend(self, request: Extend, turn: Turn) -> Settled:
        lease_ms = min(turn.config.lease_ms if request.lease_ms is None else request.lease_ms, LEASE_MS_MAX)
        until = rounded_up(turn.now + lease_ms, lease_ms)
        self._course.promise(lease_ms)

        def prolong(piece: Piece, verdict: Verdict) -> None:
            first, last, status = piece
            if status.until:  # else its owner has it for as long as it lives
                self._window.put(first, last, status._replace(until=until))

        return settled(self._course, request.verdicts, request.owner, prolong, done=False)

    # --- administration
    def purge(self, request: Purge, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Purged. What is leased stays with whom it is."""
        return self._answer(self._purge, request, ticket, self._begin(view, now_ms, wall_ms))

    def _purge(self, request: Purge, turn: Turn) -> Purged:
        dropped = self._course.drop(self._window.unsettled(READY, WAIT), NEVER, turn)
        dropped += max(0, turn.view.end - self._window.next)
        self._course.pass_fresh(turn.view.end)
        self._course.counters.dropped += dropped
        return Purged(dropped)

    def rewind(self, request: Rewind, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Rewound."""
        return self._answer(self._rewind, request, ticket, self._begin(view, now_ms, wall_ms))

    def _rewind(self, request: Rewind, turn: Turn) -> Rewound:
        before = self._window.done
        offset = max(turn.view.start, min(request.offset, turn.view.end))
        self._course.generation += 1
        self._window.reset(offset)
        self._course.past.rewind(turn.step)
        self._outbox.recall(turn.step)
        self._course.keys = Keys(self._window) if turn.config.keyed else None
        return Rewound(before, offset, self._course.generation)

    def void(self, request: Void, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Voided."""
        return self._answer(self._void, request, ticket, self._begin(view, now_ms, wall_ms))

    def _void(self, request: Void, turn: Turn) -> Voided:
        before, leased = self._window.done, self._demand.leased
        self._course.copies.void(request.since, turn.step)
        self._course.give_up(min(request.below, turn.view.end), turn)
        self._breaker.forgotten(leased - self._demand.leased)
        return Voided(before, self._window.done)

    def describe(self, request: Describe, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Described."""
        return self._answer(self._describe, request, ticket, self._begin(view, now_ms, wall_ms))

    def _describe(self, request: Describe, turn: Turn) -> Described:
        window, view = self._window, turn.view
        self._breaker.allowed(turn.config, turn.now)
        return Described(
            first_open=window.done,
            next_new=window.next,
            end=view.end,
            generation=self._course.generation,
            ready=window.counts[READY],
            blocked=0 if self._course.keys is None else self._course.keys.blocked,
            waiting=window.counts[WAIT],
            leased=window.counts[LEASED],
            leaving=self._outbox.messages,
            backlog=max(0, view.end - window.next),
            done_above=window.next - window.done - window.open,
            breaker=self._breaker.state.value,
            holder=self._holder.name,
            counters=replace(self._course.counters),
        )

    # --- what is told
    def release_owner(self, news: OwnerGone, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """A connection ended: its leases end, its messages are ready again at once."""
        turn = self._begin(view, now_ms, wall_ms)
        for piece in self._window.unsettled(LEASED):
            if piece.status.owner == news.owner:
                size = piece.last - piece.first + 1
                self._course.counters.released += size
                self._breaker.forgotten(size)
                if news.untouched and piece.status.bound:
                    self._course.put_back(piece)
                else:
                    self._course.give_back(piece, 0, turn)
        if self._holder.gone(news.owner):
            self._window.touch()
        return self._finish(turn)

    def take_back(self, news: Unsent, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Leases whose messages did not leave: they never were. What else their owner has stays with it."""
        turn = self._begin(view, now_ms, wall_ms)
        for first, last, attempt in news.grants:
            for piece in list(self._window.pieces(first, last)):
                status = piece.status
                if status.kind == LEASED and status.owner == news.owner and status.attempts == attempt:
                    size = piece.last - piece.first + 1
                    self._course.counters.released += size
                    self._breaker.forgotten(size)
                    self._course.put_back(piece)
        if not self._demand.leased and self._holder.gone(news.owner):
            self._window.touch()
        return self._finish(turn)

    def aim(self, news: Aimed, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Messages that were ordered to leave without a target have one."""
        turn = self._begin(view, now_ms, wall_ms)
        self._outbox.aim(news, turn.step)
        return self._finish(turn)

    def left(self, news: LeavingId, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Messages that were ordered to leave are all in their target, committed."""
        turn = self._begin(view, now_ms, wall_ms)
        self._outbox.left(news, turn.step)
        self._course.trim(turn)  # there is room for more that is too much
        return self._finish(turn)

    # --- the frame of a verb
    def _begin(self, view: View, now_ms: int, wall_ms: int) -> Turn:
        if not view.config.keyed:
            self._course.keys = None
        elif self._course.keys is None:
            self._course.keys = Keys(self._window)
        if self._course.made != view.made:
            self._course.made = view.made
            self._window.touch()
        self._now = now_ms + self._lead_ms
        self._course.follow_start(view)
        return Turn(view, self._now, wall_ms, Step())

    def _answer(self, verb: Callable[[R, Turn], object], request: R, ticket: object, turn: Turn) -> Step:
        turn.step.replies.append(Reply(ticket, verb(request, turn)))
        return self._finish(turn)

    def _finish(self, turn: Turn) -> Step:
        """Rules 1 and 7."""
        window = self._window
        course = self._course
        mark = Mark(
            window.done, window.next, course.generation, self._holder.name, course.counters, course.past.sure_from,
            course.longest_ms, course.made,
        )  # fmt: skip
        window.flush(mark, turn.step.records)
        if self._demand.can_be_met(turn):
            turn.step.orders.append(Available())
        return turn.step


def _first(view: View) -> int:
    """Where a queue begins that nothing was kept of. Where nobody knows what is young enough, all of it is."""
    if view.config.start is Start.LATEST:
        return view.end
    return view.start if view.begin is None else max(view.start, min(view.begin, view.end))
