"""What becomes of the messages of one queue in one partition.

Rule 1: a message that was not accepted is delivered again after a pause, until it was delivered `attempts.max` times;
        then it is dead.
Rule 2: whoever leaves is done here, and stands in the outbox: dead letters, and copies of messages that would wait in
        the window for long, or crowd it. Key order needs them in place.
Rule 3: whatever is done lets the next message of its key go.
Rule 4: what is dropped (purging, retention) is not dead: nobody failed at it.
Rule 5: at the maximum length the oldest are dead letters, but for those that somebody has. Where that are very many,
        the queue is longer than it may be until they have left.
"""

from collections.abc import Iterator
from typing import NamedTuple

from runnel.model.queue_config import Overflow, QueueConfig
from runnel.model.step import Step
from runnel.queues.copies import Copies
from runnel.queues.keys import Keys
from runnel.queues.outbox import OVERFLOW_PIECE_MAX, Outbox
from runnel.queues.past import OTHERWISE, Past
from runnel.queues.retry import backoff_ms, rounded_up
from runnel.queues.status import DONE_STATUS, FRESH_STATUS, LEASED, READY, WAIT, Status
from runnel.queues.values import Counters, Leaving, View, Why
from runnel.queues.window import NEVER, Piece, Window

REASON_CHARS_MAX = 1_000  # of why a message was rejected: it is kept, and goes into a header


class Turn(NamedTuple):
    """A verb under way, with the moment it happens in."""

    view: View
    now: int  # by the clock of the delivery, see there
    wall_ms: int
    step: Step

    @property
    def config(self) -> QueueConfig:
        return self.view.config


class Course:
    """All that is known of the messages, and how it changes."""

    def __init__(self) -> None:
        self.window = Window()
        self.outbox = Outbox()
        self.keys: Keys | None = None
        self.past = Past()
        self.copies = Copies()
        self.longest_ms = 0  # of all leases and waits
        self.generation = 0
        self.made = 0  # the number of the queue whose state this is
        self.counters = Counters()

    def give_back(self, piece: Piece, delay_ms: int | None, turn: Turn, reason: str = "") -> None:
        """A lease ended without a word of success: to be delivered again, or dead, for this reason."""
        first, last, (_, attempts, _, _, _) = piece
        config = turn.config
        if config.attempts_max and attempts >= config.attempts_max:
            self.put_done(first, last)
            self.leave(piece, Why.ATTEMPTS, reason, 0, turn)
            return
        pause_ms = backoff_ms(config, attempts, turn.view.jitter) if delay_ms is None else delay_ms
        if pause_ms <= 0:
            self._put_ready(first, last, attempts)
        else:
            self._wait(piece, pause_ms, turn)

    def put_back(self, piece: Piece) -> None:
        """A lease never was: nobody did anything with it."""
        self._put_ready(piece.first, piece.last, piece.status.attempts - 1)

    def _put_ready(self, first: int, last: int, attempts: int) -> None:
        self.window.put(first, last, Status(READY, attempts))
        if self.keys is not None:
            self.keys.check(first, last)

    def _wait(self, piece: Piece, pause_ms: int, turn: Turn) -> None:
        """Messages are to wait: in place as far as there is room, else they are copied forward."""
        first, last, attempts = piece.first, piece.last, piece.status.attempts
        self.promise(pause_ms)
        beyond = min(last + 1, first + self._waiting_room(pause_ms, turn.config))
        if beyond > first:
            self.window.put(first, beyond - 1, Status(WAIT, attempts, rounded_up(turn.now + pause_ms, pause_ms)))
        if beyond <= last:
            self.put_done(beyond, last)
            why = Why.WAITS if pause_ms > turn.config.window_wait_max_ms else Why.STRAGGLES
            self.leave(Piece(beyond, last, piece.status), why, "", turn.wall_ms + pause_ms, turn)

    def _waiting_room(self, pause_ms: int, config: QueueConfig) -> int:
        """How many messages may wait so long: half of the window is for those who do not wait."""
        if config.keyed or not config.retry_topic:
            return NEVER
        if pause_ms > config.window_wait_max_ms:
            return 0
        return max(0, (config.window_max + 1) // 2 - self.window.counts[WAIT])

    def promise(self, length_ms: int) -> None:
        """A lease or a wait of that length begins."""
        if length_ms > self.longest_ms:
            self.longest_ms = length_ms
            self.window.touch()

    def bound_moments(self, now: int) -> None:
        """Believe no clock that ran ahead: nothing lasts longer than the longest that was promised."""
        latest = rounded_up(now + self.longest_ms, self.longest_ms)
        for first, last, status in self.window.unsettled(LEASED, WAIT):
            if status.until > latest:
                self.window.put(first, last, status._replace(until=latest))

    def end(self, piece: Piece, attempt: int, turn: Turn) -> None:
        """Note how messages ended that are done: accepted by this attempt, or otherwise."""
        sure_from = self.past.sure_from
        self.past.note(piece.first, piece.last, attempt, turn.step)
        if self.past.sure_from != sure_from:
            self.window.touch()

    def leave(self, piece: Piece, why: Why, reason: str, due_ms: int, turn: Turn) -> None:
        """Rule 2. The messages are done already."""
        size = piece.last - piece.first + 1
        self.end(piece, OTHERWISE, turn)
        if why.dies:
            self.counters.dead += size
            target = turn.view.dead
        else:
            self.counters.copied += size
            target = turn.view.retry
        if why.dies and not turn.config.dead_letter_topic:
            return
        leaving = Leaving(
            self.generation, piece.first, piece.last, piece.status.attempts, why, reason[:REASON_CHARS_MAX],
            turn.wall_ms, due_ms, target,
        )  # fmt: skip
        self.outbox.add(leaving, turn.step)

    def put_done(self, first: int, last: int) -> None:
        self.window.put(first, last, DONE_STATUS)
        if self.keys is not None:
            self.keys.finish(first, last)

    def drop(self, pieces: Iterator[Piece], messages_max: int, turn: Turn) -> int:
        """Give up messages, so many at the most; how many there were."""
        dropped = 0
        for first, last, status in pieces:
            if dropped >= messages_max:
                break
            piece = Piece(first, min(last, first + messages_max - dropped - 1), status)
            self.put_done(piece.first, piece.last)
            if status.attempts:  # somebody had it, and may say that it is done
                self.end(piece, OTHERWISE, turn)
            dropped += piece.last - first + 1
        return dropped

    def give_up(self, below: int, turn: Turn) -> None:
        """All that lies below this offset is done, whoever has it."""
        pieces = (piece for piece in self.window.unsettled(READY, WAIT, LEASED) if piece.first < below)
        dropped = self.drop((piece._replace(last=min(piece.last, below - 1)) for piece in pieces), NEVER, turn)
        self.counters.dropped += dropped + max(0, below - self.window.next)
        self.pass_fresh(below)

    def pass_fresh(self, offset: int) -> None:
        """What is fresh below this offset is done."""
        first = self.window.next
        self.window.pass_done(offset)
        if self.keys is not None and offset > first:
            self.keys.finish(first, offset - 1)

    def trim(self, turn: Turn) -> None:
        """Rule 5; without dead letters the oldest are dropped."""
        config = turn.config
        excess = self.length(turn.view) - config.max_length
        if not config.max_length or config.overflow is not Overflow.DROP_OLDEST or excess <= 0:
            return
        if config.dead_letter_topic:
            self._overflow(excess, turn)
            return
        dropped = self.drop(self.window.unsettled(READY, WAIT), excess, turn)
        fresh = max(0, min(excess - dropped, turn.view.end - self.window.next))
        self.pass_fresh(self.window.next + fresh)
        self.counters.dropped += dropped + fresh

    def _overflow(self, excess: int, turn: Turn) -> None:
        """So many leave, as far as there is room for them."""
        for first, last, status in self.window.unsettled(READY, WAIT):
            while first <= last and excess > 0 and self.outbox.overflow_room:
                size = min(last - first + 1, excess, OVERFLOW_PIECE_MAX)
                self.put_done(first, first + size - 1)
                self.leave(Piece(first, first + size - 1, status), Why.OVERFLOW, "", 0, turn)
                first, excess = first + size, excess - size
        while excess > 0 and self.outbox.overflow_room and (fresh := turn.view.end - self.window.next) > 0:
            first, size = self.window.next, min(fresh, excess, OVERFLOW_PIECE_MAX)
            self.pass_fresh(first + size)
            self.leave(Piece(first, first + size - 1, FRESH_STATUS), Why.OVERFLOW, "", 0, turn)
            excess -= size

    def follow_start(self, view: View) -> None:
        """What retention took is done."""
        if view.start <= self.window.done:
            return
        dropped = max(0, view.start - self.window.next)
        for first, last, _ in self.window.unsettled(READY, WAIT, LEASED):
            if first < view.start:
                self.put_done(first, min(last, view.start - 1))
                dropped += min(last + 1, view.start) - first
        self.counters.dropped += dropped
        self.pass_fresh(view.start)

    def ripen(self, now: int) -> None:
        ripe = self.window.ripen(now)
        if self.keys is not None:
            for piece in ripe:
                self.keys.check(piece.first, piece.last)

    def length(self, view: View) -> int:
        """Offsets that are not done, for max.length with overflow=refuse."""
        return self.window.open + max(0, view.end - max(self.window.next, view.start))
