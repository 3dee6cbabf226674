"""The simulated disk loses what a real one may lose, and nothing else."""

import asyncio
import errno

import pytest

from runnel.testing.clock import SeededRng
from runnel.testing.disk import Fault, PowerCut, SimDisk


def made(seed: int = 0) -> SimDisk:
    disk = SimDisk(SeededRng(seed))
    disk.make_dir("d")
    return disk


def test_what_was_synced_survives_every_crash() -> None:
    for seed in range(50):
        disk = made(seed)
        file = disk.open("d/a", create=True)
        file.write([b"x" * 2000], 0)
        file.sync()
        disk.sync_dir("d")
        file.write([b"y" * 2000], 2000)
        disk = disk.crash()
        assert disk.open("d/a").read(2000, 0) == b"x" * 2000


def test_what_was_not_synced_is_torn_and_reordered_by_sectors() -> None:
    seen = set()
    for seed in range(300):
        disk = made(seed)
        file = disk.open("d/a", create=True)
        disk.sync_dir("d")
        for number in range(3):
            file.write([bytes([number + 1]) * 512], number * 512)
        content = disk.crash().content("d/a")
        seen.add(tuple(content[at] for at in range(0, len(content), 512)))
    assert () in seen
    assert (1, 2, 3) in seen
    assert any(0 in sectors and sectors[-1] for sectors in seen), "a hole before what is there"
    assert all(sector in (0, at + 1) for sectors in seen for at, sector in enumerate(sectors))


def test_a_rename_that_was_not_synced_may_be_undone() -> None:
    seen = set()
    for seed in range(50):
        disk = made(seed)
        disk.open("d/old", create=True)
        disk.sync_dir("d")
        disk.rename("d/old", "d/new")
        seen.add(tuple(disk.crash().list("d")))
    assert seen == {("old",), ("new",)}


def test_a_removal_and_a_creation_that_were_not_synced_may_be_undone() -> None:
    seen = set()
    for seed in range(50):
        disk = made(seed)
        disk.open("d/a", create=True)
        disk.sync_dir("d")
        disk.remove("d/a")
        disk.open("d/b", create=True)
        seen.add(tuple(disk.crash().list("d")))
    assert seen == {("a",), (), ("b",)}


def test_a_kill_loses_nothing() -> None:
    disk = made()
    file = disk.open("d/a", create=True)
    file.write([b"abc"], 0)
    disk = disk.kill()
    assert disk.open("d/a").read(10, 0) == b"abc"
    with pytest.raises(PowerCut):
        file.write([b"zombie"], 0)
    assert disk.content("d/a") == b"abc"


def test_faults_strike_when_they_should() -> None:
    disk = made()
    file = disk.open("d/a", create=True)
    disk.inject(Fault("write", errno.ENOSPC, path="d/a", nth=2, short_bytes=2))
    file.write([b"abc"], 0)
    with pytest.raises(OSError) as caught:
        file.write([b"def"], 3)
    assert caught.value.errno == errno.ENOSPC
    assert file.read(10, 0) == b"abcde"
    file.write([b"def"], 3)
    disk.inject(Fault("", power_cut=True, nth=2))
    file.size()
    with pytest.raises(PowerCut):
        file.size()
    assert disk.dead


def test_the_same_seed_gives_the_same_disk() -> None:
    def content() -> bytes:
        disk = made(7)
        file = disk.open("d/a", create=True)
        disk.sync_dir("d")
        for number in range(10):
            file.write([bytes([number]) * 700], number * 700)
        return disk.crash().content("d/a")

    assert content() == content()


def test_offload_lets_others_in_between() -> None:
    async def main() -> None:
        disk = made()
        order: list[str] = []

        async def other() -> None:
            order.append("other")

        task = asyncio.create_task(other())
        await disk.offload(lambda: order.append("work"))
        await task
        assert order == ["other", "work"]

    asyncio.run(main())
