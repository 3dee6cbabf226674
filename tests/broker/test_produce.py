"""Produce: what each acknowledgement level waits for, and what one bad batch costs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from runnel.broker.produce import LARGE_RECORDS, Append, Produced, Producing
from runnel.cluster.image import Partition as PartitionImage
from runnel.model import errors as e
from runnel.model.ids import BrokerId, Epoch, Offset
from runnel.model.topic_config import FlushMode, TimestampType
from runnel.record import records
from runnel.record.batch import assemble, read_header
from runnel.record.compression import Compression
from runnel.replica.partition import Partition
from runnel.testing.clock import ManualClock
from runnel.testing.gated_disk import GatedDisk

NOW = 1_700_000_000_000
Run = Callable[[Any], None]


def batch(*values: bytes, key: bytes | None = None, timestamp: int = NOW, **fields: Any) -> memoryview:
    rows = [records.Record(Offset(i), timestamp, key, value, ()) for i, value in enumerate(values)]
    return memoryview(bytearray(records.encode(rows, **fields)))


async def produce(
    *appends: tuple[Partition | e.RunnelError, memoryview | None], acks: int = -1, timeout_ms: int = 60_000
) -> list[Produced | e.RunnelError]:
    verb = Producing(ManualClock(wall_ms=NOW))
    return await verb.produce([Append(*each) for each in appends], acks, timeout_ms, lambda: None)


def test_batches_of_one_request_go_to_their_partitions(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        results = await produce((one, batch(b"a", b"b")), (two, batch(b"c")), (one, batch(b"d")))
        assert [result.base_offset for result in results if isinstance(result, Produced)] == [0, 0, 2]

    run(scenario)


@pytest.mark.parametrize("acks", [0, 1])
def test_only_acks_all_waits_for_the_disk(run: Run, acks: int) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        await produce((partition, batch(b"warm")))
        disk.gate.clear()
        [written] = await produce((partition, batch(b"a")), acks=acks)
        assert isinstance(written, Produced)
        assert partition.high_watermark == 1
        waiting = asyncio.ensure_future(produce((partition, batch(b"b"))))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        disk.gate.set()
        [committed] = await waiting
        assert isinstance(committed, Produced)
        assert partition.high_watermark == 3

    run(scenario)


def test_the_next_request_may_start_once_all_batches_have_their_place(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        await produce((partition, batch(b"warm")))
        disk.gate.clear()
        passed: list[int] = []
        verb = Producing(ManualClock(wall_ms=NOW))
        appends = [Append(partition, batch(b"a")), Append(partition, batch(b"b"))]
        waiting = asyncio.ensure_future(verb.produce(appends, -1, 60_000, lambda: passed.append(1)))
        await asyncio.sleep(0)
        assert passed == [1]
        assert not waiting.done()
        disk.gate.set()
        await waiting

    run(scenario)


def test_a_commit_that_takes_too_long_times_out_and_the_message_stays(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        await produce((partition, batch(b"warm")))
        disk.gate.clear()
        [result] = await produce((partition, batch(b"a")), timeout_ms=10)
        assert isinstance(result, e.RequestTimedOut)
        disk.gate.set()
        [after] = await produce((partition, batch(b"b")))
        assert isinstance(after, Produced)
        assert after.base_offset == 2

    run(scenario)


@pytest.mark.parametrize(
    ("bad", "settings", "acks", "error"),
    [
        (None, {}, 1, e.InvalidRecord),
        (batch(b"x")[:-1], {}, 1, e.CorruptBatch),
        (batch(b"x" * 2000), {"max_message_bytes": 1000}, 1, e.BatchTooLarge),
        (batch(b"x"), {}, 7, e.InvalidAcks),
        (batch(b"x", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0), {}, 1,
         e.InvalidTransactionState),
        (batch(b"x"), {"cleanup_policy": frozenset({"compact"})}, 1, e.InvalidRecord),
        (batch(b"x", timestamp=NOW + 3_600_001), {}, 1, e.InvalidTimestamp),
        (batch(b"x", timestamp=NOW - 11), {"message_timestamp_before_max_ms": 10}, 1, e.InvalidTimestamp),
    ],
)  # fmt: skip
def test_a_bad_batch_is_refused_and_the_good_one_beside_it_is_kept(
    run: Run, bad: memoryview | None, settings: dict[str, Any], acks: int, error: type[e.RunnelError]
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        strict, lenient = await open_partition(0, **settings), await open_partition(1)
        refused, kept = await produce((strict, bad), (lenient, batch(b"good")), acks=acks)
        assert isinstance(refused, error)
        assert "t-0" in str(refused) or error in (e.InvalidAcks, e.CorruptBatch)
        assert strict.log.end_offset == 0
        assert isinstance(kept, Produced) == (error is not e.InvalidAcks)

    run(scenario)


def test_append_time_is_the_brokers_whatever_the_client_says(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(message_timestamp_type=TimestampType.APPEND)
        [result] = await produce((partition, batch(b"x", timestamp=1)))
        assert isinstance(result, Produced)
        assert result.append_time_ms > NOW
        [row] = records.decode(await partition.read(Offset(0), 1000))
        assert row.timestamp == result.append_time_ms

    run(scenario)


def test_a_retry_of_an_idempotent_batch_gets_its_first_offset(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        fields: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0}
        await produce((partition, batch(b"a", base_sequence=0, **fields)))
        await produce((partition, batch(b"b", base_sequence=1, **fields)))
        [again] = await produce((partition, batch(b"a", base_sequence=0, **fields)))
        assert isinstance(again, Produced)
        assert again.base_offset == 0
        [gap] = await produce((partition, batch(b"d", base_sequence=3, **fields)))
        assert isinstance(gap, e.OutOfOrderSequence)
        assert partition.log.end_offset == 2

    run(scenario)


def test_a_retry_on_a_topic_with_append_time_gets_its_first_time(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(message_timestamp_type=TimestampType.APPEND)
        fields: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
        [first] = await produce((partition, batch(b"a", timestamp=1, **fields)))
        [again] = await produce((partition, batch(b"a", timestamp=1, **fields)))
        assert isinstance(first, Produced)
        assert again == first

    run(scenario)


def test_a_partition_that_is_not_here_answers_for_itself(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        missing = e.UnknownTopic("no such topic")
        first, second = await produce((missing, batch(b"a")), (partition, batch(b"b")))
        assert first is missing
        assert isinstance(second, Produced)

    run(scenario)


# --- pipelines that meet a small ISR


ME, TWO = BrokerId(1), BrokerId(2)
BOTH = PartitionImage(ME, Epoch(3), Epoch(1), (ME, TWO), (ME, TWO))
ALONE = replace(BOTH, isr=(ME,))


def sent(sequence: int) -> memoryview:
    return batch(b"%d" % sequence, producer_id=4, producer_epoch=0, base_sequence=sequence)


async def ask(partition: Partition, sequence: int) -> "Produced | e.RunnelError":
    [result] = await produce((partition, sent(sequence)))
    return result


def test_below_the_minimum_acks_all_is_refused_and_the_good_one_beside_it_is_kept(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        strict, lenient = await open_partition(0, min_insync_replicas=2), await open_partition(1)
        await strict.apply(ALONE)
        refused, kept = await produce((strict, batch(b"x")), (lenient, batch(b"good")))
        assert isinstance(refused, e.NotEnoughReplicas)
        assert "t-0 has 1 replicas in sync, min.insync.replicas asks for 2" in str(refused)
        assert strict.log.end_offset == 0
        assert isinstance(kept, Produced)

    run(scenario)


def test_a_minimum_above_the_number_of_replicas_asks_for_all_of_them(run: Run) -> None:
    """As in Kafka (effectiveMinIsr): else nobody could write to a topic with one copy, on a cluster that wants two."""

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        [result] = await produce((partition, batch(b"x")))
        assert isinstance(result, Produced)

    run(scenario)


def test_a_batch_that_is_in_the_log_is_not_refused_for_want_of_replicas(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        await partition.apply(BOTH)
        first = asyncio.ensure_future(ask(partition, 0))
        while partition.log.end_offset < 1:
            await asyncio.sleep(0)
        await partition.apply(replace(ALONE, epoch=Epoch(2)))
        assert isinstance(await first, e.NotEnoughReplicasAfterAppend)
        assert isinstance(await ask(partition, 0), e.NotEnoughReplicasAfterAppend)  # it may still be committed
        assert isinstance(await ask(partition, 1), e.NotEnoughReplicas)  # surely not there
        await partition.apply(replace(BOTH, epoch=Epoch(3)))
        partition.fetched_by(TWO, Epoch(1), Offset(1))
        again = await ask(partition, 0)
        assert isinstance(again, Produced)
        assert again.base_offset == 0

    run(scenario)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("trouble", [ALONE, replace(BOTH, leader=TWO, leader_epoch=Epoch(4))])
def test_what_comes_behind_a_refused_batch_is_refused_alike(run: Run, trouble: PartitionImage, known: bool) -> None:
    """The producer pipelines: told of a gap, it would begin a new epoch and send again what is in the log."""

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        if known:
            await produce((partition, sent(0)), acks=1)
        await partition.apply(replace(trouble, epoch=Epoch(2)))
        refused = await ask(partition, 1)
        assert isinstance(refused, e.NotEnoughReplicas | e.NotLeader)
        await partition.apply(replace(BOTH, leader_epoch=Epoch(5), epoch=Epoch(3)))
        for sequence in (2, 3, 4):
            [behind] = await produce((partition, sent(sequence)), acks=1)
            assert type(behind) is type(refused)
        for sequence in (1, 2, 3):
            [done] = await produce((partition, sent(sequence)), acks=1)
            assert isinstance(done, Produced)
        [gap] = await produce((partition, sent(9)), acks=1)
        assert isinstance(gap, e.OutOfOrderSequence)  # nobody refused 4 to 8: they are missing

    run(scenario)


@pytest.mark.parametrize("known", [True, False])
def test_what_comes_behind_a_batch_that_was_cut_off_is_refused_as_that_was(run: Run, known: bool) -> None:
    """The leader lost its lead before the batch was committed, had to cut it off, and leads again."""

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        await partition.apply(BOTH)
        if known:
            await produce((partition, sent(0)), acks=1)
        lost = asyncio.ensure_future(ask(partition, 1))
        while partition.log.end_offset < 1 + known:
            await asyncio.sleep(0)
        await partition.apply(replace(BOTH, leader=TWO, leader_epoch=Epoch(4), epoch=Epoch(2)))
        assert isinstance(await lost, e.NotLeader)
        await partition.log.truncate(Offset(known))
        await partition.apply(replace(BOTH, leader_epoch=Epoch(5), epoch=Epoch(3)))
        [behind] = await produce((partition, sent(2)), acks=1)
        assert isinstance(behind, e.NotLeader)
        for sequence in (1, 2):
            [done] = await produce((partition, sent(sequence)), acks=1)
            assert isinstance(done, Produced)

    run(scenario)


def test_a_gap_before_the_first_batch_under_a_new_leader_may_be_on_its_way(run: Run) -> None:
    """librdkafka sends what follows first: told of a gap, it would send all again in a new epoch, as if it were new."""

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        await partition.apply(BOTH)
        for sequence in (0, 1):
            await produce((partition, sent(sequence)), acks=1)
        await partition.apply(replace(BOTH, leader_epoch=Epoch(5), epoch=Epoch(3)))
        [early] = await produce((partition, sent(4)), acks=1)
        assert isinstance(early, e.NotLeader)
        assert "it may be on its way: send again" in str(early)
        again = [(await produce((partition, sent(sequence)), acks=1))[0] for sequence in (1, 2, 3, 4)]
        assert [each.base_offset for each in again if isinstance(each, Produced)] == [1, 2, 3, 4]
        [gap] = await produce((partition, sent(9)), acks=1)
        assert isinstance(gap, e.OutOfOrderSequence)  # it has begun: what is missing now, it did not send in order

    run(scenario)


def test_a_gap_under_a_new_leader_is_told_in_the_end(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await produce((partition, sent(0)))
        await partition.apply(replace(ALONE, leader_epoch=Epoch(5), epoch=Epoch(3)))
        answers = [type((await produce((partition, sent(2))))[0]) for _ in range(20)]
        assert (answers[0], answers[-1]) == (e.NotLeader, e.OutOfOrderSequence)

    run(scenario)


def test_a_producer_that_gave_up_hears_of_the_gap(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        await produce((partition, sent(0)), acks=1)
        await partition.apply(replace(ALONE, epoch=Epoch(2)))
        assert isinstance(await ask(partition, 1), e.NotEnoughReplicas)
        await partition.apply(replace(BOTH, epoch=Epoch(3)))
        answers = [type((await produce((partition, sent(2)), acks=1))[0]) for _ in range(20)]
        assert answers[0] is e.NotEnoughReplicas
        assert answers[-1] is e.OutOfOrderSequence

    run(scenario)


def test_the_keys_of_large_batches_are_looked_for_off_the_loop(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(cleanup_policy=frozenset({"compact"}))
        many = [b""] * (LARGE_RECORDS + 1)
        disk.gate.clear()
        sent = [
            asyncio.ensure_future(produce((partition, one), acks=1))
            for one in (batch(*many, key=b"k"), batch(*many), batch(b"few", key=b"k"))
        ]
        await asyncio.wait_for(asyncio.shield(sent[2]), 60)
        assert [one.done() for one in sent] == [False, False, True]
        disk.gate.set()
        results = [(await one)[0] for one in sent]
        assert isinstance(results[0], Produced)
        assert isinstance(results[1], e.InvalidRecord)
        assert "every record needs a key" in str(results[1])
        [refused] = await produce((partition, batch(b"few")))
        assert isinstance(refused, e.InvalidRecord)

    run(scenario)


def test_large_batches_for_compacted_topics_that_are_none_are_refused(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(cleanup_policy=frozenset({"compact"}))
        good = batch(b"a", key=b"k")
        header = read_header(good)._replace(count=7, last_offset_delta=6)
        nonsense = memoryview(bytearray(assemble(header._replace(attributes=Compression.ZSTD), b"\xff" * 100)))
        unknown = memoryview(bytearray(assemble(header._replace(attributes=5), b"\xff" * 100)))
        results = await produce((partition, nonsense), (partition, unknown), (partition, None), (partition, good))
        assert [type(one) for one in results] == [e.InvalidRecord, e.UnsupportedCompression, e.InvalidRecord, Produced]

    run(scenario)
