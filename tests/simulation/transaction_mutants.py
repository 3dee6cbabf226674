"""Rules of transactions, each switched off on purpose.

python -m tests.simulation.transaction_mutants [SEEDS [NAME...]]     prints the table: rule, the seed, what it saw
"""

import sys
from functools import partial
from typing import Any

from msgspec.structs import replace
from tests.simulation.hunting import Mutant, Pack, main

from runnel.broker.endings import Endings
from runnel.broker.gate import Gate
from runnel.broker.markers import MarkerSender, Telling
from runnel.broker.shard import Shard
from runnel.client.membership import GroupSettings
from runnel.client.sender import ProducerSettings
from runnel.groups import pending
from runnel.groups.classic import ClassicGroup
from runnel.log.log import Log
from runnel.log.transactions import Transactions
from runnel.model.step import Step
from runnel.replica.partition import Partition
from runnel.testing.ledger import Transacting
from runnel.testing.simulation import run
from runnel.transactions import life, shard
from runnel.transactions.shard import TransactionShard

SEEDS_MAX = 60
MEMBERS = GroupSettings(6_000, rebalance_timeout_ms=500, heartbeat_ms=200)  # who dawdles loses its seat
LATE = ("isolate", "cut", "pause", "slow", "reset", "client-kill")  # what makes requests come late
THREE = {"brokers": 3, "replicas": 3}
FEW = {"members": 0, "new_members": 0, "drafts": False, "partitions": 2, "group": MEMBERS}  # beside the transactions
LEADERS = ("kill", "pause", "isolate", "elect", "stop", "client-kill")  # what changes leaders and coordinators


def plan(**more: Any) -> dict[str, Any]:
    """Transactions, and little beside them: so most faults strike those."""
    few = {"transactors": 2, "transformers": 0, "partitions": 2, "modern": False}
    settings = ProducerSettings(
        linger_ms=0, batch_bytes=300, in_flight_max=5, request_timeout_ms=2_000, delivery_timeout_ms=4_000,
        block_timeout_ms=5_000, transaction_timeout_ms=8_000,
    )  # fmt: skip
    return {**THREE, **FEW, "transactions": Transacting(**{**few, **more}, settings=settings)}


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _done(*_: Any, **__: Any) -> None:
    return None


async def _none_aborted(*_: Any) -> list[Any]:
    return []


async def _admitted(self: Gate, transactional_id: str, producer_id: int, epoch: int, places: Any, **_: Any) -> Any:
    return dict.fromkeys(places)


def _ignores_ended(self: Transactions, upto: int) -> int | None:
    """What a marker ended counts as stable before the marker is committed."""
    while self._ended:
        self._unstable.pop(self._ended.popleft()[1], None)
    return next(iter(self._unstable), None)


def _same_epoch(was: Any, new_id: Any) -> Any:
    return was.identity


def _fenced_in_the_same_epoch(was: Any, *arguments: Any, **options: Any) -> Any:
    return replace(FENCED(was, *arguments, **options), epoch=was.epoch)


def _forgotten(self: TransactionShard, request: Any, was: Any, asks_again: bool, turn: Any) -> Any:
    """Whoever comes next does not end what the one before it began."""
    return self._renew(request, was, turn)


def _tell_all_but_one(self: MarkerSender, telling: Telling) -> None:
    if len(telling.left) > 1:
        telling.left.discard(min(telling.left))
    TELL(self, telling)


def _done_before_it_is_told(self: MarkerSender, telling: Telling) -> None:
    done, telling.on_done = telling.on_done, lambda: None
    telling.is_wanted = lambda: True
    TELL(self, telling)
    done()


def _wake_without_orders(self: TransactionShard, *arguments: Any) -> Step:
    step = WAKE(self, *arguments)
    step.orders.clear()
    return step


def _told_once(self: MarkerSender, marker: Any, *_: Any) -> None:
    """A marker counts as written, whatever the leader said."""
    self._done(marker)


async def _no_offsets(self: Endings, place: Any, topic: str, number: int) -> Any:
    return None if topic.startswith("__") else await WRITE(self, place, topic, number)


def _at_once(self: Shard[Any], step: Any) -> None:
    """Orders are carried out before what was decided is committed."""
    for order in step.orders:
        self._carry_out(order)
    step.orders.clear()
    TAKE(self, step)


def _none_pending(*_: Any) -> frozenset[Any]:
    return frozenset()


FENCED, WRITE, TAKE = life.fenced, Endings._write, Shard._take
TELL, WAKE = MarkerSender.tell, TransactionShard.wake

MUTANTS = [
    Mutant(
        "lso-at-high",
        "committed messages are read up to the first open transaction",
        ((Log, "first_unstable", _nothing),),
    ),
    Mutant(
        "none-aborted",
        "readers are told what was aborted",
        ((Log, "aborted", _none_aborted), (Log, "aborted_cached", lambda *_: [])),
    ),
    Mutant("no-marker", "every partition is told how a transaction ended", ((Partition, "write_marker", _done),)),
    Mutant("told-once", "a partition is told until it knows", ((MarkerSender, "_judged", _told_once),), LEADERS),
    Mutant("no-group-marker", "groups are told how a transaction ended", ((Endings, "_write", _no_offsets),)),
    Mutant("no-fencing", "each producer of an id has an epoch of its own", ((life, "_next", _same_epoch),), LATE),
    Mutant(
        "fenced-same-epoch",
        "what is ended against its producer's will goes on under no epoch",
        ((life, "fenced", _fenced_in_the_same_epoch),),
        LATE,
    ),
    Mutant(
        "left-open",
        "what the producer before left open is aborted",
        ((TransactionShard, "_fence", _forgotten),),
        ("client-kill",),
        {**plan(partitions=12), "fault_every_s": 0.2},
    ),
    Mutant(
        "any-producer",
        "only the present producer ends a transaction",
        ((shard, "_check_producer", _nothing),),
        LATE,
        plan(rivals=True),
    ),
    Mutant(
        "unverified",
        "a batch opens a transaction only where its coordinator knows of it",
        ((Gate, "admit", _admitted),),
        LATE,
        plan(modern=True),
    ),
    Mutant(
        "marker-uncommitted",
        "a transaction has ended once its marker is committed",
        ((Transactions, "first_unstable", _ignores_ended),),
        alone="tests/log/test_transactions.py::test_unstable_is_what_is_open_or_whose_marker_is_not_committed",
    ),
    Mutant(
        "orders-first",
        "how a transaction ends is kept before partitions are told",
        ((Shard, "_take", _at_once),),
        alone="tests/broker/test_transactions.py::test_no_partition_hears_of_a_decision_before_the_disk_has_it",
    ),
    Mutant(
        "one-untold",
        "every partition hears how its transaction ended",
        ((MarkerSender, "tell", _tell_all_but_one),),
        LATE,
        plan(),
    ),
    Mutant(
        "complete-early",
        "the next transaction waits until the last one has ended everywhere (KAFKA-18575)",
        ((MarkerSender, "tell", _done_before_it_is_told),),
        ("cut", "pause", "slow"),
        {**THREE, **FEW},
    ),
    Mutant(
        "decision-forgotten",
        "the next coordinator goes on with what was decided",
        ((TransactionShard, "wake", _wake_without_orders),),
        ("kill", "elect", "slow", "cut"),
        {**plan(), "fault_every_s": 0.3},
    ),
    Mutant(
        "no-timeout",
        "a transaction whose producer is gone is aborted in time",
        ((TransactionShard, "next_deadline_ms", _nothing),),
        ("client-kill",),
        plan(deserts=0.3),
    ),
    Mutant(
        "seatless-offsets",
        "who lost its seat can't commit in a transaction",
        ((ClassicGroup, "check_transaction", _nothing),),
        ("pause", "client-kill", "slow"),
        plan(transactors=0, transformers=3),
    ),
    Mutant(
        "pending-unseen",
        "who asks for offsets waits for open transactions",
        ((pending, "partitions", _none_pending),),
        ("pause", "client-kill", "slow"),
        plan(transactors=0, transformers=3),
    ),
]
PACK = Pack("txn", partial(run, transactions=True, brief=True), MUTANTS, SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(main([PACK], sys.argv[1:]))
