"""Rules of the schedule and of appending once, each switched off on purpose.

python -m tests.simulation.schedule_mutants [SEEDS [NAME...]]     prints the table: rule, the seed, what it saw
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.simulation.hunting import Mutant, Pack, main

from runnel.broker import schedule, schedule_shards
from runnel.broker.keyed_lock import KeyedLock
from runnel.broker.once_names import KnownNames
from runnel.broker.requests import Ledger
from runnel.broker.schedule_book import Book
from runnel.broker.schedule_shard import ScheduleShard
from runnel.model.ids import PartitionKey
from runnel.model.requests import Claim, Claimed
from runnel.model.schedule import Front, Parked, Row
from runnel.queues import schedule as agenda
from runnel.queues.schedule import ANY, Agenda, Fire, KeepFront
from runnel.replica.names import Names
from runnel.testing.reminders import Reminding
from runnel.testing.simulation import run

SEEDS_MAX = 40
LEADERS = ("kill", "pause", "isolate", "elect", "stop")  # what changes leaders
LATE = ("isolate", "cut", "pause", "slow", "reset", "elect")  # what makes answers come late, or never
TESTS = "tests/queues/test_schedule.py"
CLUSTER = "tests/test_schedule_cluster.py"
LINE = "tests/broker/test_once_line.py"
BROKER = "tests/broker/test_schedule.py"
REQUESTS = "tests/broker/test_requests.py"


def plan(**more: Any) -> dict[str, Any]:
    """Messages that come soon, so that leaders end around their times."""
    soon = {"planners": 2, "partitions": 1, "delays_ms": (100, 1_500), "changed": 0.3, "named": 0.3}
    return {"brokers": 3, "replicas": 3, "reminding": Reminding(**{**soon, **more})}


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _yes(*_: Any, **__: Any) -> bool:
    return True


async def _uncommitted(*_: Any, **__: Any) -> None:
    return None


async def _never(*_: Any, **__: Any) -> bool:
    return False


@asynccontextmanager
async def _at_once(*_: Any) -> AsyncIterator[None]:
    yield


async def _given_to_one(self: Ledger, claim: Claim) -> Claimed:
    """However many have it."""
    claimed = await CLAIM(self, claim)
    self._given[claim.key] = 1
    return claimed


async def _until_now(self: KnownNames, before: Any, until: int) -> Any:
    """What others learned while it looked for where to begin is taken for known."""
    start = await self._start_of(before) if before else 0
    return await LOOK_BEFORE(self, before, self.names.covered) if start else {}


async def _unkept_front(self: ScheduleShard, order: KeepFront) -> None:
    floor = await self._once.floor(order.target.topic_id, order.target.number)
    self._agenda.fronted(order.target, Front(order.upto_ms, floor))


def _forgetful_order(target: PartitionKey, one: Any, now_ms: int) -> Any:
    order = ORDER(target, one, now_ms)
    return order._replace(floor_max=ANY) if isinstance(order, KeepFront) else order


def _to_the_front(target: PartitionKey, one: Any, now_ms: int) -> Any:
    order = ORDER(target, one, now_ms)
    return order._replace(upto_ms=one.front.upto_ms) if isinstance(order, Fire) else order


def _change_anything(self: Agenda, row: Row) -> None:
    self._of(row.target).changing.add(row.id)


def _change_what_was_inherited(self: Agenda, row: Row) -> None:
    self._of(row.target).inherited_ms = -1
    CHANGE(self, row)


async def _cancel_in_memory(self: ScheduleShard, seen: Row, due_ms: int | None) -> None:
    if due_ms is not None:
        await CHANGED(self, seen, due_ms)
        return
    self._must_serve()
    self._agenda.change(seen)  # and for ever: it is not sent while this leader leads


def _as_the_first_time(message: Parked, floor: int) -> Parked:
    return message


ORDER, CHANGE, CHANGED, LOOK_BEFORE = agenda._order, Agenda.change, ScheduleShard._change, KnownNames._look_before
CLAIM = Ledger.claim

MUTANTS = [
    Mutant("append-anyway", "a name is appended once", ((Names, "find", _nothing), (KnownNames, "knows", _yes)), LATE,
           plan(named=0.6)),
    Mutant("front-unkept", "a front is kept before anything is sent", ((ScheduleShard, "_keep_front", _unkept_front),),
           LEADERS, plan(named=0.0)),
    Mutant("floor-above-unburied", "no floor is above what is not buried", ((agenda, "_order", _forgetful_order),),
           alone=TESTS),
    Mutant("sent-early", "nothing is sent before it is due", ((agenda, "_order", _to_the_front),), LEADERS, plan()),
    Mutant("answered-early", "parked is what is committed", ((Book, "_committed", _uncommitted),), LEADERS, plan()),
    Mutant("cancel-in-memory", "to cancel is kept", ((ScheduleShard, "_change", _cancel_in_memory),), LEADERS,
           plan(changed=0.6, delays_ms=(1_500, 4_000)), sign="unexpected"),
    Mutant("change-anything", "what is being sent is not changed", ((Agenda, "change", _change_anything),), LEADERS,
           plan(changed=0.6)),
    Mutant("change-inherited", "what another may have sent is not changed",
           ((Agenda, "change", _change_what_was_inherited),), alone=TESTS),
    Mutant("cancelled-forgotten", "who asks again whether it is cancelled gets the same answer",
           ((ScheduleShard, "_was_cancelled", _never),), alone=BROKER),
    Mutant("changes-at-once", "changes of one id come one after the other", ((KeyedLock, "of", _at_once),),
           alone=BROKER),
    Mutant("key-let-go", "a key stays while another attempt may leave something", ((Ledger, "claim", _given_to_one),),
           alone=REQUESTS),
    Mutant("first-again", "who parks again says so", ((schedule, "_again", _as_the_first_time),), alone=CLUSTER),
    Mutant("clock-believed", "a clock that is set back makes no pause longer", ((Agenda, "_look_at_clock", _nothing),),
           ("clock",), plan(named=0.0, delays_ms=(3_000,))),
    Mutant("parks-anything", "the leader of a shard parks what can be sent", ((schedule_shards, "check", _nothing),),
           alone="tests/broker/test_schedule.py"),
    Mutant("look-shared", "who looks into the log reads all that memory did not have",
           ((KnownNames, "_look_before", _until_now),), alone=LINE),
]  # fmt: skip
PACK = Pack("schedule", partial(run, schedule=True, brief=True), MUTANTS, SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(main([PACK], sys.argv[1:]))
