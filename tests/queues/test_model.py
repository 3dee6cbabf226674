"""Random lives of one queue beside a naive one: consumers with and without a connection take and settle, late and
twice; time passes, leaders change with what was kept by then and nothing else, messages leave, people purge and rewind.

After every step both say the same of every message. And whoever only hears kept answers finds that:
- what was accepted is not delivered again, and attempts only go up;
- two messages of a key are never out together, nor out of order;
- nothing comes before its time;
- whoever leaves does so once, and is ordered to by every leader until it has arrived.
In the end all that is not done is delivered.
"""

from collections.abc import Collection
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers.examples import EXAMPLES
from tests.queues.naive import Message, Naive
from tests.queues.rig import DEAD, RETRY, WALL_MS
from tests.queues.rig import settings as queue

from runnel.model.ids import Millis
from runnel.model.step import Step
from runnel.queues import window
from runnel.queues.delivery import Delivery
from runnel.queues.retry import rounded_up
from runnel.queues.values import (
    Extend,
    Lease,
    Leave,
    Leaving,
    LeavingId,
    Offered,
    Outcome,
    OwnerGone,
    Purge,
    Rewind,
    Settle,
    Verdict,
    View,
    Why,
)

MESSAGES_MAX = 60
CONFIGS = [
    queue(leases_max=6, window_max=10, lease_ms=5_000, window_wait_max_ms=8_000, **more)
    for more in (
        {"attempts_max": 3},
        {"attempts_max": 2, "expired": "dead"},
        {"attempts_max": 0, "dead_letter_topic": ""},
        {"order": "key"},
        {"order": "key", "attempts_max": 2, "expired": "dead"},
        {"max_length": 9},
        {"max_length": 9, "order": "key"},
        {"max_length": 4, "dead_letter_topic": ""},
    )
]
owners = st.sampled_from("ab")
jitters = st.sampled_from([0.0, 0.5, 0.9])
Receipt = tuple[int, int, int]


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._real = window.SHIFT, window.CHUNK
        window.SHIFT, window.CHUNK = 2, 4  # type: ignore[misc]  # many chunks with few messages

    def teardown(self) -> None:
        try:
            if hasattr(self, "machine"):
                self._drain()
        finally:
            window.SHIFT, window.CHUNK = self._real  # type: ignore[misc]

    @initialize(config=st.sampled_from(CONFIGS))
    def begin(self, config: Any) -> None:
        self.messages: list[Message] = []
        self.view = View(config, 0, 0, dead=DEAD, retry=RETRY)
        self.now_ms, self.lead_ms = 1_000, WALL_MS - 1_000
        self.kept: dict[bytes, bytes] = {}
        self.naive = self.kept_naive = Naive(config)
        self.pending: list[tuple[Step, Naive, Any]] = []  # decided, and not kept yet
        self.orders: dict[LeavingId, Leave] = {}
        self.receipts: list[Receipt] = []
        self.attempts: dict[tuple[int, int], int] = {}
        self.accepted: set[tuple[int, int]] = set()
        self.arrived: set[tuple[int, int]] = set()
        self._wake()

    # --- the shell
    @property
    def wall_ms(self) -> int:
        return self.now_ms + self.lead_ms

    def _wake(self) -> None:
        self.machine = Delivery()
        self.orders.clear()
        for key, value in self.kept.items():
            self.machine.replay(key, value)
        step = self.machine.wake(self.view, Millis(self.now_ms), Millis(self.wall_ms))
        self.naive = self.kept_naive.copy()
        self.naive.follow(self.view.start)
        self.naive.wake(self.view.jitter, self.wall_ms)
        self._decide(step, None)
        self.keep()
        ordered = {(one.generation, at) for one in self._leaving() for at in range(one.first, one.last + 1)}
        assert ordered == set(self.naive.outbox)

    def _leaving(self) -> list[Any]:
        return [order.leaving for order in self.orders.values()]

    def _decide(self, step: Step, answered: Any) -> None:
        self.pending.append((step, self.naive.copy(), answered))

    def _ask(self, verb: str, request: object, answered: Any = None) -> Any:
        decide = getattr(self.machine, verb)
        self.naive.follow(self.view.start)
        step = decide(request, "t", self.view, Millis(self.now_ms), Millis(self.wall_ms))
        return step, step.replies[0].result

    def _tick(self) -> None:
        due = self.machine.next_deadline_ms()
        if due is None or due > self.now_ms:
            return
        step = self.machine.tick(Millis(self.now_ms), self.view, Millis(self.wall_ms))
        self.naive.follow(self.view.start)
        self.naive.pass_time(self.view.jitter, self.wall_ms)
        self.naive.trim(self.view.end)
        self._decide(step, None)

    @rule()
    def keep(self) -> None:
        """What was decided is kept, and answered."""
        for step, naive, answered in self.pending:
            for key, value in step.records:
                if value is None:
                    self.kept.pop(key)
                else:
                    self.kept[key] = value
            for order in step.orders:
                if isinstance(order, Leave):
                    self.orders[order.leaving.id] = order
            self.kept_naive = naive
            if answered is not None:
                answered()
        self.pending.clear()

    @rule()
    def crash(self) -> None:
        self.pending.clear()
        self._wake()

    # --- producers
    @precondition(lambda self: len(self.messages) < MESSAGES_MAX)
    @rule(
        keys=st.lists(st.sampled_from([None, b"x", b"y", b"z"]), min_size=1, max_size=8),
        odd=st.sampled_from(["", "", "", "filtered", "expires"]),
    )
    def produce(self, keys: list[bytes | None], odd: str) -> None:
        expires_ms = self.wall_ms + 4_000 if odd == "expires" else 0
        self.messages += [Message(key, expires_ms, odd != "filtered") for key in keys]
        self._see(end=len(self.messages))

    def _see(self, **changes: Any) -> None:
        self.view = View(**{name: changes.get(name, getattr(self.view, name)) for name in View.__struct_fields__})

    @rule(ahead=st.integers(0, 5))
    def retain(self, ahead: int) -> None:
        """Retention took some."""
        self._see(start=min(self.view.end, self.view.start + ahead))

    # --- consumers
    @rule(
        owner=owners, count=st.integers(1, 8), lease_ms=st.sampled_from([None, 0, 1_000]),
        skips=st.sets(st.integers(0, MESSAGES_MAX), max_size=20), whole=st.booleans(),
    )  # fmt: skip
    def receive(self, owner: str, count: int, lease_ms: int | None, skips: set[int], whole: bool) -> None:
        self.naive.follow(self.view.start)
        spans = self.machine.wants(owner, self.view, Millis(self.now_ms), count)
        offsets = [at for first, last in spans for at in range(first, last + 1)][:12]
        assert offsets == sorted(set(offsets))
        if self.view.config.keyed:  # who chooses is offered the rest for its keys
            offers = [self._offer(at, at)._replace(wanted=at not in skips) for at in offsets]
            self._lease(owner, count, lease_ms, offsets, offers, skips)
            return
        offsets = [at for at in offsets if at not in skips]
        offers = self._merged(offsets) if whole else [self._offer(at, at) for at in offsets]
        self._lease(owner, count, lease_ms, offsets, offers)

    def _lease(
        self, owner: str, count: int, lease_ms: int | None, offsets: list[int], offers: list[Offered],
        unwanted: Collection[int] = (),
    ) -> list[tuple[int, int]]:  # fmt: skip
        length = self.view.config.lease_ms if lease_ms is None else lease_ms
        until = rounded_up(self.wall_ms + length, length) if length else 0
        self.naive.pass_time(self.view.jitter, self.wall_ms)
        self.naive.trim(self.view.end)
        expected = self.naive.lease(offsets, self.messages, owner, until, count, self.wall_ms, unwanted)
        step, leased = self._ask("lease", Lease(owner, offers, count, lease_ms=lease_ms))
        got = [(at, attempt) for first, last, attempt in leased.grants for at in range(first, last + 1)]
        assert got == expected, (got, expected, offsets)
        assert leased.generation == self.naive.generation
        self._decide(step, lambda: self._deliver(got, leased.generation))
        return got

    def _offer(self, first: int, last: int) -> Offered:
        message = self.messages[first]
        return Offered(first, last, 5, message.passes, message.key, message.expires_ms)

    def _merged(self, offsets: list[int]) -> list[Offered]:
        """Neighbours that are alike, as one."""
        offers: list[Offered] = []
        for at in offsets:
            if (
                offers
                and offers[-1].last + 1 == at
                and self.messages[at] == self.messages[at - 1]
                and (self.messages[at].key is None)
            ):
                offers[-1] = self._offer(offers[-1].first, at)
            else:
                offers.append(self._offer(at, at))
        return offers

    def _deliver(self, got: list[tuple[int, int]], generation: int) -> None:
        """The answer is out: whoever hears it has a say from now on."""
        for offset, attempt in got:
            assert (generation, offset) not in self.accepted
            assert (generation, offset) not in self.arrived
            assert attempt > self.attempts.get((generation, offset), 0)
            self.attempts[generation, offset] = attempt
            self.receipts.append((offset, attempt, generation))

    @precondition(lambda self: self.receipts)
    @rule(
        data=st.data(), outcome=st.sampled_from(Outcome), delay_ms=st.sampled_from([None, 0, 500, 3_000, 9_000]),
        jitter=jitters,
    )  # fmt: skip
    def settle(self, data: Any, outcome: Outcome, delay_ms: int | None, jitter: float) -> None:
        self._see(jitter=jitter)
        receipts = self._some_receipts(data)
        delay = delay_ms if outcome is Outcome.RELEASE else None
        self.naive.follow(self.view.start)
        expected = self.naive.settle(receipts, outcome, delay, jitter, self.wall_ms)
        step, settled = self._ask(
            "settle", Settle([Verdict(at, at, n, generation, outcome, delay) for at, n, generation in receipts])
        )
        assert set(settled.refused) == expected
        self._decide(step, lambda: self._settled(receipts, outcome, expected))

    def _some_receipts(self, data: Any) -> list[Receipt]:
        at = data.draw(st.integers(0, len(self.receipts) - 1))
        some: list[Receipt] = self.receipts[at : at + data.draw(st.integers(1, 6))]
        return some if data.draw(st.booleans()) else some[::-1]

    def _settled(self, receipts: list[Receipt], outcome: Outcome, refused: set[int]) -> None:
        if outcome is Outcome.ACCEPT:
            self.accepted |= {(one[2], one[0]) for place, one in enumerate(receipts) if place not in refused}

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def extend(self, data: Any) -> None:
        receipts = self._some_receipts(data)
        self.naive.follow(self.view.start)
        expected = self.naive.extend(receipts, rounded_up(self.wall_ms + 2_000, 2_000))
        step, extended = self._ask(
            "extend", Extend([Verdict(at, at, n, generation) for at, n, generation in receipts], 2_000)
        )
        assert set(extended.refused) == expected
        self._decide(step, None)

    @rule(owner=owners)
    def hang_up(self, owner: str) -> None:
        self.naive.follow(self.view.start)
        step = self.machine.release_owner(OwnerGone(owner), self.view, Millis(self.now_ms), Millis(self.wall_ms))
        self.naive.gone(owner, self.view.jitter, self.wall_ms)
        self._decide(step, None)

    # --- time and people
    @rule(ms=st.sampled_from([100, 1_100, 6_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self._tick()

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def arrive(self, data: Any) -> None:
        """Messages that were ordered to leave are where they go; a copy is not this queue's affair any more."""
        id = data.draw(st.sampled_from(sorted(self.orders)))
        leaving = self.orders.pop(id).leaving
        step = self.machine.left(id, self.view, Millis(self.now_ms), Millis(self.wall_ms))
        self.naive.follow(self.view.start)
        for offset in range(leaving.first, leaving.last + 1):
            if self._is_recalled(leaving, offset):
                continue
            why, attempts = self.naive.outbox.pop((leaving.generation, offset))
            assert (why, attempts) == (leaving.why, leaving.attempts)
            assert leaving.target == (DEAD if why.dies else RETRY)
            assert (leaving.due_ms > self.wall_ms - 1_000_000) == (why in (Why.WAITS, Why.STRAGGLES))
            self.arrived.add((leaving.generation, offset))
        self.naive.trim(self.view.end)
        self._decide(step, None)

    @rule()
    def purge(self) -> None:
        self.naive.follow(self.view.start)
        self.naive.purge(self.view.end)
        step, _ = self._ask("purge", Purge())
        self._decide(step, None)

    @rule(offset=st.integers(0, MESSAGES_MAX))
    def rewind(self, offset: int) -> None:
        step, rewound = self._ask("rewind", Rewind(offset))
        self.naive.rewind(max(self.view.start, min(offset, self.view.end)))
        assert rewound.generation == self.naive.generation
        self._decide(step, None)

    # --- what holds always
    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.machine.wants("nobody", self.view, Millis(self.now_ms), 1)  # lets what waited be ready
        naive = self.naive.copy()
        naive.follow(self.view.start)
        for row in naive.rows:
            if row.state == "waiting" and row.until <= self.wall_ms:
                row.state, row.until = "ready", 0
        for offset in range(MESSAGES_MAX + 10):
            row = naive.row(offset)
            standing = self.machine.standing(offset)
            assert standing.state == row.state, offset
            if row.state != "done":
                assert (standing.attempts, standing.until_ms) == (row.attempts, row.until)

    @invariant()
    def keys_are_out_one_at_a_time(self) -> None:
        if not hasattr(self, "machine") or not self.view.config.keyed:
            return
        out = [self.messages[offset].key for offset in self.naive.open("leased")]
        known = [key for key in out if key is not None]
        assert len(known) == len(set(known))

    @invariant()
    def what_is_kept_stays_small(self) -> None:
        if hasattr(self, "machine") and not self.pending:
            naive = self.naive
            chunks = {offset >> 2 for offset in naive.open("ready", "waiting", "leased")} | {len(naive.rows) >> 2}
            leaving = len({key for key in self.kept if key[1] >= 3})
            assert len(self.kept) <= 1 + len(chunks) + leaving + 1

    def _drain(self) -> None:
        """All that is not done is delivered, however things stand."""
        self.hang_up("a")
        self.hang_up("b")
        self.keep()
        for _ in range(200):
            self.now_ms += 10_000
            self._tick()
            for id in list(self.orders):
                self._arrive_silently(id)
            self.keep()
            spans = self.machine.wants("z", self.view, Millis(self.now_ms), 50)
            offsets = [at for first, last in spans for at in range(first, last + 1)]
            self.naive.follow(self.view.start)
            got = self._lease("z", 50, None, offsets, [self._offer(at, at) for at in offsets])
            self.keep()
            self._accept(got)
            self.keep()
            if self.naive.done == self.view.end and not self.naive.outbox:
                break
        self.both_say_the_same()
        assert self.naive.done == max(self.view.end, self.view.start)
        assert len([key for key in self.kept if key[1] < 3]) <= 2

    def _arrive_silently(self, id: LeavingId) -> None:
        leaving = self.orders.pop(id).leaving
        step = self.machine.left(id, self.view, Millis(self.now_ms), Millis(self.wall_ms))
        self.naive.follow(self.view.start)
        for offset in range(leaving.first, leaving.last + 1):
            if not self._is_recalled(leaving, offset):
                self.naive.outbox.pop((leaving.generation, offset))
        self.naive.trim(self.view.end)
        self._decide(step, None)

    def _is_recalled(self, leaving: Leaving, offset: int) -> bool:
        """Whether a copy was on its way when the queue was rewound."""
        recalled = not leaving.why.dies and leaving.generation < self.naive.generation
        assert recalled != ((leaving.generation, offset) in self.naive.outbox)
        return recalled

    def _accept(self, got: list[tuple[int, int]]) -> None:
        generation = self.naive.generation
        receipts = [(offset, attempt, generation) for offset, attempt in got]
        self.naive.settle(receipts, Outcome.ACCEPT, None, 0.0, self.wall_ms)
        step, settled = self._ask("settle", Settle([Verdict(at, at, n, own) for at, n, own in receipts]))
        assert not settled.refused
        self._decide(step, lambda: self._settled(receipts, Outcome.ACCEPT, set()))


Lives.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=50)
TestLives = Lives.TestCase
