"""Views: what they show, how far they look, and what they tell of the end."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from runnel.broker import thinning, views
from runnel.broker.fetch import Fetching, Read, ReadResult, Waits
from runnel.broker.views import View
from runnel.cluster.image import VIEW_FILTER, VIEW_OF, Topic
from runnel.cluster.image import Partition as PartitionImage
from runnel.model import errors as e
from runnel.model.ids import BrokerId, Epoch, Offset, TopicId
from runnel.record import control, records
from runnel.record.batch import assemble, check_produced, headers
from runnel.record.compression import Compression
from runnel.record.records import Record
from runnel.replica.ending import Ending
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]
MIB = 1 << 20
SOON_S = 60.0


def view_of(chosen: str) -> View:
    return View(Topic(TopicId(UUID(int=2)), "v", (), {VIEW_OF: "t", VIEW_FILTER: chosen}))


async def append(partition: Partition, *keys: str, value: bytes = b"", **options: Any) -> int:
    """Append one batch; returns its bytes."""
    rows = [Record(number, 1, key.encode(), value) for number, key in enumerate(keys)]
    batch = memoryview(bytearray(records.encode(rows, **options)))
    guard = partition.guard(options["producer_id"]) if "producer_id" in options else None
    if guard is not None:
        guard.admit(0)
    begun = partition.append(batch, check_produced(batch), guard)
    if isinstance(begun, asyncio.Future):
        await begun
    return len(batch)


async def fetched(view: View, partition: Partition, offset: int, **options: Any) -> ReadResult:
    asked = {"bytes_min": 1, "bytes_max": MIB, "wait_ms": 0, **options}
    committed_only = asked.pop("committed_only", False)
    size = asked.pop("size", MIB)
    read = Read(partition, Offset(offset), size, committed_only=committed_only, lens=view)
    [result] = await Fetching(64 * MIB).fetch([read], Waits(), **asked)
    return result


def rows(result: ReadResult) -> list[tuple[int, str]]:
    """(offset, key) of the messages; what tells only where to go on is left out."""
    data = memoryview(result.records)
    found = []
    for position, header in headers(data):
        if not header.control:
            found += records.decode(data[position : position + header.size])
    return [(row.offset, (row.key or b"").decode()) for row in found]


def position(result: ReadResult, before: int) -> int:
    """Where the reader stands then."""
    return max((header.last_offset + 1 for _, header in headers(memoryview(result.records))), default=before)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.ZSTD])
def test_what_does_not_pass_is_missing_at_the_same_offsets(run: Run, codec: Compression) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(3):
            await append(partition, "a", "b", "a", "c", compression=codec)
        result = await fetched(view_of("key = 'b'"), partition, 0)
        assert rows(result) == [(1, "b"), (5, "b"), (9, "b")]
        assert result.error is None

    run(scenario)


def test_a_batch_that_passes_as_a_whole_keeps_its_bytes(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, "a", "b")
        result = await fetched(view_of("TRUE"), partition, 0)
        assert result.records == bytes(partition.read_cached(Offset(0), MIB) or b"")

    run(scenario)


def test_one_in_a_hundred_costs_at_most_two_in_a_hundred_of_the_bytes(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        size = 0
        for batch in range(50):
            keys = ["wanted" if number == 50 else f"other-{batch}-{number}" for number in range(100)]
            size += await append(partition, *keys, value=b"x" * 400)
        view, at, found, sent = view_of("key = 'wanted'"), -1, 0, 0
        while at < 4_951:  # behind the last that is wanted; on a busy machine not all is looked at in one go
            result = await fetched(view, partition, max(at, 0))
            at, found, sent = position(result, at), found + len(rows(result)), sent + len(result.records)
        assert found == 50
        assert sent < 0.02 * size

    run(scenario)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_batches_that_can_not_have_it_are_not_taken_apart(
    run: Run, monkeypatch: pytest.MonkeyPatch, codec: Compression
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for key in ("other", "wanted", "other"):
            await append(partition, key, "a", compression=codec)
        taken: list[int] = []
        decode = records.decode_section

        def counting(header: Any, section: bytes) -> Any:
            taken.append(header.base_offset)
            return decode(header, section)

        monkeypatch.setattr(records, "decode_section", counting)
        assert rows(await fetched(view_of("key = 'wanted'"), partition, 0)) == [(2, "wanted")]
        assert taken == [2]

    run(scenario)


def test_who_begins_inside_a_batch_gets_what_comes_from_there(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, "b", "a", "b", "b")
        assert rows(await fetched(view_of("key = 'b'"), partition, 1)) == [(2, "b"), (3, "b")]

    run(scenario)


def test_where_a_look_ends_before_the_source_its_reader_is_told_to_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        monkeypatch.setattr(views, "SCAN_BYTES", 1)
        monkeypatch.setattr(views, "CHUNK_BYTES", 1)
        partition = await open_partition()
        view = view_of("key = 'b'")
        for key in "aaab":
            await append(partition, key)
        seen = []
        for place in range(4):
            result = await fetched(view, partition, place, bytes_min=1_000_000, wait_ms=3_600_000)
            assert result.goes_on
            assert result.shown_end is None
            seen += rows(result)
            assert position(result, place) == place + 1
        assert seen == [(3, "b")]

    run(scenario)


def test_the_marker_that_tells_to_go_on_is_of_no_producer(run: Run) -> None:
    batch = thinning.passed_over(41, 7)
    [(_, header)] = list(headers(batch))
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (41, 41, 7)
    assert (header.control, header.transactional, header.producer_id) == (True, False, -1)
    assert control.read_marker(batch).commit


def test_who_waits_gets_what_passes_and_nothing_before(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key = 'b'")
        waiting = asyncio.ensure_future(fetched(view, partition, 0, wait_ms=3_600_000))
        for _ in range(3):
            await append(partition, "a")
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
        await append(partition, "b")
        assert rows(await waiting) == [(3, "b")]

    run(scenario)


def test_a_stretch_without_anything_is_looked_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key = 'b'")
        for _ in range(5):
            await append(partition, "a")
        assert (await fetched(view, partition, 0)).shown_end == 0
        looked: list[int] = []
        thin = thinning.Thinning.thin

        async def counting(self: Any, data: Any, aborted: Any, since: int) -> Any:
            looked.append(since)
            return await thin(self, data, aborted, since)

        monkeypatch.setattr(thinning.Thinning, "thin", counting)
        assert (await fetched(view, partition, 0)).shown_end == 0
        assert (await fetched(view, partition, 3)).shown_end == 3
        assert looked == []
        await append(partition, "a")
        await fetched(view, partition, 0)
        assert looked == [5]

    run(scenario)


def test_what_is_known_of_a_stretch_ends_with_its_leader_epoch(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key = 'b'")
        await append(partition, "a")
        await fetched(view, partition, 0)
        me = BrokerId(1)
        await partition.apply(PartitionImage(me, Epoch(3), Epoch(1), (me,), (me,)))
        assert view._gaps[0, False].epoch == 2
        await append(partition, "b")
        assert rows(await fetched(view, partition, 0)) == [(1, "b")]
        assert view._gaps[0, False].epoch == 3

    run(scenario)


def test_the_end_is_behind_the_last_message_that_passes(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key = 'b'")
        await append(partition, "a", "b", "a")
        await append(partition, "a")
        assert await view.end(partition, _soon(), committed_only=False) == 2
        result = await fetched(view, partition, 0)
        assert rows(result) == [(1, "b")]
        assert (result.shown_end, position(result, 0)) == (2, 2)
        await append(partition, "a")
        assert await view.end(partition, _soon(), committed_only=False) == 2

    run(scenario)


def test_an_end_that_was_told_can_be_reached(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key = 'b'")
        await append(partition, "b")
        for _ in range(5):
            await append(partition, "a")
        monkeypatch.setattr(views, "CHUNK_BYTES", 1)
        assert await view.end(partition, 0.0, committed_only=True) == 6  # there was no time to look
        result = await fetched(view, partition, 0)
        while (place := position(result, 0)) < 6:
            assert place > 0
            result = await fetched(view, partition, place)
        assert await view.end(partition, _soon(), committed_only=False) == 6

    run(scenario)


def test_who_is_far_behind_the_end_is_told_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        monkeypatch.setattr(views, "BACK_OFFSETS", 3)
        partition = await open_partition()
        view = view_of("key = 'b'")
        await append(partition, "a", "a")
        assert position(await fetched(view, partition, 0), 0) == 0
        await append(partition, "a", "a")
        assert position(await fetched(view, partition, 0), 0) == 4
        assert await view.end(partition, _soon(), committed_only=False) == 4  # nobody is beyond the end

    run(scenario)


def test_bytes_are_bounded_but_for_the_first_batch(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("TRUE")
        size = 0
        for _ in range(5):
            size = await append(partition, "b", value=b"x" * 1000)
        assert len(rows(await fetched(view, partition, 0, size=10))) == 1
        result = await fetched(view, partition, 0, size=2 * size + 10)
        assert [offset for offset, _ in rows(result)] == [0, 1]
        assert position(result, 0) == 2
        reads = [Read(partition, Offset(n), MIB, lens=view) for n in (0, 1)]
        both = await Fetching(MIB).fetch(reads, Waits(), bytes_min=1, bytes_max=5 * size + 10, wait_ms=0)
        assert [len(rows(one)) for one in both] == [5, 0]

    run(scenario)


def test_large_batches_are_looked_at_off_the_loop(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        monkeypatch.setattr(thinning, "LARGE_RECORDS", 2)
        partition = await open_partition()
        await append(partition, "a", "b", "a")
        offloaded: list[Any] = []
        offload = disk.offload

        async def counting(work: Callable[[], Any]) -> Any:
            offloaded.append(work)
            return await offload(work)

        monkeypatch.setattr(disk, "offload", counting)
        assert rows(await fetched(view_of("key = 'b'"), partition, 0)) == [(1, "b")]
        assert len(offloaded) == 1

    run(scenario)


def test_a_batch_of_nonsense_is_shown_as_it_is(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        batch = bytearray(records.encode([Record(0, 1, b"a", b"x")]))
        header = next(headers(batch))[1]
        broken = memoryview(bytearray(assemble(header, b"\x02" * 10)))
        begun = partition.append(broken, check_produced(broken))
        if isinstance(begun, asyncio.Future):
            await begun
        result = await fetched(view_of("key <> 'b'"), partition, 0)
        assert len(result.records) == len(broken)

    run(scenario)


def test_a_filter_that_this_broker_does_not_understand_is_told(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key RESEMBLES 'b'")
        assert isinstance((await fetched(view, partition, 0)).error, e.InvalidFilter)
        with pytest.raises(e.InvalidFilter):
            await view.end(partition, _soon(), committed_only=False)

    run(scenario)


@pytest.mark.parametrize("committed_only", [False, True])
def test_transactions(run: Run, committed_only: bool) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        view = view_of("key = 'b'")
        for producer, commit in ((1, True), (2, False), (1, True)):
            sequence = 0 if producer == 2 else 2 * (partition.log.end_offset > 0)
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
            await _transact(partition, ["a", "b"], options, commit=commit)
        options = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        await _transact(partition, ["b"], options, commit=None)
        found = [offset for offset, _ in rows(await fetched(view, partition, 0, committed_only=committed_only))]
        assert found == ([1, 7] if committed_only else [1, 4, 7, 9])
        result = await fetched(view, partition, 0, committed_only=committed_only)
        assert result.aborted == (() if committed_only else None)
        assert result.shown_end == (8 if committed_only else 10)

    run(scenario)


async def _transact(
    partition: Partition, keys: Sequence[str], options: dict[str, Any], *, commit: bool | None
) -> None:  # fmt: skip
    await append(partition, *keys, **options)
    if commit is not None:
        await partition.write_marker(Ending(options["producer_id"], 0, commit, 1), 60)


def _soon() -> float:
    return asyncio.get_running_loop().time() + SOON_S
