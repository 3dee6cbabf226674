"""Random lives of one transactional id: producers of both ages come, write, end, take too long, lose answers and ask
again, and are replaced; coordinators change; partitions hear of ends sooner or later.

After every step:
- a replay of the log gives the same state, and goes on with the same markers;
- no identity belongs to two producers, and only the newest producer that was told who it is can write and end;
- how a transaction ended never changes, and nobody but its own producer commits it;
- with KIP-890 an identity writes one transaction at most, and markers never carry an epoch that was written in;
- what runs has a deadline, and what was decided has its markers under way.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers.examples import EXAMPLES
from tests.transactions.rig import TIMEOUT_MS, Rig, shown

from runnel.model.errors import ConcurrentTransactions, InvalidProducerMapping, ProducerFenced
from runnel.model.ids import ProducerId
from runnel.transactions.records import Transaction
from runnel.transactions.values import EPOCH_LAST, NOBODY, Identity, State, Verdict

numbers = st.integers(0, 2)  # of the producers


@dataclass(eq=False)
class Producer:
    """A client, and what it knows: the last identity that it was told."""

    modern: bool
    number: int
    identity: Identity = NOBODY
    open: bool = False  # it has been told that a partition takes part
    wish: bool | None = None  # the end that it asked for and has no answer to


@dataclass
class Truth:
    """One transaction, as whoever sees everything would tell it."""

    writer: Identity
    producer: Producer | None
    outcome: bool | None = None


class Lives(RuleBasedStateMachine):
    @initialize(epoch=st.sampled_from([None, 0, EPOCH_LAST - 2, EPOCH_LAST]), ages=st.tuples(*[st.booleans()] * 3))
    def begin(self, epoch: int | None, ages: tuple[bool, ...]) -> None:
        old = None if epoch is None else Transaction(State.EMPTY, ProducerId(1), epoch, TIMEOUT_MS, 1_000_000)
        self.rig = Rig(old)
        self.producers = [Producer(modern, number) for number, modern in enumerate(ages)]
        self.owners: dict[Identity, Producer] = {}
        self.newest: Producer | None = None  # of those that were told who they are
        self.running: Truth | None = None
        self.past: list[Truth] = []

    # --- what producers do

    @rule(number=numbers, commit=st.booleans(), lost=st.booleans())
    def transact(self, number: int, commit: bool, lost: bool) -> None:
        """What a producer does all day."""
        if self.producers[number].identity == NOBODY:
            self.init(number, lost=False, again=False)
        self.add(number, "t/0")
        self.end(number, commit, lost)

    @rule(number=numbers, lost=st.booleans(), again=st.booleans())
    def init(self, number: int, lost: bool, again: bool) -> None:
        """Begin, or go on under another epoch (KIP-360). The answer may be lost."""
        producer = self.producers[number]
        past = shown(producer.identity) if again and producer.identity != NOBODY else ""
        before = self.newest
        answer = self.rig.init(past)
        self._fenced_if_replaced(producer, answer, asks=bool(past))
        if not isinstance(answer, Identity):
            return
        assert self.owners.setdefault(answer, producer) is producer, "two producers have one identity"
        if not past or before is producer:
            self.newest = producer
        if not lost:
            producer.identity, producer.open, producer.wish = answer, False, None

    @rule(number=numbers, partition=st.sampled_from(["t/0", "t/1", "u/2"]))
    def add(self, number: int, partition: str) -> None:
        producer = self.producers[number]
        if producer.identity == NOBODY:
            return
        answer = self.rig.add(shown(producer.identity), partition)
        self._fenced_if_replaced(producer, answer, asks=True)
        if answer is None:
            producer.open = True
            if self.running is None:
                self.running = Truth(producer.identity, producer)
            assert self.running.producer is producer, "somebody else's transaction"

    @rule(number=numbers, commit=st.booleans(), lost=st.booleans())
    def end(self, number: int, commit: bool, lost: bool) -> None:
        """End what runs, or ask again for the same."""
        producer = self.producers[number]
        if producer.identity == NOBODY:
            return
        wish = commit if producer.wish is None else producer.wish
        was = self.running
        answer = self.rig.end(shown(producer.identity), commit=wish, bumps=producer.modern)
        self._fenced_if_replaced(producer, answer, asks=True)
        state = self.rig.state()
        if was is not None and was.outcome is None and state is not None and state.state.ending:
            assert was.producer is producer, "somebody else ended it"
            was.outcome = wish
        if isinstance(answer, Identity):
            assert self.owners.setdefault(answer, producer) is producer, "two producers have one identity"
            if producer.wish is not None or lost:
                producer.wish = wish
            if not lost:
                producer.identity, producer.open, producer.wish = answer, False, None

    def _fenced_if_replaced(self, producer: Producer, answer: Any, *, asks: bool) -> None:
        """Whoever was replaced can do nothing any more but begin anew."""
        if asks and self.newest is not None and self.newest is not producer:
            assert isinstance(answer, ProducerFenced | InvalidProducerMapping | ConcurrentTransactions), answer

    # --- what else happens

    @rule(ms=st.sampled_from([1, 1, 1, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def wait(self, ms: int) -> None:
        self.rig.wait(ms)

    @precondition(lambda self: self.rig.orders)
    @rule()
    def mark(self) -> None:
        self.rig.mark()

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    # --- what holds

    @invariant()
    def a_replay_gives_the_same(self) -> None:
        assert self.rig.replayed()._transactions == self.rig.shard._transactions

    @invariant()
    def decisions_last(self) -> None:
        """Follow the transaction that runs; what was decided about it without its producer is an abort."""
        state = self.rig.state()
        running = self.running
        for verdict in self.rig.orders:
            if running is not None and running.outcome is None:
                assert not verdict.commit, "nobody asked for this commit"
                running.outcome = False
            if running is not None:
                assert verdict.commit == running.outcome
                self._check_epoch(verdict, running)
        if running is not None and (state is None or not state.state.running):
            assert state is not None
            assert running.outcome is not None, "it ended and nobody decided it"
            assert (state.state is State.COMPLETE_COMMIT) == running.outcome or state.state is State.EMPTY
            self.past.append(running)
            self.running = None

    def _check_epoch(self, verdict: Verdict, running: Truth) -> None:
        if verdict.version == 2:
            assert verdict.producer.epoch == running.writer.epoch + 1
        else:
            assert verdict.producer == running.writer
        assert verdict.producer.producer_id == running.writer.producer_id

    @invariant()
    def an_identity_writes_once(self) -> None:
        writers = [each.writer for each in self.past if each.producer is not None and each.producer.modern]
        assert len(writers) == len(set(writers))

    @invariant()
    def what_runs_has_a_deadline_and_what_was_decided_its_markers(self) -> None:
        state = self.rig.state()
        if state is None:
            return
        if state.state is State.ONGOING:
            assert state.epoch <= EPOCH_LAST
            due = self.rig.shard.next_deadline_ms()
            assert due is not None
            assert due <= self.rig.now_ms + state.timeout_ms
        assert bool(self.rig.orders) == state.state.ending


Lives.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=60)
TestLives = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")(Lives.TestCase)
