"""Whatever a coordinator is asked, it can read what it wrote: any values that doors, and calls of brokers, let in."""

from collections.abc import Callable
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.examples import EXAMPLES

from runnel.broker.internal import ImageTopics
from runnel.broker.shard import Machine
from runnel.cluster.image import Image, Partition, Topic
from runnel.groups import values as groups
from runnel.groups.shard import GroupShard
from runnel.groups.share_values import ShareHeartbeat
from runnel.model import internal_calls as keepers
from runnel.model import sinks
from runnel.model.ids import BrokerId, Epoch, Millis, PartitionKey, TopicId
from runnel.queues import redrive
from runnel.queues.keeper import KeeperShard, owner_name
from runnel.testing.clock import SeededRng
from runnel.transactions import values as transactions
from runnel.transactions.shard import TransactionShard
from runnel.transactions.sink_values import SinkConfig
from runnel.transactions.sinks import SinkShard

ME = (BrokerId(1),)
TOPIC = TopicId(UUID(int=7))
PLACED = Partition(ME[0], Epoch(0), Epoch(0), ME, ME)
IMAGE = Image("cluster", topics={TOPIC: Topic(TOPIC, "t", (PLACED,))}, names={"t": TOPIC})
OWNER = owner_name("q", PartitionKey(TOPIC, 0))
NAMES = ["", "a", "t", "range", "consumer", "p0", OWNER, f"q/{TOPIC}/x", "sink/a/0", "é" * 100]
NUMBERS = [0, 1, 2, 10_000, -1, -2, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)]
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: st.sampled_from(NAMES),
    int: st.just(0) | st.sampled_from(NUMBERS),
    bool: st.booleans(),
    bytes: st.binary(max_size=3),
    UUID: st.sampled_from([TOPIC, UUID(int=8)]),
    NoneType: st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, few enough of each that they meet."""
    hint = getattr(hint, "__supertype__", hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of([values(part) for part in parts])
    if origin is list or (origin is tuple and parts[-1] is ...):
        return st.lists(values(parts[0]), max_size=2).map(origin)
    if origin is tuple:
        return st.tuples(*map(values, parts))
    if origin is dict:
        return st.dictionaries(values(parts[0]), values(parts[1]), max_size=2)
    if origin is not None:
        return st.sampled_from(parts)  # of a Literal
    return st.builds(hint, **{name: values(part) for name, part in get_type_hints(hint).items()})


class Case(NamedTuple):
    """A machine, what it sees, and what it can be asked."""

    new: Callable[[], Machine[Any]]
    view: Any
    verbs: dict[str, type]


CASES = {
    "groups": Case(
        lambda: GroupShard(groups.GroupConfig(initial_rebalance_delay_ms=0), SeededRng(1)),
        ImageTopics(IMAGE),
        {
            "join": groups.Join, "sync": groups.Sync, "consumer_heartbeat": groups.ConsumerHeartbeat,
            "share_heartbeat": ShareHeartbeat, "commit_offsets": groups.CommitOffsets,
            "commit_in_transaction": groups.CommitInTransaction,
        },
    ),
    "transactions": Case(
        lambda: TransactionShard(transactions.TransactionConfig(60_000, 60_000)),
        ImageTopics(IMAGE),
        {
            "init_producer": transactions.InitProducer, "add_partitions": transactions.AddPartitions,
            "end": transactions.EndTransaction, "hold": sinks.Hold, "finish": sinks.Finish,
        },
    ),
    "sinks": Case(
        lambda: SinkShard(SinkConfig()),
        None,
        {"begin": sinks.BeginAttempt, "commit": sinks.CommitBatch, "abort": sinks.AbortBatch,
         "forget": sinks.NamedSink},
    ),
    "queues": Case(
        KeeperShard,
        frozenset(),
        {"open": keepers.KeeperOpen, "write": keepers.KeeperWrite, "forget": keepers.KeeperForget},
    ),
    "redrives": Case(
        redrive.Redriving,
        redrive.View(0, 5_000),
        {"start": redrive.Start, "stop": redrive.Stop, "aim": redrive.Aim, "progress": redrive.Progress},
    ),
}  # fmt: skip


def loaded(case: Case, log: list[tuple[bytes, bytes | None]]) -> Machine[Any]:
    """The next leader's, who reads all of the log."""
    machine = case.new()
    for key, value in log:
        machine.replay(key, value)
    log += machine.wake(case.view, Millis(1), Millis(1)).records
    return machine


@pytest.mark.parametrize("name", CASES)
def test_what_a_coordinator_wrote_it_can_read(name: str) -> None:
    case = CASES[name]
    asked = st.sampled_from(sorted(case.verbs)).flatmap(lambda verb: st.tuples(st.just(verb), values(case.verbs[verb])))

    @settings(max_examples=EXAMPLES)
    @given(st.lists(asked, max_size=8))
    def lead_a_life(life: list[tuple[str, Any]]) -> None:
        log: list[tuple[bytes, bytes | None]] = []
        machine = loaded(case, log)
        for verb, request in life:
            with suppress(Exception):
                step = getattr(machine, verb)(request, "ticket", case.view, Millis(1), Millis(1))
                log += step.records
                continue
            machine = loaded(case, log)  # what it has in memory is thrown away, as its shell does it
        loaded(case, log)

    lead_a_life()
