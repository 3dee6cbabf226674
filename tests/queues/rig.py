"""A delivery, what is kept of it, and short words for what is asked of it."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from runnel.model.ids import Millis, TopicId
from runnel.model.queue_config import DEFAULTS, QueueConfig
from runnel.model.step import Step
from runnel.queues.delivery import Delivery
from runnel.queues.values import (
    Available,
    Describe,
    Described,
    Extend,
    Lease,
    Leased,
    Leave,
    Leaving,
    Offered,
    Outcome,
    OwnerGone,
    Purge,
    Purged,
    Rewind,
    Rewound,
    Settle,
    Settled,
    Span,
    Target,
    Verdict,
    View,
)

WALL_MS = 1_700_000_000_000
DEAD = Target(TopicId(UUID(int=1)), 0, 7)
RETRY = Target(TopicId(UUID(int=2)), 0, 9)


def settings(**texts: str | int) -> QueueConfig:
    """Settings by their names with underscores."""
    return DEFAULTS.with_overrides({name.replace("_", "."): str(text) for name, text in texts.items()})


class Rig:
    """Keeps every record, as the keeper would: the last of each key."""

    def __init__(self, end: int = 100, log_start: int = 0, **texts: Any) -> None:
        self.view = View(settings(**texts), log_start, end, dead=DEAD, retry=RETRY)
        self.now_ms = 5_000
        self.wall_ms = WALL_MS
        self.kept: dict[bytes, bytes] = {}
        self.written: list[int] = []  # records of each step
        self.leaving: list[Leaving] = []
        self.available = 0
        self.wake()
        self.available = 0  # each machine begins with a ring

    # --- the shell
    def wake(self) -> Step:
        """A new leader: only what was kept is known."""
        self.machine = Delivery()
        self.leaving.clear()
        for key, value in self.kept.items():
            self.machine.replay(key, value)
        return self.perform(self.machine.wake(self.view, Millis(self.now_ms), Millis(self.wall_ms)))

    def perform(self, step: Step) -> Step:
        for key, value in step.records:
            if value is None:
                del self.kept[key]
            else:
                self.kept[key] = value
        self.written.append(len(step.records))
        for order in step.orders:
            if isinstance(order, Available):
                self.available += 1
            elif isinstance(order, Leave):
                self.leaving.append(order.leaving)
        return step

    def ask(self, verb: str, request: object) -> Any:
        decide = getattr(self.machine, verb)
        step = self.perform(decide(request, "ticket", self.view, Millis(self.now_ms), Millis(self.wall_ms)))
        (reply,) = step.replies
        assert reply.ticket == "ticket"
        return reply.result

    def tell(self, verb: str, news: object) -> Step:
        decide = getattr(self.machine, verb)
        return self.perform(decide(news, self.view, Millis(self.now_ms), Millis(self.wall_ms)))

    def pass_time(self, ms: int) -> None:
        """Let time pass, with everything done when it is due."""
        until = self.now_ms + ms
        for _ in range(10_000):
            due = self.machine.next_deadline_ms()
            if due is None or due > until:
                break
            self._move(max(due, self.now_ms) - self.now_ms)
            self.perform(self.machine.tick(Millis(self.now_ms), self.view, Millis(self.wall_ms)))
        else:
            raise AssertionError("something is due again and again")
        self._move(until - self.now_ms)

    def _move(self, ms: int) -> None:
        self.now_ms += ms
        self.wall_ms += ms

    def see(self, **changes: object) -> None:
        self.view = replace(self.view, **changes)

    def alter(self, **texts: str | int) -> None:
        given = {name.replace("_", "."): str(text) for name, text in texts.items()}
        self.see(config=self.view.config.with_overrides(given))

    # --- consumers
    def wants(self, owner: str = "a", messages_max: int = 10) -> list[Span]:
        return self.machine.wants(owner, self.view, Millis(self.now_ms), messages_max)

    def offer(self, offers: Sequence[Offered], owner: str = "a", messages_max: int = 10, **more: Any) -> Leased:
        answer = self.ask("lease", Lease(owner, offers, messages_max, **more))
        assert isinstance(answer, Leased)
        return answer

    def lease(self, owner: str = "a", messages_max: int = 10, **more: Any) -> list[tuple[int, int]]:
        """Lease what is wanted; gives offsets and attempts."""
        offers = [Offered(first, last, 10 * (last - first + 1)) for first, last in self.wants(owner, messages_max)]
        return flat(self.offer(offers, owner, messages_max, **more))

    def settle(self, outcome: Outcome, *offsets: int, attempt: int = 1, generation: int = 0, **more: Any) -> set[int]:
        """Gives the offsets that were refused."""
        verdicts = [Verdict(offset, offset, attempt, generation, outcome, **more) for offset in offsets]
        answer = self.ask("settle", Settle(verdicts))
        assert isinstance(answer, Settled)
        return {offsets[place] for place in answer.refused}

    def accept(self, *offsets: int, attempt: int = 1, generation: int = 0) -> set[int]:
        return self.settle(Outcome.ACCEPT, *offsets, attempt=attempt, generation=generation)

    def release(self, *offsets: int, attempt: int = 1, delay_ms: int | None = 0, generation: int = 0) -> set[int]:
        return self.settle(Outcome.RELEASE, *offsets, attempt=attempt, delay_ms=delay_ms, generation=generation)

    def reject(self, *offsets: int, attempt: int = 1, reason: str = "", generation: int = 0) -> set[int]:
        return self.settle(Outcome.REJECT, *offsets, attempt=attempt, reason=reason, generation=generation)

    def extend(self, *offsets: int, attempt: int = 1, lease_ms: int | None = None) -> set[int]:
        verdicts = [Verdict(offset, offset, attempt, 0) for offset in offsets]
        answer = self.ask("extend", Extend(verdicts, lease_ms))
        assert isinstance(answer, Settled)
        return {offsets[place] for place in answer.refused}

    def gone(self, owner: str = "a") -> None:
        self.tell("release_owner", OwnerGone(owner))

    def purge(self) -> int:
        answer = self.ask("purge", Purge())
        assert isinstance(answer, Purged)
        return answer.messages

    def rewind(self, offset: int) -> Rewound:
        answer = self.ask("rewind", Rewind(offset))
        assert isinstance(answer, Rewound)
        return answer

    def describe(self) -> Described:
        answer = self.ask("describe", Describe())
        assert isinstance(answer, Described)
        return answer

    def states(self, first: int, last: int) -> str:
        """One letter for each offset: done, ready, waiting, leased, new."""
        return "".join(self.machine.standing(offset).state[0] for offset in range(first, last + 1))


def flat(leased: Leased) -> list[tuple[int, int]]:
    return [(offset, attempt) for first, last, attempt in leased.grants for offset in range(first, last + 1)]


def one(offset: int, **more: Any) -> Offered:
    return Offered(offset, offset, 10, **more)
