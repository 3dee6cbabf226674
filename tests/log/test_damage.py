"""What becomes of a log whose disk lost or changed what was synced: reported, never served, kept aside, healed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runnel.log.log import Appended, Log
from runnel.model.errors import Corruption, StorageFailed
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.records import Record
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import Fault, SimDisk

FOLDER = "partitions/p-0"
FIRST = f"{FOLDER}/{0:020}.log"
CLOCK = ManualClock()


def config(
    segment_bytes: int = 600, mode: str = "commit", index_interval_bytes: int = 200, **others: Any
) -> TopicConfig:
    return TopicConfig(
        flush_mode=FlushMode(mode), segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes, **others
    )


def given(base: int, epoch: int = 0) -> bytes:
    made = bytearray(records.encode([Record(0, 1000 + base, b"k", b"%08d" % base * 12, ())]))
    batch.patch(made, base, epoch)
    return bytes(made)


SIZE = len(given(0))
WIDE = config(10**6)  # all in one segment


async def follow(log: Log, *bases: int) -> None:
    for base in bases:
        result = log.append_as_follower(given(base))
        if not isinstance(result, Appended):
            await result
    await log.idle()


async def opened(disk: SimDisk, settings: TopicConfig | None = None, **others: Any) -> Log:
    return await Log.open(disk, FOLDER, settings or config(), clock=CLOCK, **others)


async def filled(disk: SimDisk, settings: TopicConfig | None = None, count: int = 12) -> Log:
    log = await opened(disk, settings)
    await follow(log, *range(count))
    return log


async def sweep(log: Log) -> tuple[list[int], list[int]]:
    """Which offsets are served and which are refused as damaged; what is served is what was written."""
    served: list[int] = []
    refused: list[int] = []
    offset = int(log.start_offset)
    while offset < log.end_offset:
        try:
            data = await log.read(offset, 1000, log.end_offset)
        except Corruption as error:
            refused += range(offset, error.next_offset)
            offset = error.next_offset
            continue
        for at, header in batch.headers(data):
            assert bytes(data[at : at + header.size]) == given(header.base_offset)
            assert header.base_offset == offset, "nothing is skipped in silence"
            served.append(header.base_offset)
            offset = header.last_offset + 1
    return served, refused


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(one.first_offset, one.next_offset) for one in log.damage]


def run(test: Callable[[SimDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(SimDisk(SeededRng(1)))

    asyncio.run(main())


def path(base: int, suffix: str = ".log") -> str:
    return f"{FOLDER}/{base:020}{suffix}"


# --- a bit flip


def test_rot_below_the_recovery_point_is_reported_when_it_is_met_and_remembered() -> None:
    async def test(disk: SimDisk) -> None:
        await (await filled(disk, WIDE)).close()
        disk.rot(FIRST, 4 * SIZE + 100)
        told: list[Corruption] = []
        log = await opened(disk, WIDE, on_damage=told.append)
        assert (log.intact_until, log.damage) == (12, []), "nobody has looked yet"
        assert await sweep(log) == ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [4])
        assert [(one.first_offset, one.next_offset, one.position) for one in told] == [(4, 5, 4 * SIZE)]
        assert log.intact_until == 4
        await log.idle()
        for _ in range(2):
            disk = disk.crash()
            log = await opened(disk, WIDE)
            assert (log.intact_until, ranges(log)) == (4, [(4, 5)]), "a restart forgets nothing"
            assert await sweep(log) == ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [4])

    run(test)


def test_rot_in_the_synced_tail_is_damage_not_a_torn_tail() -> None:
    """No checkpoint knows of these batches yet: what was acknowledged would be cut off in silence."""

    async def test(disk: SimDisk) -> None:
        await filled(disk, WIDE)
        disk.rot(FIRST, 4 * SIZE + 100)
        log = await opened(disk.kill(), WIDE)
        assert (log.end_offset, log.intact_until, ranges(log)) == (12, 4, [(4, 5)])
        assert await sweep(log) == ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [4])

    run(test)


def test_synced_bytes_that_are_gone_from_the_tail_are_damage_and_their_offsets_are_not_used_again() -> None:
    async def test(disk: SimDisk) -> None:
        await filled(disk, WIDE)
        disk.damage(FIRST, disk.content(FIRST)[: 7 * SIZE + 30])
        disk = disk.kill()
        log = await opened(disk, WIDE)
        assert (log.end_offset, ranges(log)) == (12, [(7, 12)])
        await follow(log, 12, 13)
        assert await sweep(log) == ([0, 1, 2, 3, 4, 5, 6, 12, 13], [7, 8, 9, 10, 11])
        log = await opened(disk.kill(), WIDE)
        assert await sweep(log) == ([0, 1, 2, 3, 4, 5, 6, 12, 13], [7, 8, 9, 10, 11])

    run(test)


def test_what_was_synced_before_a_truncation_does_not_count_after_it() -> None:
    async def test(disk: SimDisk) -> None:
        log = await filled(disk, WIDE)
        await log.truncate(5)
        disk = disk.crash()
        log = await opened(disk, WIDE)
        assert (log.end_offset, log.damage) == (5, [])
        await follow(log, 5, 6)
        disk.rot(FIRST, 6 * SIZE + 100)
        log = await opened(disk.kill(), WIDE)
        assert (log.end_offset, ranges(log)) == (7, [(6, 7)])

    run(test)


@pytest.mark.parametrize("bit", [0, 1, 2, 3, 20, 40])
@pytest.mark.parametrize("hit", [4, 5, 11])
def test_an_offset_that_rotted_in_the_synced_tail_is_damage(hit: int, bit: int) -> None:
    """Offsets lie outside the checksum; followers may have gaps. What follows, and the mark, tell it."""

    async def test(disk: SimDisk) -> None:
        await filled(disk, WIDE)
        content = bytearray(disk.content(FIRST))
        other = hit ^ (1 << bit)
        content[hit * SIZE : hit * SIZE + 8] = other.to_bytes(8, "big")
        disk.damage(FIRST, bytes(content))
        log = await opened(disk.kill(), WIDE)
        assert (log.intact_until, log.end_offset) == (hit, 12)
        served, refused = await sweep(log)
        assert served == [offset for offset in range(12) if offset != hit]
        assert refused == [hit]

    run(test)


@pytest.mark.parametrize("bit", [0, 1, 7, 13, 31])
@pytest.mark.parametrize("hit", [0, 4, 11])
def test_an_epoch_that_rotted_in_the_synced_tail_is_damage(hit: int, bit: int) -> None:
    """Epochs lie outside the checksum. The mark says which one the last batches are of, and since when."""

    async def test(disk: SimDisk) -> None:
        await filled(disk, WIDE)
        disk.rot(FIRST, hit * SIZE + 15 - bit // 8, 1 << bit % 8)
        log = await opened(disk.kill(), WIDE)
        assert (ranges(log), log.epochs.entries()) == ([(hit, hit + 1)], [(0, 1 if hit == 0 else 0)])
        assert await sweep(log) == ([offset for offset in range(12) if offset != hit], [hit])

    run(test)


EPOCHS = [0] * 4 + [2] * 4 + [4] * 4


async def led_by_turns(disk: SimDisk, settings: TopicConfig = WIDE) -> Log:
    log = await opened(disk, settings)
    for base, epoch in enumerate(EPOCHS):
        log.append_as_follower(given(base, epoch))
        await log.idle()
    return log


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("hit", range(12))
def test_an_epoch_that_rotted_among_several_is_damage_or_lies_between_its_neighbours(hit: int, bit: int) -> None:
    async def test(disk: SimDisk) -> None:
        await led_by_turns(disk)
        disk.rot(FIRST, hit * SIZE + 15, 1 << bit)
        log = await opened(disk.kill(), WIDE)
        other, after = EPOCHS[hit] ^ (1 << bit), EPOCHS[min(hit + 1, 11)]
        assert log.end_offset == 12, "nothing that was synced is cut off"
        assert log.last_epoch == 4
        if hit >= 8 or other >= 4 or other < EPOCHS[max(hit - 1, 0)]:
            assert ranges(log) == [(hit, hit + 1)]
        elif other > after:
            assert ranges(log)[0][0] == hit + 1, "nothing here tells which of the two is wrong; a leader's log does"
        else:
            assert (EPOCHS[max(hit - 1, 0)] <= other <= after, log.damage) == (True, []), "nothing can tell"

    run(test)


@pytest.mark.parametrize("start", [2, 6, 7, 9])
def test_a_start_in_the_midst_of_an_epoch_makes_no_damage(start: int) -> None:
    async def test(disk: SimDisk) -> None:
        log = await led_by_turns(disk)
        await log.advance_start(start)
        log.append_as_follower(given(12, 4))
        await log.idle()
        log = await opened(disk.kill(), WIDE)
        assert (log.start_offset, log.end_offset, log.damage) == (start, 13, [])

    run(test)


def test_a_start_in_the_midst_of_a_batch_makes_no_damage() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, WIDE)
        several = bytearray(records.encode([Record(n, 1000, b"k", b"v", ()) for n in range(8)]))
        batch.patch(several, 0, 3)
        log.append_as_follower(bytes(several))
        await log.idle()
        await log.advance_start(5)
        log.append_as_follower(given(8, 3))
        await log.idle()
        log = await opened(disk.kill(), WIDE)
        assert (log.start_offset, log.end_offset, log.damage, log.last_epoch) == (5, 9, [], 3)

    run(test)


def test_an_epoch_that_can_not_be_is_damage_from_where_it_begins_and_is_forgotten() -> None:
    """Without the mark nothing in the log itself tells; who knows the epoch of the leader does."""

    async def test(disk: SimDisk) -> None:
        await led_by_turns(disk)
        disk.rot(FIRST, 11 * SIZE + 14, 1 << 5)
        disk = disk.kill()
        disk.remove(f"{FOLDER}/synced")
        told: list[Corruption] = []
        log = await opened(disk, WIDE, on_damage=told.append)
        assert (log.last_epoch, log.damage) == (8192 + 4, [])
        log.distrust_epochs_above(8192 + 4)
        assert not log.damage
        log.distrust_epochs_above(7)
        assert [(one.first_offset, one.next_offset) for one in told] == ranges(log) == [(11, 12)]
        assert (log.last_epoch, log.intact_until) == (4, 11)
        log.append_as_follower(given(12, 7))  # as its leader would
        await log.idle()
        log = await opened(disk.kill(), WIDE)
        assert (ranges(log), log.last_epoch, log.end_offset) == ([(11, 12)], 7, 13), "a restart forgets nothing"
        await log.heal_from(log.intact_until)
        assert (log.end_offset, log.last_epoch, log.damage) == (11, 4, [])

    run(test)


def test_an_epoch_of_which_nothing_is_left_is_forgotten_without_damage() -> None:
    async def test(disk: SimDisk) -> None:
        log = await led_by_turns(disk)
        await log.advance_start(12)
        log.distrust_epochs_above(3)
        assert (log.last_epoch, log.damage, log.end_offset) == (-1, [], 12)

    run(test)


def test_a_cut_near_an_offset_that_rotted_keeps_what_lies_before_it() -> None:
    """The batch claims an offset behind the cut: were it believed, all between would be cut off and called a gap."""

    async def test(disk: SimDisk) -> None:
        settings = config(10**6, index_interval_bytes=10**6)  # so that all of it is looked through
        await (await filled(disk, settings)).close()
        content = bytearray(disk.content(FIRST))
        content[2 * SIZE : 2 * SIZE + 8] = (2 ^ 8).to_bytes(8, "big")
        disk.damage(FIRST, bytes(content))
        log = await opened(disk, settings)
        await log.truncate(9)
        assert (log.end_offset, log.size_bytes) == (9, 9 * SIZE)
        assert await sweep(log) == ([0, 1, 3, 4, 5, 6, 7, 8], [2])

    run(test)


@pytest.mark.parametrize(("hit", "bit"), [(0, 1), (1, 40), (2, 40)])
def test_compaction_believes_no_offset_that_rotted(hit: int, bit: int) -> None:
    """Were it taken for the newest of its key, all newer ones would be removed."""

    async def test(disk: SimDisk) -> None:
        settings = config(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
        await (await filled(disk, settings)).close()
        content = bytearray(disk.content(FIRST))
        content[hit * SIZE : hit * SIZE + 8] = (hit ^ 1 << bit).to_bytes(8, "big")
        disk.damage(FIRST, bytes(content))
        log = await opened(disk, settings)
        await log.compact()
        assert ranges(log) == [(hit, hit + 1)]
        await log.compact()
        assert batch.read_header(await log.read(3, 1, 12)).base_offset == 8, "the newest that compaction may look at"

    run(test)


@pytest.mark.parametrize("bit", [0, 1, 2, 3, 20, 40])
def test_an_offset_that_rotted_where_there_are_gaps_is_damage(bit: int) -> None:
    async def test(disk: SimDisk) -> None:
        bases = [*range(0, 120, 10), *range(120, 126)]
        log = await opened(disk, WIDE)
        await follow(log, *bases)
        await log.close()
        number = 14 if bit < 4 else 4  # in the middle of a gap nobody could know
        content = bytearray(disk.content(FIRST))
        content[number * SIZE : number * SIZE + 8] = (bases[number] ^ (1 << bit)).to_bytes(8, "big")
        disk.damage(FIRST, bytes(content))
        log = await opened(disk, WIDE)
        served, offset = [], 0
        while offset < 126:
            try:
                data = await log.read(offset, 400, 126)
            except Corruption as error:
                offset = error.next_offset
                continue
            served += [header.base_offset for _, header in batch.headers(data)]
            offset = served[-1] + 1
        assert served == [base for base in bases if base != bases[number]]

    run(test)


@pytest.mark.parametrize("shift", [40, 61, 100])
def test_a_misdirected_write_hides_nothing(shift: int) -> None:
    async def test(disk: SimDisk) -> None:
        await (await filled(disk, WIDE)).close()
        content = bytearray(disk.content(FIRST))
        content[4 * SIZE : 5 * SIZE + shift] = bytes(shift) + given(4)
        disk.damage(FIRST, bytes(content))
        log = await opened(disk, WIDE)
        assert await sweep(log) == ([0, 1, 2, 3, 6, 7, 8, 9, 10, 11], [4, 5])
        assert ranges(log) == [(4, 6)]

    run(test)


# --- what is missing


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("lost", "hole"),
    [
        ({0}, (0, 3)),  # not a start that moved
        ({3}, (3, 6)),
        ({3, 6}, (3, 9)),
        ({9}, (9, 12)),  # the active one
        ({0, 3, 6, 9}, (0, 12)),
    ],
)
def test_a_segment_that_is_missing_is_known_from_the_start(lost: set[int], hole: tuple[int, int], clean: bool) -> None:
    async def test(disk: SimDisk) -> None:
        log = await filled(disk)
        await (log.close() if clean else log.idle())
        for base in lost:
            disk.remove(path(base))
        disk.sync_dir(FOLDER)
        for _ in range(2):
            disk = disk.kill()
            log = await opened(disk)
            assert (log.start_offset, log.end_offset) == (0, 12)
            assert (log.intact_until, ranges(log)) == (hole[0], [hole])
            whole = [offset for offset in range(12) if not hole[0] <= offset < hole[1]]
            assert await sweep(log) == (whole, list(range(*hole)))

    run(test)


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE, 2 * SIZE + 70])
@pytest.mark.parametrize("base", [0, 3, 6, 9])
def test_a_segment_that_is_too_short_is_known_from_the_start(base: int, size: int) -> None:
    async def test(disk: SimDisk) -> None:
        await (await filled(disk)).close()
        disk.damage(path(base), disk.content(path(base))[:size])
        first = base + size // SIZE
        for _ in range(2):
            disk = disk.kill()
            log = await opened(disk)
            assert (log.intact_until, ranges(log), log.end_offset) == (first, [(first, base + 3)], 12)
            whole = [offset for offset in range(12) if not first <= offset < base + 3]
            assert await sweep(log) == (whole, list(range(first, base + 3)))

    run(test)


def test_a_log_of_which_nothing_is_left_says_that_it_is_new() -> None:
    async def test(disk: SimDisk) -> None:
        assert (await filled(disk)).is_new
        disk = disk.kill()
        log = await opened(disk)
        assert not log.is_new
        await log.close()
        disk.remove(FOLDER)
        assert (await opened(disk)).is_new, "only who knows the cluster can tell that something should be here"

    run(test)


# --- healing


async def hurt(disk: SimDisk) -> Log:
    """Rot in the middle, and a segment gone behind it."""
    await (await filled(disk)).close()
    disk.rot(path(3), SIZE + 100)
    disk.remove(path(6))
    disk.sync_dir(FOLDER)
    log = await opened(disk)
    await sweep(log)
    await log.idle()
    assert ranges(log) == [(4, 5), (6, 9)]
    return log


def test_a_replica_cuts_at_the_damage_and_gets_the_rest_from_its_leader() -> None:
    async def test(disk: SimDisk) -> None:
        log = await hurt(disk)
        rotten = disk.content(path(3))[SIZE:]
        await log.heal_from(log.intact_until)
        assert (log.end_offset, log.intact_until, log.damage) == (4, 4, [])
        await follow(log, *range(4, 12))
        assert await sweep(log) == (list(range(12)), [])
        assert disk.content(path(3, ".damaged")) == rotten, "what is cut off is put aside"
        assert disk.content(path(9, ".damaged")) == b"".join(map(given, range(9, 12)))
        log = await opened(disk.crash())
        assert (await sweep(log), log.damage) == ((list(range(12)), []), [])

    run(test)


def test_a_replica_whose_first_segment_is_gone_begins_anew() -> None:
    async def test(disk: SimDisk) -> None:
        await (await filled(disk)).close()
        disk.remove(path(0))
        disk.sync_dir(FOLDER)
        log = await opened(disk)
        await log.heal_from(log.intact_until)
        assert (log.start_offset, log.end_offset, log.damage) == (0, 0, [])
        await follow(log, *range(12))
        assert await sweep(log) == (list(range(12)), [])
        assert disk.content(path(3, ".damaged")) == b"".join(map(given, range(3, 6)))

    run(test)


@pytest.mark.parametrize("gone", [False, True])
def test_a_power_cut_at_any_point_of_healing_leaves_it_damaged_or_healed(gone: bool) -> None:
    async def test(_: SimDisk) -> None:
        finished, nth = False, 0
        while not finished:
            nth += 1
            disk = SimDisk(SeededRng(nth))
            log = await hurt(disk)
            if gone:
                await log.close()
                disk.remove(path(0))
                disk.sync_dir(FOLDER)
                log = await opened(disk)
            disk.inject(Fault("", power_cut=True, nth=nth))
            task = asyncio.ensure_future(log.heal_from(log.intact_until))
            while not task.done() and not disk.dead:
                await asyncio.sleep(0)
            finished = task.done() and not disk.dead
            task.cancel()
            disk = disk.crash()
            log = await opened(disk)
            await sweep(log)
            await log.heal_from(log.intact_until)
            await follow(log, *range(log.end_offset, 12))
            assert (await sweep(log), log.damage) == ((list(range(12)), []), [])
        assert nth > 10

    run(test)


def test_if_there_is_no_room_to_put_it_aside_nothing_is_cut() -> None:
    async def test(disk: SimDisk) -> None:
        log = await hurt(disk)
        disk.inject(Fault("write", 28, path=".damaged"))
        with pytest.raises(StorageFailed):
            await log.heal_from(log.intact_until)
        assert (log.end_offset, ranges(log)[0][0]) == (12, 4)
        await log.heal_from(log.intact_until)
        assert log.end_offset == 4

    run(test)


def test_bytes_that_the_disk_refuses_to_read_do_not_keep_a_replica_from_healing() -> None:
    async def test(disk: SimDisk) -> None:
        log = await hurt(disk)
        disk.inject(Fault("read", 5, path=path(3), nth=3))
        await log.heal_from(log.intact_until)
        assert log.end_offset == 4

    run(test)


# --- what ends it


def test_truncation_and_a_new_start_end_the_damage_they_remove() -> None:
    async def test(disk: SimDisk) -> None:
        log = await hurt(disk)
        await log.truncate(10)
        assert (ranges(log), log.end_offset) == ([(4, 5), (6, 9)], 10)
        await log.truncate(8)
        assert (ranges(log), log.end_offset) == ([(4, 5)], 6), "of what is missing nothing is kept"
        await log.advance_start(5)
        assert (ranges(log), log.intact_until) == ([], 6)
        log = await opened(disk.crash())
        assert (log.start_offset, log.end_offset, ranges(log)) == (5, 6, [])

    run(test)


def test_a_file_that_is_cut_while_it_is_read_is_not_taken_for_a_rotten_one() -> None:
    async def test(disk: SimDisk) -> None:
        log = await filled(disk, WIDE)
        disk.chill(lambda path: True)
        offload, held = disk.offload, asyncio.Event()
        begun = asyncio.Event()

        async def late(work: Callable[[], Any]) -> Any:
            begun.set()
            await held.wait()
            return await offload(work)

        disk.offload = late  # type: ignore[method-assign]
        reading = asyncio.create_task(log.read(8, 1000, 12))
        await begun.wait()
        disk.offload = offload  # type: ignore[method-assign]
        await log.truncate(4)
        other = bytearray(records.encode([Record(n, 2000, b"k", b"x" * 150, ()) for n in range(8)]))
        batch.patch(other, 4, 1)
        log.append_as_follower(bytes(other))
        await log.idle()
        held.set()
        assert bytes(await reading) == other, "the batch that has offset 8 now"
        assert log.damage == []

    run(test)


def test_known_damage_is_no_gap_of_compaction() -> None:
    async def test(disk: SimDisk) -> None:
        settings = config(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
        await (await filled(disk, settings)).close()
        disk.remove(path(3))
        disk.sync_dir(FOLDER)
        log = await opened(disk, settings)
        await follow(log, 12, 13)
        await log.compact()
        for _ in range(2):
            for offset in (3, 4, 5):
                with pytest.raises(Corruption):
                    await log.read(offset, 1000, 12)
            assert batch.read_header(await log.read(6, 1, 12)).base_offset >= 6
            log = await opened(disk := disk.kill(), settings)

    run(test)
