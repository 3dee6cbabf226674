"""A record that its coordinator can't take over costs its neighbours nothing, is told of once, and is counted."""

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
import pytest
from tests.broker.conftest import OpenPartition
from tests.broker.test_due_tail import Run, append, ids, parked

from runnel.broker.due_tail import Tail
from runnel.broker.internal import ImageTopics
from runnel.broker.journal import PartitionJournal
from runnel.broker.keepers import KeeperJournal, Keepers
from runnel.broker.shard import Machine, Shard
from runnel.cluster.image import Image
from runnel.groups import record_codec as groups
from runnel.groups.records import AnyKey, OffsetKey, OffsetRecord, TopicKey, TopicRecord, Value
from runnel.groups.shard import GroupShard
from runnel.groups.values import FetchOffsets, GroupConfig
from runnel.model.ids import PartitionKey, ProducerId, TopicId
from runnel.model.internal_calls import KeeperOpen, Kept
from runnel.model.sinks import NamedSink
from runnel.model.step import Record
from runnel.queues.delivery import Delivery
from runnel.queues.keeper import KEPT, OWNER, KeeperShard, owner_name
from runnel.queues.redrive import Redriving
from runnel.record import records
from runnel.record.batch import assemble_writable, read_header
from runnel.replica.partition import Partition
from runnel.replica.unreadable import COUNTED_MAX, TOLD_MAX, Unreadable
from runnel.shell.clock import SystemClock
from runnel.shell.due_index import SqliteDueIndex
from runnel.testing.clock import SeededRng
from runnel.testing.gated_disk import GatedDisk
from runnel.transactions import records as transactions
from runnel.transactions import sink_records as sinks
from runnel.transactions.shard import TransactionShard
from runnel.transactions.sink_values import SinkConfig
from runnel.transactions.sinks import SinkShard
from runnel.transactions.values import State, TransactionConfig

KEY = PartitionKey(TopicId(UUID(int=7)), 0)
OFFSET = OffsetKey("g", "t", 0)
OWNER_NAME = owner_name("q", KEY)
encode = msgspec.msgpack.encode


def group_record(key: AnyKey, value: Value) -> Record:
    return groups.encode_key(key), groups.encode_value(key, value)


class Case(NamedTuple):
    """A coordinator, records of its own, and a question whose answer rests on them."""

    machine: Callable[[], Machine[Any]]
    view: Callable[[], Any]
    own: Sequence[Record]
    verb: str
    question: Any
    answer: Callable[[Any], Any]
    expected: Any
    almost: Record  # of a kind that the machine writes, with a value that it does not


CASES = {
    "groups": Case(
        lambda: GroupShard(GroupConfig(), SeededRng(1)),
        lambda: ImageTopics(Image("cluster")),
        (group_record(TopicKey("g", "t"), TopicRecord(KEY.topic_id)), group_record(OFFSET, OffsetRecord(42, 0, "", 1))),
        "fetch_offsets",
        FetchOffsets("g", (KEY,)),
        lambda fetched: fetched.offsets[0].offset,
        42,
        (groups.encode_key(OFFSET), b"\x00\x03 no number"),
    ),
    "transactions": Case(
        lambda: TransactionShard(TransactionConfig(60_000, 60_000)),
        lambda: ImageTopics(Image("cluster")),
        [
            (
                transactions.encode_key("tx"),
                transactions.encode_value(transactions.Transaction(State.EMPTY, ProducerId(5), 3, 60_000, 1)),
            )
        ],
        "describe",
        "tx",
        lambda described: described.producer.producer_id,
        5,
        (transactions.encode_key("ty"), encode([1, "no state"])),
    ),
    "sinks": Case(
        lambda: SinkShard(SinkConfig()),
        lambda: None,
        [(sinks.encode_key(sinks.Key("s")), sinks.encode_value(sinks.Head("query", 9, 1)))],
        "describe",
        NamedSink("s"),
        lambda described: described.last_batch,
        9,
        (sinks.encode_key(sinks.Key("t")), encode([1, 7])),
    ),
    "queues": Case(
        KeeperShard,
        lambda: frozenset(),
        [(encode((KEPT, OWNER_NAME, b"k")), b"v")],
        "open",
        KeeperOpen(OWNER_NAME, 1),
        lambda kept: kept.records,
        [(b"k", b"v")],
        (encode((OWNER, "p0")), encode([1, 1 << 40, 1, 0])),
    ),
}
FOREIGN: list[tuple[bytes | None, bytes | None]] = [
    (None, b"without a key"),
    (b"", b""),
    (b"order-17", b'{"amount": 3}'),
    (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x03" + bytes(20)),  # its key is one of Kafka's
    (b"\xc1", b"\xc1"),
    (b"\x91" * 5_000, b""),
    (encode([]), b""),
    (encode({1: 2}), b""),
]


def append_nonsense(partition: Partition) -> None:
    """A batch whose records can't be made out, though its checksum is right."""
    whole = records.encode([records.Record(0, 1, b"k", b"v")])
    batch = memoryview(assemble_writable(read_header(whole), b"nonsense"))
    partition.append(batch, read_header(batch))


def shard_of(case: Case, partition: Partition) -> Shard[Any]:
    clock = SystemClock()
    return Shard(PartitionJournal(partition, clock), case.machine, case.view, clock)


@pytest.mark.parametrize("name", CASES)
def test_a_coordinator_serves_what_lies_beside_foreign_records(
    name: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[name]

    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        append(partition, *FOREIGN, case.almost)
        append_nonsense(partition)
        append(partition, *case.own, *FOREIGN)
        for _ in range(2):  # what was told is not told again
            shard = shard_of(case, partition)
            await shard.load()
            assert shard.loaded
            assert case.answer(await shard.ask(case.verb, case.question)) == case.expected
            shard.close()
        assert partition.unreadable.count == 2 * len(FOREIGN) + 2

    run(scenario)
    told = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(told) == 2 * len(FOREIGN) + 1
    assert told[0].startswith("t-0: the record at offset 0 is set aside, all others are served: ")


def test_the_schedule_follows_what_lies_beside_foreign_records(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        key, value, _ = parked("b")
        append(partition, parked("a"), *FOREIGN, (key[:20], value), (key, b"\xc1"))
        append_nonsense(partition)
        append(partition, parked("c"))
        tail = Tail(partition, lambda _: SqliteDueIndex(":memory:"), disk)
        tail.start()
        assert await ids(tail) == ["a", "c"]
        assert partition.unreadable.count == len(FOREIGN) + 3
        await tail.stop()

    run(scenario)


@pytest.mark.parametrize("machine", [Delivery, Redriving])
def test_a_queue_takes_over_what_lies_beside_foreign_records(
    machine: Callable[[], Delivery | Redriving], run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        unreadable = Unreadable("__queue_state")

        async def opened(request: KeeperOpen) -> Kept:
            return Kept(1, [(key, value) for key, value in FOREIGN if key is not None and value is not None])

        keepers = cast(Keepers, SimpleNamespace(open=opened, unreadable=unreadable))
        journal = KeeperJournal(keepers, "q", await open_partition())
        for _ in range(2):
            await journal.read(machine().replay)
        assert unreadable.count == len(FOREIGN) - 1

    run(scenario)
    assert "a record of 'q/" in caplog.text


def test_very_many_are_counted_and_the_first_are_told(caplog: pytest.LogCaptureFixture) -> None:
    unreadable = Unreadable("t-0")
    with caplog.at_level(logging.ERROR):
        for offset in [*range(COUNTED_MAX + 5), *range(10)]:
            unreadable.set_aside(groups_problem(), offset)
    assert unreadable.count == COUNTED_MAX
    assert len(caplog.records) == TOLD_MAX


def groups_problem() -> Any:
    with pytest.raises(Exception, match="can't be read") as raised:
        groups.decode(b"", b"")
    return raised.value
