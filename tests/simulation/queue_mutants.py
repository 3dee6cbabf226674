"""Rules of queues, each switched off on purpose.

python -m tests.simulation.queue_mutants [SEEDS [NAME...]]     prints the table: rule, the seed, what it saw
"""

import sys
from functools import partial
from typing import Any

from tests.simulation.hunting import Mutant, Pack, main

from runnel.broker.batches import Batches
from runnel.broker.keepers import KeeperJournal, Keepers
from runnel.doors.kafka.share_sessions import ShareSessions
from runnel.model.step import Step
from runnel.queues import keeper, taking, verdicts
from runnel.queues.breaker import Breaker
from runnel.queues.course import Course, Turn
from runnel.queues.delivery import Delivery
from runnel.queues.demand import Demand
from runnel.queues.holder import Holder
from runnel.queues.keys import Keys
from runnel.queues.outbox import Outbox
from runnel.queues.past import Past
from runnel.queues.status import READY, WAIT, Status
from runnel.queues.values import Leaving, Why
from runnel.queues.window import Window
from runnel.testing.jobs import Queueing
from runnel.testing.simulation import run

SEEDS_MAX = 40
LEADERS = ("kill", "pause", "isolate", "elect", "stop", "client-kill")  # what changes leaders and keepers
LATE = ("isolate", "cut", "pause", "slow", "reset", "client-kill")  # what makes requests come late
TESTS = "tests/queues/test_"
OPENED = "test_an_owner_is_opened_in_no_epoch_that_its_partition_never_had"


def plan(**more: Any) -> dict[str, Any]:
    """A queue that has little of everything, so that its rules are needed often."""
    few = {
        "senders": 1, "workers": 3, "partitions": 1, "attempts_max": 5, "lease_ms": 1_000, "backoff_ms": 50,
        "wait_max_ms": 60_000, "leases_max": 2_000, "window_max": 20_000, "keyed": False, "single": False,
    }  # fmt: skip
    return {"brokers": 3, "replicas": 3, "queueing": Queueing(**{**few, **more})}


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _unkept(*_: Any, **__: Any) -> None:
    return None


def _any_owner(owner: str) -> tuple[str, str]:
    return owner, owner


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _no(*_: Any, **__: Any) -> bool:
    return False


def _none(*_: Any, **__: Any) -> list[Any]:
    return []


def _no_step(*_: Any, **__: Any) -> Step:
    return Step()


def _at_any_epoch(self: ShareSessions, key: Any, epoch: int) -> Any:
    session = self._sessions[key][1]
    session.epoch = epoch
    return RESUME(self, key, epoch)


def _plenty(*_: Any, **__: Any) -> int:
    return 1 << 40


def _hardly_wait(self: Course, piece: Any, pause_ms: int, turn: Any) -> None:
    _wait(self, piece, 1, turn)


_wait = Course._wait


def _uncounted(self: Course, first: int, last: int, attempts: int) -> None:
    self.window.put(first, last, Status(READY, 0))
    if self.keys is not None:
        self.keys.check(first, last)


def _never_dead(self: Course, piece: Any, delay_ms: Any, turn: Any, reason: str = "") -> None:
    self.window.put(piece.first, piece.last, Status(READY, piece.status.attempts))
    if self.keys is not None:
        self.keys.check(piece.first, piece.last)


def _lost_and_done(self: Course, piece: Any, why: Any, reason: str, due_ms: int, turn: Any) -> None:
    """Who leaves is just done."""


def _known(self: Keys) -> int:
    """Who takes over does not learn the keys of what is out."""
    self.known_to = max(self.known_to, self._window.next)
    return self.known_to


def _same_generation(self: Delivery, request: Any, turn: Any) -> Any:
    generation = self._course.generation
    rewound = REWIND(self, request, turn)
    self._course.generation = generation
    return rewound


def _purged_with_leases(self: Delivery, request: Any, turn: Any) -> Any:
    self._window.reset(turn.view.end)
    return PURGE(self, request, turn)


def _pass_over_for_nothing(self: Window, offset: int) -> None:
    self.next = max(self.next, offset)
    self._advance()


def _note_for_ever(self: Past, first: int, last: int, attempt: int, step: Step) -> None:
    self._notes.clear()
    NOTE(self, first, last, attempt, step)


def _as_it_comes(self: Any, offer: Any) -> bool:
    return TAKE(self, offer._replace(expires_ms=0))


REWIND, PURGE = Delivery._rewind, Delivery._purge
TAKE, NOTE = taking.Taking._take, Past.note
RESUME = ShareSessions.resume


def _count_alike(self: Outbox, leaving: Leaving, sign: int) -> None:
    self.messages += sign * (leaving.last - leaving.first + 1)
    self._pieces += sign * (leaving.why is Why.OVERFLOW)


def _drop_excess(self: Course, excess: int, turn: Turn) -> None:
    dropped = self.drop(self.window.unsettled(READY, WAIT), excess, turn)
    self.pass_fresh(self.window.next + excess - dropped)


MUTANTS = [
    Mutant("unkept", "a lease and what is said of it are kept", ((KeeperJournal, "append", _unkept),), LEADERS, plan()),
    Mutant(
        "unfenced",
        "who was replaced keeps nothing any more",
        ((keeper, "_refusal_to_write", _nothing),),
        alone="tests/queues/test_keeper.py",
    ),
    Mutant("any-receipt", "settling compares the attempt", ((verdicts, "concerns", _yes),), LATE, plan(attempts_max=9)),
    Mutant(
        "left-is-accepted",
        "who has left was not accepted",
        ((Past, "was_accepted", _yes),),
        LATE,
        plan(backoff_ms=500, wait_max_ms=100),
    ),
    Mutant("lease-for-ever", "a lease ends", ((Window, "overdue", _none),), ("client-kill",), plan()),
    Mutant(
        "early", "nothing comes before its time", ((Course, "_wait", _hardly_wait),), ("elect",), plan(), sign="early"
    ),
    Mutant("uncounted", "attempts are kept", ((Course, "_put_ready", _uncounted),), LATE, plan()),
    Mutant("immortal", "attempts have an end", ((Course, "give_back", _never_dead),), LATE, plan(attempts_max=2)),
    Mutant("no-key-order", "one message of a key at a time", ((Keys, "is_first", _yes),), LATE, plan(keyed=True)),
    Mutant(
        "keys-unlearned",
        "a new leader learns the keys of what is out",
        ((Keys, "next_unknown", property(_known)),),
        LEADERS,
        plan(keyed=True, lease_ms=10_000),
        sign="overtaken",
    ),
    Mutant("dropped", "who leaves goes somewhere", ((Course, "leave", _lost_and_done),), LATE, plan(attempts_max=2)),
    Mutant(
        "exits-forgotten",
        "the next leader goes on with who leaves",
        ((Outbox, "wake", _nothing),),
        LEADERS,
        plan(attempts_max=2),
    ),
    # --- each by a test alone
    Mutant("no-leases-max", "leases are bounded", ((Demand, "room", _plenty),), alone=TESTS + "delivery.py"),
    Mutant("connections-stay", "leases of connections end with the leader", ((Window, "unsettled", _none),),
           alone=TESTS + "delivery.py"),
    Mutant("unsent-stays", "a lease whose messages did not leave never was", ((Delivery, "take_back", _no_step),),
           alone=TESTS + "delivery.py"),
    Mutant("answers-of-any-size", "no more is sent than there is room for", ((Batches, "_has_room", _yes),),
           alone="tests/broker/test_batches.py"),
    Mutant("share-sessions-stay", "share sessions end with the connection that began them",
           ((ShareSessions, "disconnect", _none),), alone="tests/doors/kafka/test_share_sessions.py"),
    Mutant("share-epochs-any", "requests of a share session come in their order",
           ((ShareSessions, "resume", _at_any_epoch),), alone="tests/doors/kafka/test_share_sessions.py"),
    Mutant("generation-stays", "rewinding voids receipts", ((Delivery, "_rewind", _same_generation),),
           alone=TESTS + "delivery.py"),
    Mutant("purge-all", "purging leaves what somebody has", ((Delivery, "_purge", _purged_with_leases),),
           alone=TESTS + "delivery.py"),
    Mutant("no-retention", "what retention took is done", ((Course, "follow_start", _nothing),),
           alone=TESTS + "delivery.py"),
    Mutant("overflow-dropped", "what overflows is among the dead letters", ((Course, "_overflow", _drop_excess),),
           alone=TESTS + "delivery.py"),
    Mutant("overflow-crowds", "what overflows holds up no consumer", ((Outbox, "_count", _count_alike),),
           alone=TESTS + "delivery.py"),
    Mutant("overflow-unbounded", "what overflows goes piece by piece", ((Outbox, "overflow_room", 1_000_000),),
           alone=TESTS + "delivery.py"),
    Mutant("no-length", "at the maximum length the oldest go", ((Course, "trim", _nothing),),
           alone=TESTS + "delivery.py"),
    Mutant("no-expiry", "expired messages are not delivered", ((taking.Taking, "_take", _as_it_comes),),
           alone=TESTS + "delivery.py"),
    Mutant("no-room-to-wait", "those who wait do not crowd out the others", ((Course, "_waiting_room", _plenty),),
           alone=TESTS + "delivery.py"),
    Mutant("nobody-woken", "who found nothing is told", ((Demand, "_has_some", _no),), alone=TESTS + "delivery.py"),
    Mutant("all-woken", "nobody is woken for nothing", ((Demand, "_has_some", _yes),), alone=TESTS + "delivery.py"),
    Mutant("past-unbounded", "nobody is told for certain what is forgotten", ((Past, "note", _note_for_ever),),
           alone=TESTS + "delivery.py"),
    Mutant("clocks-believed", "no clock holds up a queue", ((Course, "bound_moments", _nothing),),
           alone=TESTS + "delivery.py"),
    Mutant("no-holder", "one consumer at a time", ((Holder, "admits", _yes),), alone=TESTS + "holder.py"),
    Mutant("holder-for-ever", "the place falls free", ((Holder, "gone", _no),), alone=TESTS + "holder.py"),
    Mutant("no-breaker", "nothing is delivered while most fails", ((Breaker, "allowed", _plenty),),
           alone=TESTS + "breaker.py"),
    Mutant("any-owner", "an owner is parsed before anything changes", ((keeper, "owner_partition", _any_owner),),
           alone=TESTS + "keeper.py"),
    Mutant("session-again", "no session comes twice, also where a record was set aside", ((keeper, "BEYOND_ALL", 0),),
           alone=TESTS + "keeper.py"),
    Mutant("epoch-of-nobody", "an owner is opened in no epoch that its partition never had",
           ((Keepers, "_check_epoch", _nothing),), alone="tests/broker/test_keepers.py::" + OPENED),
    Mutant("lost-chunk", "messages that an unreadable record told of come again", ((Delivery, "_lose", _nothing),),
           alone=TESTS + "delivery.py"),
    Mutant("no-seal", "what is done in the middle is forgotten", ((Window, "pass_done", _pass_over_for_nothing),),
           alone=TESTS + "window.py"),
]  # fmt: skip
PACK = Pack("queues", partial(run, queues=True, brief=True), MUTANTS, SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(main([PACK], sys.argv[1:]))
