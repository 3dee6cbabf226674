"""The index of keys says what the log says: whatever is cut, trimmed, rotten or forgotten."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.test_fetch import end, write

from runnel.broker import key_index, standing
from runnel.broker.key_index import KeyIndex, hash_of
from runnel.broker.messages import Messages, Stretch
from runnel.log import runs as files
from runnel.log.files import Files
from runnel.model.ids import Offset
from runnel.record import records
from runnel.record.batch import check_produced
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]
ALL = 10**9


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails of 16 messages, so that a few hundred fill several levels of runs."""
    monkeypatch.setattr(key_index, "TAIL_MAX", 16)


def append(partition: Partition, keys: list[bytes]) -> None:
    rows = [records.Record(n, 1, key, b"v") for n, key in enumerate(keys)]
    batch = memoryview(bytearray(records.encode(rows)))
    partition.append(batch, check_produced(batch))


@asynccontextmanager
async def indexed(partition: Partition, disk: GatedDisk) -> AsyncIterator[KeyIndex]:
    index = KeyIndex(partition, "keys/p", disk, Files(disk), Messages())
    index.start()
    try:
        yield index
    finally:
        await index.stop()


async def covered(index: KeyIndex) -> None:
    async with asyncio.timeout(30):
        while index.end < index.partition.last_stable_offset:
            await index.progress()


async def check(index: KeyIndex, keys: dict[int, bytes]) -> None:
    """Each key is found at the offsets where the log has it, from anywhere on."""
    await covered(index)
    for key in {*keys.values(), b"nobody"}:
        wanted = [offset for offset, one in sorted(keys.items()) if one == key]
        for start in (0, len(keys) // 2, index.end - 1, index.end + 5):
            found, upto = await index.find(hash_of(key), start, ALL)
            assert (found, upto) == ([offset for offset in wanted if offset >= start], index.end)
        first, upto = await index.find(hash_of(key), 0, 3)
        assert first == wanted[:3]
        assert upto == (wanted[2] + 1 if len(wanted) >= 3 else index.end)


def some_keys(count: int, first: int = 0) -> dict[int, bytes]:
    chance = random.Random(count)
    return {first + n: b"user-%d" % chance.choice((1, 2, chance.randrange(50))) for n in range(count)}


def fill(partition: Partition, keys: dict[int, bytes]) -> None:
    assert min(keys) == partition.log.end_offset
    rest = list(keys.values())
    while rest:
        append(partition, rest[:7])
        rest = rest[7:]


async def feed(index: KeyIndex, keys: dict[int, bytes]) -> None:
    """Batch by batch, so that the tail fills again and again."""
    for first in range(min(keys), max(keys) + 1, 7):
        fill(index.partition, {offset: keys[offset] for offset in range(first, min(first + 7, max(keys) + 1))})
        await covered(index)
    await tidied(index)


async def tidied(index: KeyIndex) -> None:
    """A tail that became full is put away, and so is what was thrown away before."""
    async with asyncio.timeout(30):
        while index._tail.count >= 16 or index._full is not None or index._garbage:
            await asyncio.sleep(0.001)
    if index._tidying is not None:
        await asyncio.wait([index._tidying])


def runs_on(path: Path) -> list[str]:
    return sorted(one.name for one in (path / "keys" / "p").iterdir())


def test_what_is_appended_is_found_in_the_tail_and_in_merged_runs(run: Run, tmp_path: Path) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(3000)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
            await check(index, keys)
            assert 2 < len(runs_on(tmp_path)) < 3 * key_index.FAN  # of about 190 tails that were put away

    run(scenario)


def test_a_long_merge_keeps_nobody_waiting_until_much_is_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    held, step = True, files.step

    def slowly(steps: Any) -> Any:
        return None if held and steps.gi_code.co_name == "merge" else step(steps)

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        nonlocal held
        partition = await open_partition()
        monkeypatch.setattr(files, "step", slowly)
        keys = some_keys(16 * 3 * key_index.BEHIND_MAX)
        async with indexed(partition, disk) as index:
            for first in range(0, len(keys), 7):
                fill(partition, {offset: keys[offset] for offset in range(first, min(first + 7, len(keys)))})
                async with asyncio.timeout(30):
                    while index.end <= first and len(index._runs) < key_index.BEHIND_MAX:
                        await asyncio.sleep(0)
            assert len(index._runs) == key_index.BEHIND_MAX, "no more, and no fewer: nobody waited for the merge before"
            assert index.end < len(keys)
            held = False
            await covered(index)
            await tidied(index)
            assert len(index._runs) < 3 * key_index.FAN
            await check(index, keys)

    run(scenario)


def test_memory_holds_no_more_than_a_tail(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        async with indexed(partition, disk) as index:
            await feed(index, some_keys(2000))
            assert index._tail.count < 16 + 7
            assert len(index._recent) <= key_index.RECENT_MAX

    run(scenario)


def test_runs_are_used_again_after_a_restart(run: Run, tmp_path: Path) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(500)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
        before = runs_on(tmp_path)
        more = some_keys(40, first=500)
        fill(partition, more)
        async with indexed(partition, disk) as index:
            await check(index, keys | more)
            assert {*before} & {*runs_on(tmp_path)}

    run(scenario)


def test_what_was_cut_off_is_forgotten_and_what_came_instead_is_found(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(203)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
            await partition._cut(Offset(105))
            kept = {offset: key for offset, key in keys.items() if offset < 105}
            partition.leader_epoch += 1  # another leader wrote what follows
            other = {105 + n: b"other-%d" % (n % 5) for n in range(130)}
            fill(partition, other)
            await check(index, kept | other)

    run(scenario)


def test_what_was_cut_off_while_nobody_looked_is_forgotten_too(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(203)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
        await partition._cut(Offset(105))
        partition.leader_epoch += 1
        other = {105 + n: b"other-%d" % (n % 5) for n in range(130)}
        fill(partition, other)
        async with indexed(partition, disk) as index:
            await check(index, {offset: key for offset, key in keys.items() if offset < 105} | other)

    run(scenario)


def test_runs_go_with_the_messages_that_retention_removes(run: Run, tmp_path: Path) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(300)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
            await partition.log.advance_start(250, partition.high_watermark)
            more = some_keys(64, first=300)
            fill(partition, more)
            await covered(index)
            await tidied(index)
            found, upto = await index.find(hash_of(b"user-1"), 250, ALL)
            assert found == [offset for offset, key in (keys | more).items() if offset >= 250 and key == b"user-1"]
            assert upto == index.end
            assert all(int(name[21:41]) > 250 for name in runs_on(tmp_path))

    run(scenario)


def test_what_is_below_the_start_is_found_no_more(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(45)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
            for start in (3, 20, 43):  # in a run, between two, in the tail
                await partition.log.advance_start(start)
                for key in set(keys.values()):
                    wanted = [offset for offset, one in keys.items() if one == key and offset >= start]
                    assert await index.find(hash_of(key), 0, ALL) == (wanted, 45)
            assert index.find_now(hash_of(keys[44]), 0, 1) is not None, "what is older is not there, so memory has all"

    run(scenario)


def test_a_start_that_passes_the_index_costs_it_nothing_else(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        async with indexed(partition, disk) as index:
            await covered(index)
            fill(partition, some_keys(20))  # the index has had no turn since
            await partition.log.advance_start(10)
            await check(index, {offset: key for offset, key in some_keys(20).items() if offset >= 10})

    run(scenario)
    assert caplog.record_tuples == []


def test_a_rotten_run_is_built_again(run: Run, tmp_path: Path) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(200)
        async with indexed(partition, disk) as index:
            await feed(index, keys)
            path = tmp_path / "keys" / "p" / runs_on(tmp_path)[0]
            data = bytearray(path.read_bytes())
            data[3] ^= 1
            path.write_bytes(data)
            await index.find(hash_of(b"user-1"), 0, ALL)
            await check(index, keys)

    run(scenario)


def test_nothing_of_an_aborted_transaction_is_covered(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        async with indexed(partition, disk) as index:
            append(partition, [b"a"])  # 0
            await write(partition, 7)  # 1
            append(partition, [b"a"])  # 2
            await covered(index)
            assert index.end == 1  # the transaction is open
            await end(partition, 7, commit=False)  # 3
            await covered(index)
            assert await index.find(hash_of(b"a"), 0, ALL) == ([0, 2], 4)
            assert sum(len(some) for some in index._tail.offsets.values()) == 2

    run(scenario)


class Waiter:
    """Waits for a key."""

    def __init__(self, index: KeyIndex, key: bytes) -> None:
        self._index = index
        self.ended = asyncio.Event()
        self.end_seen = -1  # of the index, when it was told
        index.begin(hash_of(key), self)

    def end(self) -> None:
        self.end_seen = self._index.end
        self.ended.set()


def test_who_waits_for_a_key_is_woken_by_it_alone(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        async with indexed(partition, disk) as index:
            await covered(index)
            mine, other = Waiter(index, b"me"), Waiter(index, b"other")
            append(partition, [b"x", b"me"])
            await asyncio.wait_for(mine.ended.wait(), 30)
            assert mine.end_seen == 2, "it is told when all that came together is covered"
            assert not other.ended.is_set()
            index.done(hash_of(b"me"), mine)
            index.done(hash_of(b"other"), other)
            assert not index._waiters

    run(scenario)


def test_all_are_woken_when_the_role_changes(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        async with indexed(partition, disk) as index:
            waiting = Waiter(index, b"me")
            partition._wake_all()
            await asyncio.wait_for(waiting.ended.wait(), 30)

    run(scenario)


def test_other_brokers_are_told_who_got_something(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "RECENT_MAX", 10)

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        async with indexed(partition, disk) as index:
            append(partition, [b"a", b"b", b"a", b"c"])
            await covered(index)
            assert set(index.hashes_since(2) or []) == {hash_of(b"a"), hash_of(b"c")}
            assert index.hashes_since(4) == []
            append(partition, [b"d"] * 10)
            await covered(index)
            assert index.hashes_since(3) is None  # too long ago
            assert index.hashes_since(4) == [hash_of(b"d")]

    run(scenario)


def test_an_error_that_nobody_foresaw_has_the_index_built_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        keys = some_keys(50)
        append(partition, list(keys.values()))
        cover, failures = KeyIndex._cover, [KeyError("nobody foresaw it")]

        def failing(index: KeyIndex, stretch: Stretch) -> None:
            cover(index, stretch)
            if failures:
                raise failures.pop()

        monkeypatch.setattr(KeyIndex, "_cover", failing)
        monkeypatch.setattr(standing, "PAUSE_S", 0)
        async with indexed(partition, disk) as index:
            async with asyncio.timeout(30):
                while "nobody foresaw it" not in caplog.text:
                    await asyncio.sleep(0)
            await check(index, keys)

    run(scenario)
    assert "begins again" in caplog.text
