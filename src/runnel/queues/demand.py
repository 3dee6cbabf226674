"""What there is to have of one queue in one partition now, for whom, and who waits for more.

Rule 1: nobody gets more than leases, breaker and outbox have room for. Beside a single active consumer, nobody gets
        anything.
Rule 2: whoever finds nothing to lease is told when that may have changed: once, and not for nothing.
"""

from runnel.model.queue_config import Consumers
from runnel.queues.breaker import Breaker
from runnel.queues.course import Course, Turn
from runnel.queues.holder import Holder
from runnel.queues.status import LEASED
from runnel.queues.values import Span, View
from runnel.queues.window import NEVER


class Demand:
    """Of consumers, on what a course has."""

    def __init__(self, course: Course, breaker: Breaker, holder: Holder) -> None:
        self._course = course
        self._window = course.window
        self._breaker = breaker
        self._holder = holder
        self._hungry = False  # somebody found nothing to lease
        self._standby = False  # somebody found another to be the single active consumer

    @property
    def leased(self) -> int:
        return self._window.counts[LEASED]

    # --- what to read
    def wants(self, owner: str, turn: Turn, messages_max: int, chosen_from: tuple[int, int] | None) -> list[Span]:
        """See `Delivery.wants`."""
        room = min(messages_max, self.room(owner, turn))
        if room > 0 and chosen_from is not None:
            room = NEVER
        spans = self._wanted(room, turn.view, *(chosen_from or (0, 0))) if room > 0 else []
        if not spans or chosen_from is not None:
            self._wait(owner, turn)
        if turn.config.consumers is Consumers.SINGLE:
            self._holder.seen(owner, turn.config.lease_ms, turn.now)
        return spans

    def _wanted(self, room: int, view: View, since: int = 0, new_since: int = 0) -> list[Span]:
        window, keys = self._window, self._course.keys
        full = (window.tried if keys is None else window.open) >= view.config.window_max
        if keys is None:
            ready = window.ready(room, since=since, passed_since=NEVER if full else new_since)
            spans = [Span(piece.first, piece.last) for piece in ready]
        elif (unknown := keys.next_unknown) < window.next:
            return [Span(unknown, window.next - 1)]
        else:
            spans = [Span(offset, offset) for offset in keys.free(room) if offset >= since]
        found = sum(last - first + 1 for first, last in spans)
        fresh = max(window.next, since, new_since)
        if found < room and fresh < view.end and not full:
            spans.append(Span(fresh, view.end - 1))
        return spans

    def room(self, owner: str, turn: Turn) -> int:
        """How many messages this consumer may lease now, if they are there."""
        config = turn.config
        if config.consumers is Consumers.SINGLE and not self._holder.admits(owner, self.leased, turn.now):
            return 0
        if self._course.outbox.messages - self._course.outbox.overflowing >= config.window_max:
            return 0
        return min(config.leases_max - self.leased, self._breaker.allowed(config, turn.now))

    def is_crowded(self, view: View) -> bool:
        """Whether what was passed over leaves no room for what is fresh: only with key order."""
        window = self._window
        crowded = self._course.keys is not None and window.open >= view.config.window_max and window.passed > 0
        return crowded and window.next < view.end

    # --- who waits
    def _wait(self, owner: str, turn: Turn) -> None:
        if turn.config.consumers is Consumers.SINGLE and not self._holder.admits(owner, self.leased, turn.now):
            self._standby = True
        else:
            self._hungry = True

    def all_wait(self) -> None:
        """Whoever waited at the machine before this one is still there."""
        self._hungry = self._standby = True

    def due(self, now: int) -> int:
        """When those who wait may find something, though nothing happens until then."""
        due = NEVER
        if self._hungry and self._breaker.until > now:
            due = min(due, self._breaker.until)
        if self._standby and self._holder.until > now:
            due = min(due, self._holder.until)
        return due

    def can_be_met(self, turn: Turn) -> bool:
        """Rule 2: whether those who wait are to be told now; from then on nobody waits."""
        met = (self._hungry and self._has_some(self._holder.name, turn)) or (self._standby and self._has_some("", turn))
        if met:
            self._hungry = self._standby = False
        return met

    def _has_some(self, owner: str, turn: Turn) -> bool:
        """Whether this consumer may find something to lease."""
        return self.room(owner, turn) > 0 and bool(self._wanted(1, turn.view))
