"""Answers of groups wait for their log, and a log that refuses makes the shard start over."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from runnel.broker.internal import ImageTopics
from runnel.broker.journal import PartitionJournal
from runnel.broker.shard import Shard
from runnel.cluster.image import Image, Partition, Topic
from runnel.groups.shard import GroupShard
from runnel.groups.values import CommitOffsets, FetchOffsets, GroupConfig, OffsetToCommit
from runnel.model.errors import CoordinatorLoading, NotCoordinator, StorageFailed
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.record.batch import headers
from runnel.replica.partition import Partition as Replica
from runnel.shell.clock import SystemClock
from runnel.testing.clock import SeededRng
from runnel.testing.gated_disk import GatedDisk

TOPIC = TopicId(UUID(int=7))
KEY = PartitionKey(TOPIC, 0)
ME, TWO = BrokerId(1), BrokerId(2)
PLACED = Partition(ME, Epoch(0), Epoch(0), (ME,), (ME,))
IMAGE = Image("cluster", topics={TOPIC: Topic(TOPIC, "t", (PLACED,))}, names={"t": TOPIC})


class Rig:
    def __init__(self, disk: GatedDisk) -> None:
        self.disk = disk
        self.replica: Replica
        self.shard: Shard[Any]

    async def open(self) -> None:
        self.replica = await Replica.open(
            "groups", PartitionKey(TopicId(UUID(int=1)), 0), "p", TopicConfig(),
            me=ME, disk=self.disk, clock=SystemClock(), on_fatal=self._fail,
        )  # fmt: skip
        await self.replica.apply(PLACED)
        self.shard = Shard(
            PartitionJournal(self.replica, SystemClock()),
            lambda: GroupShard(GroupConfig(), SeededRng(1)),
            lambda: ImageTopics(IMAGE),
            SystemClock(),
        )
        await self.shard.load()

    async def close(self) -> None:
        self.disk.gate.set()
        self.shard.close()
        await self.replica.close()

    def _fail(self, error: BaseException) -> None:
        raise AssertionError(error)

    def commit(self, offset: int) -> "asyncio.Task[Any]":
        request = CommitOffsets("g", "", -1, (OffsetToCommit(KEY, Offset(offset)),))
        return asyncio.get_running_loop().create_task(self.shard.ask("commit_offsets", request))

    def fetch(self) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(self.shard.ask("fetch_offsets", FetchOffsets("g", (KEY,))))


def run(folder: Path, scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        disk = GatedDisk(str(folder))
        rig = Rig(disk)
        try:
            await rig.open()
            await scenario(rig)
            await rig.close()
        finally:
            disk.close()

    asyncio.run(main())


async def a_few_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def offset_of(fetched: Any) -> int:
    offset: int = fetched.offsets[0].offset
    return offset


def test_neither_a_commit_nor_a_question_is_answered_before_the_disk_has_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        rig.disk.gate.clear()
        commit, question = rig.commit(5), rig.fetch()
        await a_few_turns()
        assert not commit.done()
        assert not question.done()  # it would show what a power loss could still take back
        rig.disk.gate.set()
        assert (await commit).errors == (None,)
        assert offset_of(await question) == 5

    run(tmp_path, scenario)


def test_decisions_that_meet_a_sync_are_appended_together(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(0)
        first = rig.replica.log.end_offset
        rig.disk.gate.clear()
        commits = [rig.commit(number) for number in range(1, 10)]
        await a_few_turns()
        rig.disk.gate.set()
        await asyncio.gather(*commits)
        data = await rig.replica.read(first, 1 << 20)
        counts = [header.count for _, header in headers(data)]
        assert sum(counts) == 9
        assert len(counts) < 9
        assert offset_of(await rig.fetch()) == 9

    run(tmp_path, scenario)


def test_state_is_read_from_the_log_at_the_next_start(tmp_path: Path) -> None:
    async def first(rig: Rig) -> None:
        await rig.commit(42)

    async def second(rig: Rig) -> None:
        assert offset_of(await rig.fetch()) == 42

    run(tmp_path, first)
    run(tmp_path, second)


def test_old_records_are_written_anew_before_anything_is_answered_and_unreadable_ones_stay(tmp_path: Path) -> None:
    key = msgspec.msgpack.encode([5, "g", TOPIC.bytes, 0])
    value = msgspec.msgpack.encode([1, 42, -1, "", 1_000, None])

    unreadable = msgspec.msgpack.encode([1, "g", ""]), msgspec.msgpack.encode([2, "no epoch"])

    async def old(rig: Rig) -> None:
        await PartitionJournal(rig.replica, SystemClock()).append([unreadable, (key, value), (b"order-17", b"{}")])

    async def upgrade(rig: Rig) -> None:
        await old(rig)
        rig.disk.gate.clear()
        await rig.shard.load()
        question = rig.fetch()
        await a_few_turns()
        assert not question.done()
        rig.disk.gate.set()
        assert offset_of(await question) == 42
        assert set(await kept(rig)) == {
            b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x27\x75\x00\x01g\x00\x01t", unreadable[0], b"order-17",
        }  # fmt: skip
        assert rig.replica.unreadable.count == 2

    async def after(rig: Rig) -> None:
        end = rig.replica.log.end_offset
        assert offset_of(await rig.fetch()) == 42
        assert rig.replica.log.end_offset == end

    run(tmp_path, upgrade)
    run(tmp_path, after)


async def kept(rig: Rig) -> dict[bytes, bytes]:
    """What compaction would leave of the log."""
    found: dict[bytes, bytes | None] = {}
    await PartitionJournal(rig.replica, SystemClock()).read(found.__setitem__)
    return {key: value for key, value in found.items() if value is not None}


def test_a_decision_of_unknown_outcome_is_waited_for_before_the_state_is_read_again(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        both = Partition(ME, Epoch(0), Epoch(1), (ME, TWO), (ME, TWO))
        rig.replica.reconfigure(TopicConfig(min_insync_replicas=2))
        await rig.replica.apply(both)
        committed = rig.replica.log.end_offset
        commit = rig.commit(5)
        while rig.replica.log.end_offset == committed:
            await asyncio.sleep(0)
        await rig.replica.apply(replace(both, epoch=Epoch(2), isr=(ME,)))
        with pytest.raises(NotCoordinator):
            await commit
        await rig.replica.apply(replace(both, epoch=Epoch(3)))
        await a_few_turns()
        assert [rig.shard.loaded] == [False]  # the log holds a commit that is not decided yet
        rig.replica.fetched_by(TWO, Epoch(9), rig.replica.log.end_offset)
        while not rig.shard.loaded:
            await asyncio.sleep(0)
        rig.replica.fetched_by(TWO, Epoch(9), rig.replica.log.end_offset)
        assert offset_of(await rig.fetch()) == 5

    run(tmp_path, scenario)


def test_when_an_append_fails_the_state_is_what_the_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)

        def refuse(*_: object, **__: object) -> None:
            raise StorageFailed("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(rig.replica, "append", refuse)
            with pytest.raises(NotCoordinator, match="the disk is full"):
                await rig.commit(2)
        while not rig.shard.loaded:
            await asyncio.sleep(0)
        assert offset_of(await rig.fetch()) == 1
        await rig.commit(3)
        assert offset_of(await rig.fetch()) == 3

    run(tmp_path, scenario)


def test_a_log_that_can_not_be_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the groups of this shard would be loading until somebody restarts the broker."""

    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        failures = [StorageFailed("the disk is full"), StorageFailed("the disk is ill")]
        read = rig.replica.read

        def refuse(*_: object, **__: object) -> None:
            raise failures.pop()

        async def read_once_well(offset: Offset, bytes_max: int) -> bytes | memoryview:
            if failures:
                raise failures.pop()
            return await read(offset, bytes_max)

        with monkeypatch.context() as patched:
            patched.setattr(rig.replica, "append", refuse)
            patched.setattr(rig.replica, "read", read_once_well)
            with pytest.raises(NotCoordinator, match="the disk is ill"):
                await rig.commit(2)
            while not rig.shard.loaded:
                await asyncio.sleep(0)
        assert failures == []
        assert offset_of(await rig.fetch()) == 1
        await rig.commit(3)

    run(tmp_path, scenario)


@pytest.mark.parametrize("place", ["append", "_carry_out", "tick", "replay"])
def test_an_error_that_nobody_foresaw_is_taken_as_a_failed_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        failures = [KeyError("nobody foresaw it") for _ in range(1 if place != "replay" else 3)]

        def failing(work: Callable[..., Any]) -> Callable[..., Any]:
            def worked(*given: Any, **more: Any) -> Any:
                if failures:
                    raise failures.pop()
                return work(*given, **more)

            return worked

        if place in ("append", "replay"):
            monkeypatch.setattr(PartitionJournal, "append", failing(PartitionJournal.append))
        if place == "replay":
            monkeypatch.setattr(GroupShard, "replay", failing(GroupShard.replay))
        if place == "_carry_out":
            monkeypatch.setattr(rig.shard, "_release", failing(rig.shard._release))
        if place == "tick":
            monkeypatch.setattr(GroupShard, "tick", failing(GroupShard.tick))
            rig.shard._tick()
            await a_few_turns()
        else:
            with pytest.raises(NotCoordinator, match="is read again"):
                await asyncio.wait_for(rig.commit(2), 30)
        assert not rig.shard.loaded
        with pytest.raises(CoordinatorLoading):
            await rig.commit(2)
        async with asyncio.timeout(30):
            await rig.shard.opened()
        assert failures == []
        assert offset_of(await rig.fetch()) == (2 if place == "_carry_out" else 1)
        await rig.commit(3)
        assert offset_of(await rig.fetch()) == 3

    run(tmp_path, scenario)
    assert "nobody foresaw it" in caplog.text


def test_who_was_told_nothing_by_a_tick_that_failed_is_told_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        rig.disk.gate.clear()
        commit = rig.commit(2)
        await a_few_turns()
        monkeypatch.setattr(rig.shard._machine, "tick", None)
        rig.shard._tick()
        with pytest.raises(NotCoordinator, match="is read again"):
            await asyncio.wait_for(commit, 30)
        rig.disk.gate.set()
        async with asyncio.timeout(30):
            await rig.shard.opened()
        assert offset_of(await rig.fetch()) == 2  # it was under way, and is kept

    run(tmp_path, scenario)


def test_what_a_verb_left_in_memory_when_it_failed_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would get into the log with the next decision, and nobody knows whether it can be read again."""

    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        commit_offsets = GroupShard.commit_offsets

        def change_and_fail(*given: Any) -> Any:
            commit_offsets(*given)
            raise ValueError("nobody foresaw it")

        with monkeypatch.context() as patched:
            patched.setattr(GroupShard, "commit_offsets", change_and_fail)
            with pytest.raises(ValueError, match="nobody foresaw it"):
                await rig.commit(2)
        assert not rig.shard.loaded
        assert "nobody foresaw it" in str(rig.shard.trouble)
        async with asyncio.timeout(30):
            await rig.shard.opened()
        assert rig.shard.trouble is None
        assert offset_of(await rig.fetch()) == 1

    run(tmp_path, scenario)


def test_closing_tells_those_who_wait(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        rig.disk.gate.clear()
        commit = rig.commit(2)
        await a_few_turns()
        rig.shard.close()
        with pytest.raises(NotCoordinator, match="closing"):
            await commit

    run(tmp_path, scenario)


def test_what_the_last_epoch_did_not_commit_is_never_answered_as_done(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(1)
        rig.disk.gate.clear()
        commit, question = rig.commit(5), rig.fetch()
        await a_few_turns()
        lead_again = asyncio.ensure_future(rig.replica.apply(replace(PLACED, leader_epoch=Epoch(1), epoch=Epoch(1))))
        await a_few_turns()
        rig.disk.gate.set()
        await lead_again
        for asked in (commit, question):
            with pytest.raises(NotCoordinator):
                await asked
        assert not rig.shard.belongs_to(rig.replica)
        with pytest.raises(NotCoordinator, match="not here any more"):
            await rig.fetch()

    run(tmp_path, scenario)


def test_a_coordinator_begins_when_all_that_its_leader_found_is_committed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.commit(42)
        both = Partition(ME, Epoch(1), Epoch(1), (ME, TWO), (ME, TWO))
        rig.replica.high_watermark = Offset(0)  # as a follower that was never told knows it
        await rig.replica.apply(both)
        next_one = Shard(
            PartitionJournal(rig.replica, SystemClock()),
            lambda: GroupShard(GroupConfig(), SeededRng(1)),
            lambda: ImageTopics(IMAGE),
            SystemClock(),
        )
        next_one.open()
        await a_few_turns()
        with pytest.raises(CoordinatorLoading):
            await next_one.ask("fetch_offsets", FetchOffsets("g", (KEY,)))
        rig.replica.fetched_by(TWO, Epoch(0), rig.replica.log.end_offset)
        while not next_one.loaded:
            await asyncio.sleep(0.001)
        found = await next_one.ask("fetch_offsets", FetchOffsets("g", (KEY,)))
        assert offset_of(found) == 42
        next_one.close()

    run(tmp_path, scenario)


def test_who_waits_until_a_shard_is_read_hears_that_or_of_its_end(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        shard = Shard(
            PartitionJournal(rig.replica, SystemClock()), lambda: GroupShard(GroupConfig(), SeededRng(1)),
            lambda: ImageTopics(IMAGE), SystemClock(),
        )  # fmt: skip
        with pytest.raises(CoordinatorLoading):
            _ = shard.machine
        waiting = asyncio.ensure_future(shard.opened())
        await a_few_turns()
        assert not waiting.done()
        await shard.load()
        await waiting
        await shard.opened()
        assert isinstance(shard.machine, GroupShard)
        shard.loaded = False
        waiting = asyncio.ensure_future(shard.opened())
        await a_few_turns()
        shard.close()
        for late in (waiting, shard.opened()):
            with pytest.raises(NotCoordinator):
                await late

    run(tmp_path, scenario)
