"""The embedded store: what SIGKILL, damage, a full disk and impatient callers do to it."""

import asyncio
import errno
import os
import random
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runnel.cluster.embedded import FILE, FOLDER, NEW_FILE, Embedded
from runnel.cluster.store import Conflict, Create, Node, Set, StoreDamaged, StoreUnavailable
from runnel.model.errors import DataInUse, Fatal, StorageFailed
from runnel.shell.disk import RealDisk

WRITER = """
import asyncio, sys
from runnel.cluster.embedded import Embedded
from runnel.cluster.store import Create, Delete, Set
from runnel.shell.disk import RealDisk

async def main(root):
    store = await Embedded.open(RealDisk(root), root)
    if await store.get("/n0") is None:
        await store.multi([Create(f"/n{i}", b"0") for i in range(30)] + [Create("/round-0", b"")])
    version = (await store.get("/n0")).version
    while True:
        ops = [Set(f"/n{i}", b"%d" % (version + 1) * 50, version) for i in range(30)]
        await store.multi([*ops, Delete(f"/round-{version}", 0), Create(f"/round-{version + 1}", b"")])
        version += 1
        print(version, flush=True)

asyncio.run(main(sys.argv[1]))
"""


def reopened(root: Path) -> Embedded:
    return asyncio.run(Embedded.open(RealDisk(str(root)), str(root)))


def written(root: Path, value: bytes = b"kept") -> None:
    """A store with one node, closed cleanly."""

    async def run() -> None:
        disk = RealDisk(str(root))
        store = await Embedded.open(disk, str(root))
        await store.multi([Create("/a", value)])
        await store.close()
        disk.close()

    asyncio.run(run())


def test_sigkill_in_the_middle_of_multis_leaves_all_or_nothing(tmp_path: Path) -> None:
    rng = random.Random(20)
    last = 0
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 12)):
            last = int(writer.stdout.readline())
        for _ in range(rng.randrange(20_000)):  # not always at the same point of a write
            pass
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split("\n")
        writer.wait()
        writer.stdout.close()
        last = max([last, *(int(line) for line in rest[:-1])])
        last = asyncio.run(_check(tmp_path, last))


async def _check(root: Path, acknowledged: int) -> int:
    """The version all nodes have: every acknowledged multi is there, and at most one more, whole."""
    disk = RealDisk(str(root))
    store = await Embedded.open(disk, str(root))
    nodes = [await store.get(f"/n{i}") for i in range(30)]
    first = nodes[0]
    assert first is not None
    assert all(node == first for node in nodes)
    assert first.version in (acknowledged, acknowledged + 1)
    assert first.value == b"%d" % first.version * 50
    assert [name for name in await store.children("/") if name.startswith("round")] == [f"round-{first.version}"]
    await store.close()
    disk.close()
    return first.version


class Balking(RealDisk):
    """Does not sync its folders until it is told to."""

    balks = True
    synced: list[str]

    def sync_dir(self, path: str) -> None:
        if self.balks:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.synced.append(path)
        super().sync_dir(path)


def test_a_store_whose_folder_could_not_be_synced_is_synced_by_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        disk = Balking(str(tmp_path))
        with pytest.raises(OSError, match="Input/output error"):
            await Embedded.open(disk, str(tmp_path))
        disk.balks, disk.synced = False, []
        store = await Embedded.open(disk, str(tmp_path))
        assert disk.synced == [FOLDER]
        await store.close()
        disk.close()

    asyncio.run(run())


def test_the_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = await Embedded.open(RealDisk(str(tmp_path)), str(tmp_path))
        await store.multi([Create("/a", b"")])
        for file in (tmp_path / "cluster").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert not (tmp_path / f"{FILE}-shm").exists()
        await store.close()

    asyncio.run(run())


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def _garbage(file: Path) -> None:
    file.write_bytes(b"garbage " * 2000)


def _rot(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[content.rindex(b"precious")] ^= 1
    file.write_bytes(content)


def _foreign(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE node (path TEXT)")
    other.close()


def _newer(file: Path) -> None:
    with sqlite3.connect(file) as store:
        store.execute("PRAGMA user_version=99")
    store.close()


def _lost(file: Path) -> None:
    file.rename(file.with_name("metadata.db-wal"))


@pytest.mark.parametrize("damage", [_empty, _cut, _garbage, _rot, _foreign, _newer, _lost])
def test_damage_is_an_error_and_changes_nothing(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    written(tmp_path, b"precious" * 1000)
    damage(tmp_path / FILE)
    before = {file.name: file.read_bytes() for file in (tmp_path / "cluster").iterdir()}
    with pytest.raises(StoreDamaged, match=r"metadata\.db can't be used: .*Nothing was deleted") as error:
        reopened(tmp_path)
    assert isinstance(error.value, Fatal)
    after = {file.name: file.read_bytes() for file in (tmp_path / "cluster").iterdir()}
    assert after == before


def test_a_creation_that_was_cut_short_begins_again(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / NEW_FILE).write_bytes(b"half a fi")
    (tmp_path / f"{NEW_FILE}-journal").write_bytes(b"half a journal")
    written(tmp_path)
    assert sorted(file.name for file in (tmp_path / "cluster").iterdir()) == ["metadata.db"]


def test_a_second_broker_on_the_same_files_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        await store.multi([Create("/a", b"")])
        with pytest.raises(DataInUse, match="in use by another broker"):
            await Embedded.open(disk, str(tmp_path))
        await store.close()
        await (await Embedded.open(disk, str(tmp_path))).close()

    asyncio.run(run())


def test_a_cancelled_caller_leaves_memory_and_disk_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        await store.multi([Create("/a", b"0")])
        caller = asyncio.ensure_future(store.multi([Set("/a", b"1", 0)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(Conflict):  # waits its turn, and finds what the cancelled caller began
            await store.multi([Set("/a", b"2", 0)])
        assert await store.get("/a") == Node(b"1", 1)
        await store.close()
        again = await Embedded.open(disk, str(tmp_path))
        assert await again.get("/a") == Node(b"1", 1)
        await again.close()

    asyncio.run(run())


def _no_more_pages(store: Embedded) -> Callable[[], object]:
    store._database._run("PRAGMA max_page_count=1")  # SQLite takes the present size instead
    return lambda: store._database._run("PRAGMA max_page_count=1000000")


def _no_longer_files(store: Embedded) -> Callable[[], object]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("fill", [_no_more_pages, _no_longer_files])
def test_a_full_disk_refuses_the_write_and_heals(
    tmp_path: Path, fill: Callable[[Embedded], Callable[[], object]]
) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        await store.multi([Create("/a", b"0")])
        heal = fill(store)
        try:
            with pytest.raises(StorageFailed, match="nothing was changed"):
                await store.multi([Create("/b", b"x" * 100_000), Set("/a", b"1", 0)])
        finally:
            heal()
        assert await store.get("/b") is None
        assert await store.get("/a") == Node(b"0", 0)
        await store.multi([Create("/b", b"x" * 100_000), Set("/a", b"1", 0)])
        await store.close()
        again = await Embedded.open(disk, str(tmp_path))
        assert await again.get("/b") == Node(b"x" * 100_000, 0)
        await again.close()

    asyncio.run(run())


def test_a_closed_store_takes_nothing_and_can_be_closed_again(tmp_path: Path) -> None:
    async def run() -> None:
        store = await Embedded.open(RealDisk(str(tmp_path)), str(tmp_path))
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.multi([Create("/a", b"")])

    asyncio.run(run())
