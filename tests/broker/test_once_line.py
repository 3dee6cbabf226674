"""Append once: of each name one message gets into the log, whoever sends it again and whatever happens meanwhile."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.broker.conftest import ME, OpenPartition, Scenario
from tests.broker.test_messages import append_nonsense

from runnel.broker.once_line import Line, check
from runnel.broker.once_names import WINDOW_MS, Share
from runnel.broker.recompression import Recompression
from runnel.cluster.image import Partition as PartitionImage
from runnel.model.errors import (
    BatchTooLarge,
    InvalidRecord,
    InvalidRequest,
    InvalidTopicName,
    NotEnoughReplicas,
    NotLeader,
    PolicyViolation,
)
from runnel.model.headers import MESSAGE_ID
from runnel.model.ids import BrokerId, Epoch
from runnel.model.once import WINDOW, OnceMessage, Placed
from runnel.model.topic_config import FlushMode
from runnel.record import records
from runnel.record.batch import headers, read_header
from runnel.record.compression import Compression
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Scenario], None]
CLOCK = SystemClock()
OTHER = BrokerId(2)
ALONE = PartitionImage(ME, Epoch(2), Epoch(1), (ME, OTHER), (ME,))
BOTH = PartitionImage(ME, Epoch(2), Epoch(2), (ME, OTHER), (ME, OTHER))


def line_of(partition: Partition, share: int = 1_000, page_bytes: int = 0) -> Line:
    return Line(partition, CLOCK, lambda: Share(share, page_bytes), Recompression())


def message(name: str, floor: int = 0, **fields: Any) -> OnceMessage:
    given: dict[str, Any] = {"key": b"k", "value": b"v", "headers": [], "timestamp_ms": CLOCK.wall_ms()} | fields
    return OnceMessage(name, floor=floor, **given)


async def add(line: Line, *messages: OnceMessage) -> list[Placed]:
    return list(await asyncio.gather(*(line.add(one) for one in messages)))


async def kept(partition: Partition) -> list[Record]:
    data = memoryview(await partition.log.read(partition.log.start_offset, 1 << 24, partition.log.end_offset))
    return [one for at, header in headers(data) for one in records.decode(data[at : at + header.size])]


def names(found: Sequence[Record]) -> list[str]:
    return [dict(one.headers)[MESSAGE_ID].decode() for one in found]  # type: ignore[union-attr]


def plain(partition: Partition, *rows: Record, **options: Any) -> None:
    batch = memoryview(bytearray(records.encode(rows, **options)))
    partition.append(batch, read_header(batch))


def row(number: int, name: str, timestamp: int | None = None) -> Record:
    return Record(number, timestamp or CLOCK.wall_ms(), b"k", b"v", ((MESSAGE_ID, name.encode()),))


def test_what_arrives_in_one_turn_is_one_batch_and_carries_its_names(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        line = line_of(partition)
        placed = await add(line, *(message(f"m{n}") for n in range(50)))
        assert [one.offset for one in placed] == list(range(50))
        assert not any(one.duplicate for one in placed)
        data = await partition.log.read(0, 1 << 20, 50)
        assert len(list(headers(data))) == 1
        assert names(await kept(partition)) == [f"m{n}" for n in range(50)]

    run(scenario)


def test_a_batch_that_cannot_be_read_has_no_names(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        plain(partition, row(0, "a"))
        await append_nonsense(partition, MESSAGE_ID.encode() + b"\xff" * 20)
        await append_nonsense(partition, codec=Compression.GZIP)
        placed = await add(line_of(partition), message("a"), message("b"))
        assert [(one.offset, one.duplicate) for one in placed] == [(0, True), (7, False)]

    run(scenario)


def test_a_second_one_of_a_name_gets_the_place_of_the_first(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        line = line_of(partition)
        first, twin = await add(line, message("a", timestamp_ms=77), message("a", timestamp_ms=99))
        again = (await add(line, message("a", timestamp_ms=111)))[0]
        assert first == Placed(0, 77, False)
        assert twin == again == Placed(0, 77, True)
        assert len(await kept(partition)) == 1

    run(scenario)


def test_one_of_a_name_that_waits_in_line_is_waited_for(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        line = line_of(partition)
        await add(line, message("first"))
        disk.gate.clear()
        await add(line, message("second"))  # written; its sync is held up, and all that comes then waits in line
        waiting = asyncio.gather(line.add(message("a")), line.add(message("a")))
        later = [line.add(message("a"))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later.append(line.add(message("a")))
        assert not waiting.done()
        disk.gate.set()
        found = [*await waiting, *await asyncio.gather(*later)]
        assert {one.offset for one in found} == {2}
        assert [one.duplicate for one in found] == [False, True, True, True]
        assert len(await kept(partition)) == 3

    run(scenario)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_new_leader_finds_the_names_in_the_log_from_the_floor_on(run: Run, compression: Compression) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        plain(partition, row(0, "a"), row(1, "b"), compression=compression)
        plain(partition, Record(0, 5, b"k", b"runnel-message-id is in the value alone"))
        plain(partition, row(0, "c", 123))
        line = line_of(partition)
        found = await add(line, message("a"), message("b", floor=1), message("c", floor=2), message("d"))
        assert [(one.offset, one.duplicate) for one in found] == [(0, True), (1, True), (3, True), (4, False)]
        assert found[2].timestamp_ms == 123

    run(scenario)


def test_one_below_the_floor_is_another_message(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        plain(partition, row(0, "a"))
        line = line_of(partition)
        assert (await add(line, message("a", floor=1)))[0] == Placed(1, (await kept(partition))[1].timestamp, False)
        assert (await add(line, message("a", floor=2)))[0].offset == 2
        assert [one.duplicate for one in await add(line, message("a", floor=2), message("a"))] == [True, True]

    run(scenario)


def test_what_waits_in_line_counts_for_a_quota(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        line = line_of(partition)

        def quota(messages: int, ahead: int = 0) -> None:
            if partition.log.end_offset + partition.in_line + ahead + messages > 4:
                raise PolicyViolation("full")

        partition.quota = quota
        await add(line, message("first"))
        disk.gate.clear()
        await add(line, message("second"))  # written; its sync is held up, and all that comes then waits in line
        waiting = line.add(message("a"))
        await asyncio.sleep(0)
        later = [line.add(message(name)) for name in ("b", "c")]
        await asyncio.sleep(0)
        assert partition.in_line == 2
        disk.gate.set()
        with pytest.raises(PolicyViolation):
            await later[1]
        assert [(await one).offset for one in (waiting, later[0])] == [2, 3]
        assert partition.in_line == 0

    run(scenario)


def test_two_who_need_a_look_into_the_log_get_one_message(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        plain(partition, row(0, "x"))
        line = line_of(partition)
        disk.gate.clear()
        early = line.add(message("a"))
        for _ in range(5):
            await asyncio.sleep(0)
        late = line.add(message("a"))
        disk.gate.set()
        assert [(one.offset, one.duplicate) for one in await asyncio.gather(early, late)] == [(1, False), (1, True)]

    run(scenario)


def test_two_who_look_into_the_log_at_once_both_find_what_is_there(run: Run) -> None:
    """Whenever the second begins: also while the first one tells memory what it found."""

    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        plain(partition, row(0, "a"), row(1, "b"))
        for turns in range(60):
            line = line_of(partition)
            early = line.add(message("a", WINDOW))
            for _ in range(turns):
                await asyncio.sleep(0)
            late = line.add(message("b", 2, in_window=True))
            found = await asyncio.gather(early, late)
            assert [(one.offset, one.duplicate) for one in found] == [(0, True), (1, True)], turns

    run(scenario)


def test_who_is_behind_one_that_needs_a_look_does_not_overtake_it(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        plain(partition, row(0, "x"))
        found = await add(line_of(partition), message("a", 1), message("b", WINDOW), message("c", 1))
        assert [one.offset for one in found] == [1, 2, 3]

    run(scenario)


def test_where_one_cannot_be_appended_nobody_behind_it_is(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        await partition.apply(ALONE)
        plain(partition, row(0, "x"))
        line = line_of(partition)
        disk.gate.clear()
        waiting = [line.add(message(name, floor)) for name, floor in (("a", 1), ("b", WINDOW), ("c", 1))]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting[0].done(), "it waits for the one that needs a look"
        await partition.apply(BOTH)
        disk.gate.set()
        assert [one.offset for one in await asyncio.gather(*waiting)] == [1, 2, 3]

    run(scenario)


def test_names_of_transactions_do_not_count(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        batch = memoryview(
            bytearray(
                records.encode([row(0, "a")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
            )
        )
        partition.log.append(batch, read_header(batch), leader_epoch=2)
        assert (await add(line_of(partition), message("a")))[0] == Placed(
            1, (await kept(partition))[1].timestamp, False
        )

    run(scenario)


def test_without_a_floor_the_window_counts(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        now = CLOCK.wall_ms()
        plain(partition, row(0, "old", now - 2 * WINDOW_MS))
        plain(partition, row(0, "new", now - WINDOW_MS // 2))
        line = line_of(partition)
        found = await add(line, message("old", WINDOW), message("new", WINDOW))
        assert [(one.offset, one.duplicate) for one in found] == [(2, False), (1, True)]
        found = await add(line, message("old", WINDOW), message("new", WINDOW), message("newer", WINDOW))
        assert [(one.offset, one.duplicate) for one in found] == [(2, True), (1, True), (3, False)]

    run(scenario)


def test_a_topic_sets_its_window(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(dedup_window_ms=3 * WINDOW_MS)
        plain(partition, row(0, "old", CLOCK.wall_ms() - 2 * WINDOW_MS))
        assert (await add(line_of(partition), message("old", WINDOW)))[0].duplicate

    run(scenario)


def test_memory_is_bounded_and_what_was_forgotten_is_found_in_the_log(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        line = line_of(partition, share=10)
        for turn in range(10):
            await add(line, *(message(f"{turn}-{n}", floor=partition.log.end_offset) for n in range(10)))
        line.trim()
        assert len(line.known.names) == 10
        assert (await add(line, message("0-3")))[0].offset == 3
        assert len(line.known.names) <= 20
        line.trim()
        assert len(line.known.names) == 10
        assert len(await kept(partition)) == 100

    run(scenario)


def test_of_names_before_the_last_ones_a_few_bytes_are_enough(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        line = line_of(partition, share=10, page_bytes=1 << 20)
        for turn in range(10):
            await add(line, *(message(f"{turn}-{n}", WINDOW) for n in range(10)))
        line.trim()
        assert (len(line.known.names), line.known.names.covered) == (10, 0)
        again = await add(line, *(message(f"{turn}-3", WINDOW) for turn in range(10)), message("new", WINDOW))
        assert [(one.offset, one.duplicate) for one in again[:-1]] == [(10 * turn + 3, True) for turn in range(10)]
        assert (again[-1].offset, again[-1].duplicate) == (100, False)
        claims = await line.claim({0: "0-5", 1: "newer"})
        assert claims.duplicates == {0}
        claims.give_up()
        fresh = line_of(partition, share=10, page_bytes=1 << 20)  # of the next leader
        found = await add(fresh, message("0-9", WINDOW), message("9-9", WINDOW), message("newer", WINDOW))
        assert [one.offset for one in found] == [9, 99, 101]
        assert len(await kept(partition)) == 102

    run(scenario)


def test_a_look_into_a_long_log_keeps_the_last_names(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        for turn in range(10):
            plain(partition, *(row(n, f"{turn}-{n}") for n in range(10)))
        line = line_of(partition, share=15)
        assert (await add(line, message("2-2")))[0].offset == 22
        assert line.known.names.covered == 85
        assert (await add(line, message("8-5", 85)))[0].offset == 85

    run(scenario)


def test_what_could_not_be_appended_can_be_sent_again(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(min_insync_replicas=2)
        await partition.apply(ALONE)
        line = line_of(partition)
        with pytest.raises(NotEnoughReplicas):
            await line.add(message("a"))
        await partition.apply(BOTH)
        assert (await line.add(message("a"))).duplicate is False

    run(scenario)


def test_what_fails_when_nobody_waits_for_it_any_more_is_no_mishap(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        mishaps: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: mishaps.append(context))
        partition = await open_partition(min_insync_replicas=2)
        await partition.apply(ALONE)
        line = line_of(partition)
        with pytest.raises(NotEnoughReplicas):
            await line.add(message("a"))
        line.add(message("b"))
        line.add(message("b"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        gc.collect()
        assert mishaps == []

    run(scenario)


def test_a_line_ends_with_its_leader_epoch(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        line = line_of(partition)
        await partition.apply(PartitionImage(ME, Epoch(3), Epoch(1), (ME,), (ME,)))
        assert not line.stands
        with pytest.raises(NotLeader):
            await line.add(message("a"))
        assert partition.log.end_offset == 0

    run(scenario)


def test_many_bytes_are_several_batches(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        placed = await add(line_of(partition), *(message(f"m{n}", value=b"v" * 400_000) for n in range(5)))
        assert [one.offset for one in placed] == [0, 1, 2, 3, 4]
        data = await partition.log.read(0, 1 << 24, 5)
        assert [header.count for _, header in headers(data)] == [2, 2, 1]

    run(scenario)


def test_what_the_topic_does_not_take_is_refused_unless_it_was_accepted_before(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(max_message_bytes=1000, cleanup_policy=frozenset({"compact"}))
        with pytest.raises(BatchTooLarge):
            check(message("a", value=b"v" * 1000), partition)
        with pytest.raises(InvalidRecord):
            check(message("a", key=None), partition)
        with pytest.raises(InvalidRequest):
            check(message(""), partition)
        check(message("a", value=b"v" * 1000, key=None, accepted=True), partition)

    run(scenario)


def test_a_name_that_a_message_has_already_is_not_added_again(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        own = (MESSAGE_ID, b"mine")
        await add(line_of(partition), message("mine", headers=[own]), message("ours", headers=[own]))
        first, second = await kept(partition)
        assert first.headers == (own,)
        assert second.headers == (own, (MESSAGE_ID, b"ours"))
        found = await add(line_of(partition), message("mine"), message("ours"))
        assert [(one.offset, one.duplicate) for one in found] == [(0, True), (1, True)]

    run(scenario)


def test_a_time_that_no_batch_can_hold_is_refused_and_costs_nobody_behind_it_anything(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        for timestamp_ms in (1 << 63, -(1 << 63) - 1):
            with pytest.raises(InvalidRequest, match="time"):
                check(message("a", timestamp_ms=timestamp_ms), partition)
        check(message("a", timestamp_ms=(1 << 63) - 1), partition)

    run(scenario)


def test_nothing_is_appended_once_to_an_internal_topic(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        partition.internal = True
        with pytest.raises(InvalidTopicName):
            check(message("a", accepted=True), partition)
        with pytest.raises(InvalidTopicName):
            await add(line_of(partition), message("a"))
        assert await kept(partition) == []

    run(scenario)
