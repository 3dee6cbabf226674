"""Rules of sinks, each switched off on purpose: some seed of the small world must notice, or a test that stands beside.

python -m tests.transactions.sink_mutants [SEEDS [NAME...]]     prints the table: rule, the seed, what it saw
"""

import random
import sys
from typing import Any, NamedTuple

from msgspec.structs import replace
from tests.simulation.hunting import Mutant, Pack, main
from tests.transactions import sink_world

from runnel.model.sinks import Published
from runnel.transactions import holding, life, refusals
from runnel.transactions.shard import TransactionShard
from runnel.transactions.sink import Sink
from runnel.transactions.sink_records import Phase
from runnel.transactions.sink_slots import Slots
from runnel.transactions.sink_values import SlotHeld, Turn

SEEDS_MAX = 300
TESTS = "tests/transactions/test_holding.py::"


class Outcome(NamedTuple):
    """What came of a seed of the small world."""

    violations: list[str]


def run(seed: int, faults: tuple[str, ...] = ()) -> Outcome:
    try:
        sink_world.run(random.Random(seed).randrange)
    except (AssertionError, KeyError, TypeError) as seen:  # the machines themselves may be at a loss
        return Outcome([f"{type(seen).__name__}: {seen}".splitlines()[0]])
    return Outcome([])


KEEP, HELD = Sink._keep, Sink.held
HOLD, INIT = TransactionShard._hold, TransactionShard._init_producer
CHECK_FINISH, FATE, FENCED = holding.check_finish, holding.fate, life.fenced


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _decide_at_once(self: Sink, turn: Turn) -> None:
    self._held = {each.slot for each in self.head.chosen}
    self._decide_if_held(turn)


def _keep_but(phase: Phase) -> Any:
    """What this phase begins with is done before it is kept, or instead."""

    def keep(self: Sink, head: Any, turn: Turn) -> None:
        before = len(turn.step.records)
        KEEP(self, head, turn)
        if head.phase is phase:
            del turn.step.records[before:]

    return keep


def _last_not_raised(self: Sink, head: Any, turn: Turn) -> None:
    KEEP(self, replace(head, last=min(head.last, head.batch - 1)) if head.phase is Phase.PUBLISHING else head, turn)


def _refusal_is_a_yes(self: Sink, news: SlotHeld, turn: Turn) -> None:
    HELD(self, news._replace(refused=None), turn)


def _any_is_enough(self: Sink, news: SlotHeld, turn: Turn) -> None:
    HELD(self, news, turn)
    if self.head.phase is Phase.HOLDING and self._held:
        _decide_at_once(self, turn)


def _answer_when_decided(self: Sink, head: Any, turn: Turn) -> None:
    KEEP(self, head, turn)
    if head.phase is Phase.PUBLISHING:
        for waiter in self._waiters:
            turn.reply(waiter.ticket, Published(waiter.repeated))
        self._waiters.clear()


def _forget_the_phase(self: Sink, turn: Turn) -> None:
    self._slots.load(self.attempts)
    self._places = {attempt.place: slot for slot, attempt in self.attempts.items()}
    self._drop_outdated(turn)


def _time_goes_on(self: TransactionShard, request: Any, turn: Any) -> Any:
    timers = self._timers
    cancel = timers.cancel
    timers.cancel = _nothing  # type: ignore[method-assign]
    try:
        return HOLD(self, request, turn)
    finally:
        timers.cancel = cancel  # type: ignore[method-assign]


def _take_over_what_is_held(self: TransactionShard, request: Any, turn: Any) -> Any:
    was = self._transactions.get(request.transactional_id)
    if was is not None and was.holder:
        self._transactions[request.transactional_id] = replace(was, holder="")
    return INIT(self, request, turn)


def _unkept_hold(self: TransactionShard, request: Any, turn: Any) -> Any:
    answer = HOLD(self, request, turn)
    turn.step.records.clear()
    return answer


def _of_any_epoch(was: Any, handle: Any) -> bool:
    return not was.state.ending and was.producer_id == handle.producer_id


def _drop_anything(was: Any, request: Any) -> None:
    if request.commit or request.held:
        CHECK_FINISH(was, request)


def _same_epoch(was: Any, *_: Any, **__: Any) -> Any:
    ended = FENCED(was, *_, **__)
    return replace(ended, epoch=was.epoch)


def _always_complete(was: Any, handle: Any) -> Any:
    return replace(FATE(was, handle), complete=True)


MUTANTS = [
    Mutant("no-hold", "all are held before anything is decided", ((Sink, "_hold", _decide_at_once),)),
    Mutant("one-held", "all are held, not one", ((Sink, "held", _any_is_enough),)),
    Mutant("refusal-ignored", "one that can't be held stops all", ((Sink, "held", _refusal_is_a_yes),)),
    Mutant("intent-unkept", "who is meant is kept before any is held", ((Sink, "_keep", _keep_but(Phase.HOLDING)),)),
    Mutant(
        "decision-unkept",
        "the decision is kept before the first commit",
        ((Sink, "_keep", _keep_but(Phase.PUBLISHING)),),
    ),
    Mutant("drop-unkept", "that all are dropped is kept", ((Sink, "_keep", _keep_but(Phase.DROPPING)),)),
    Mutant("batch-again", "a batch is above the last one", ((Sink, "_keep", _last_not_raised),)),
    Mutant("early-answer", "who published sees it published", ((Sink, "_keep", _answer_when_decided),)),
    Mutant("not-resumed", "what was begun goes on after a crash", ((Sink, "resume", _forget_the_phase),)),
    Mutant("slot-reused", "a slot is used by one attempt at a time", ((Slots, "take", lambda self: 0),)),
    Mutant("zombies-stay", "other attempts are aborted", ((Sink, "_drop_outdated", _nothing),)),
    Mutant("time-ends-it", "time does not end what is held", ((TransactionShard, "_hold", _time_goes_on),)),
    Mutant(
        "taken-over",
        "no producer takes over what is held",
        ((TransactionShard, "_init_producer", _take_over_what_is_held),),
        alone=TESTS + "test_no_other_producer_of_the_id_takes_over_what_a_sink_holds",
    ),
    Mutant("hold-unkept", "that it is held is kept", ((TransactionShard, "_hold", _unkept_hold),)),
    Mutant("any-epoch", "a handle names an epoch", ((holding, "is_meant", _of_any_epoch),)),
    Mutant(
        "held-dropped",
        "what is held is not dropped",
        ((holding, "check_finish", _drop_anything),),
        alone=TESTS + "test_what_a_sink_holds_is_not_dropped_by_an_order_that_comes_late",
    ),
    Mutant(
        "goes-on",
        "who wrote what a sink ended can't go on",
        ((life, "fenced", _same_epoch),),
        alone=TESTS + "test_who_wrote_what_a_sink_ended_is_fenced",
    ),
    Mutant(
        "added-to",
        "nothing is added to what is held",
        ((refusals, "held", _nothing),),
        alone=TESTS + "test_nothing_is_added_to_what_a_sink_holds_and_its_producer_does_not_end_it",
    ),
    Mutant("fate-unknown", "an end is complete when partitions know", ((holding, "fate", _always_complete),)),
]
PACK = Pack("sinks", run, MUTANTS, SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(main([PACK], sys.argv[1:]))
