"""The same queue, told naively: one row for each message, every rule looked up anew, nothing kept apart."""

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field

from runnel.model.queue_config import Expired, Overflow, QueueConfig
from runnel.queues.retry import backoff_ms, rounded_up
from runnel.queues.values import Outcome, Why


@dataclass
class Row:
    state: str = "new"  # new, ready, waiting, leased, done
    attempts: int = 0
    until: int = 0
    owner: str = ""
    ended: int = 1  # if it is done: the attempt that was accepted; 0: none


@dataclass(frozen=True)
class Message:
    key: bytes | None
    expires_ms: int
    passes: bool


@dataclass
class Naive:
    config: QueueConfig
    rows: list[Row] = field(default_factory=list)
    generation: int = 0
    outbox: dict[tuple[int, int], tuple[Why, int]] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)  # keys that this leader has learned

    def copy(self) -> "Naive":
        return deepcopy(self)

    def row(self, offset: int) -> Row:
        return self.rows[offset] if offset < len(self.rows) else Row()

    def open(self, *states: str) -> list[int]:
        return [offset for offset, row in enumerate(self.rows) if row.state in states]

    @property
    def done(self) -> int:
        """The first offset that is not done."""
        return next((at for at, row in enumerate(self.rows) if row.state != "done"), len(self.rows))

    # --- leasing
    def lease(
        self, offers: list[int], messages: list[Message], owner: str, until: int, messages_max: int, wall_ms: int,
        unwanted: Collection[int] = (),
    ) -> list[tuple[int, int]]:  # fmt: skip
        granted: list[tuple[int, int]] = []
        room = min(messages_max, self.config.leases_max - len(self.open("leased")))
        if room <= 0 or self.left_out:
            return granted
        for offset in offers:
            message, length = messages[offset], len(self.rows)
            if not self._learned(offset):
                break
            if self.row(offset).state not in ("new", "ready"):
                continue
            leaves = not message.passes or 0 < message.expires_ms <= wall_ms
            blocked = offset in unwanted or self._blocked(offset, messages)
            if not leaves and not blocked and len(granted) == room:
                break
            if not self._reach(offset, leaves):
                break
            if not leaves and not self.config.keyed and not self.rows[offset].attempts and not self._has_place():
                self.rows = self.rows[:length]  # nothing was done
                break
            if not message.passes:
                self._finish(offset)
            elif 0 < message.expires_ms <= wall_ms:
                self._drop(offset)
                if self.config.expired is Expired.DEAD:
                    self._leave(offset, Why.EXPIRED)
            elif blocked:
                self.rows[offset].state = "ready"
            else:
                row = self.rows[offset] = Row("leased", self.rows[offset].attempts + 1, until, owner)
                granted.append((offset, row.attempts))
        return granted

    @property
    def left_out(self) -> bool:
        return sum(why is not Why.OVERFLOW for why, _ in self.outbox.values()) >= self.config.window_max

    def _learned(self, offset: int) -> bool:
        if not self.config.keyed:
            return True
        if any(row.state != "done" and at not in self.known for at, row in enumerate(self.rows[:offset])):
            return False
        if offset > len(self.rows) and not set(range(len(self.rows), offset)) <= self.known:
            return False
        self.known.add(offset)
        return True

    def _reach(self, offset: int, leaves: bool) -> bool:
        """Pass over what is fresh below, if there is room for it, and for this one."""
        if offset < len(self.rows):
            return True
        gap = offset - len(self.rows)
        opened = len(self.open("ready", "waiting", "leased"))
        if self.config.keyed and self.config.window_max - opened < gap + (not leaves):
            return False
        self.rows += [Row("ready") for _ in range(gap)]
        self.rows.append(Row())
        return True

    def _has_place(self) -> bool:
        """Whether the window has room for a message that nobody had."""
        tried = [
            row for row in self.rows if row.state in ("waiting", "leased") or (row.state == "ready" and row.attempts)
        ]
        return len(tried) < self.config.window_max

    def _blocked(self, offset: int, messages: list[Message]) -> bool:
        key = messages[offset].key
        return self.config.keyed and any(
            row.state != "done" and messages[at].key == key is not None for at, row in enumerate(self.rows[:offset])
        )

    # --- the ends of leases
    def settle(
        self, receipts: list[tuple[int, int, int]], outcome: Outcome, delay_ms: int | None, jitter: float, now: int
    ) -> set[int]:
        """Gives the places of those that are refused."""
        return {
            place
            for place, receipt in enumerate(receipts)
            if not self._settle(*receipt, outcome=outcome, delay_ms=delay_ms, jitter=jitter, now=now)
        }

    def _settle(
        self, offset: int, attempt: int, generation: int, *,
        outcome: Outcome, delay_ms: int | None, jitter: float, now: int,
    ) -> bool:  # fmt: skip
        row = self.row(offset)
        if generation != self.generation:
            return False
        if row.state == "done":
            return outcome is Outcome.ACCEPT and row.ended == attempt
        if row.state != "leased" or row.attempts != attempt:
            return False
        if outcome is Outcome.ACCEPT:
            self._finish(offset)
            row.ended = attempt
        elif outcome is Outcome.REJECT:
            self._finish(offset)
            self._leave(offset, Why.REJECTED)
        else:
            self.give_back(offset, delay_ms, jitter, now)
        return True

    def give_back(self, offset: int, delay_ms: int | None, jitter: float, now: int) -> None:
        row, config = self.rows[offset], self.config
        if config.attempts_max and row.attempts >= config.attempts_max:
            self._finish(offset)
            self._leave(offset, Why.ATTEMPTS)
            return
        pause_ms = backoff_ms(config, row.attempts, jitter) if delay_ms is None else delay_ms
        moves = not config.keyed
        if not pause_ms:
            self.rows[offset] = Row("ready", row.attempts)
        elif moves and pause_ms > config.window_wait_max_ms:
            self._finish(offset)
            self._leave(offset, Why.WAITS)
        elif moves and 2 * len(self.open("waiting")) >= config.window_max:
            self._finish(offset)
            self._leave(offset, Why.STRAGGLES)
        else:
            self.rows[offset] = Row("waiting", row.attempts, rounded_up(now + pause_ms, pause_ms))

    def extend(self, receipts: list[tuple[int, int, int]], until: int) -> set[int]:
        refused = set()
        for place, (offset, attempt, generation) in enumerate(receipts):
            row = self.row(offset)
            if generation != self.generation or row.state != "leased" or row.attempts != attempt:
                refused.add(place)
            elif row.until:
                row.until = until
        return refused

    def pass_time(self, jitter: float, now: int) -> None:
        for offset, row in enumerate(self.rows):
            if row.state == "leased" and 0 < row.until <= now:
                self.give_back(offset, None, jitter, now)
        for row in self.rows:
            if row.state == "waiting" and row.until <= now:
                row.state, row.until = "ready", 0

    def gone(self, owner: str, jitter: float, now: int) -> None:
        for offset, row in enumerate(self.rows):
            if row.state == "leased" and row.owner == owner:
                self.give_back(offset, 0, jitter, now)

    # --- the rest
    def _finish(self, offset: int) -> None:
        self.rows[offset].state = "done"
        self.rows[offset].until = 0

    def _drop(self, offset: int) -> None:
        self._finish(offset)
        if self.rows[offset].attempts:
            self.rows[offset].ended = 0

    def _leave(self, offset: int, why: Why) -> None:
        assert (self.generation, offset) not in self.outbox, "it has left before"
        self.rows[offset].ended = 0
        if self.config.dead_letter_topic or not why.dies:
            self.outbox[self.generation, offset] = (why, self.rows[offset].attempts)

    def _overflow(self, offset: int) -> None:
        self._drop(offset)
        if self.config.dead_letter_topic:
            self._leave(offset, Why.OVERFLOW)

    def trim(self, end: int) -> None:
        """The oldest that nobody has are dead, beyond the maximum length."""
        config = self.config
        if not config.max_length or config.overflow is not Overflow.DROP_OLDEST:
            return
        excess = len(self.open("ready", "waiting", "leased")) + max(0, end - len(self.rows)) - config.max_length
        for offset in self.open("ready", "waiting")[: max(0, excess)]:
            self._overflow(offset)
            excess -= 1
        for _ in range(max(0, min(excess, end - len(self.rows)))):
            self.rows.append(Row())
            self._overflow(len(self.rows) - 1)

    def follow(self, start: int) -> None:
        self.rows += [Row("done") for _ in range(start - len(self.rows))]
        for offset in range(start):
            self._finish(offset)

    def purge(self, end: int) -> None:
        for offset in self.open("ready", "waiting"):
            self._drop(offset)
        self.rows += [Row("done") for _ in range(end - len(self.rows))]

    def rewind(self, offset: int) -> None:
        self.generation += 1
        self.rows = [Row("done") for _ in range(offset)]
        self.known = set()
        self.outbox = {
            place: left for place, left in self.outbox.items() if left[0].dies
        }  # copies count for nothing now

    def wake(self, jitter: float, now: int) -> None:
        """A new leader: connections are gone, owners and keys are not known."""
        self.known = set()
        for offset, row in enumerate(self.rows):
            row.owner = ""
            if row.state == "leased" and not row.until:
                self.give_back(offset, 0, jitter, now)
