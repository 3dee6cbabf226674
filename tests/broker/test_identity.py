"""The data directory's identity: one broker of one cluster, and the mark of an orderly end."""

import asyncio
import errno
from pathlib import Path

import pytest

from runnel.broker.identity import FILE, claim, mark_clean
from runnel.model.errors import InvalidConfig, StorageFailed
from runnel.model.ids import BrokerId, Epoch
from runnel.shell.disk import RealDisk
from runnel.testing.clock import SeededRng
from runnel.testing.disk import Fault, SimDisk

ONE = BrokerId(1)


def test_a_folder_keeps_its_identity_and_tells_an_orderly_end_once() -> None:
    async def main() -> None:
        disk = SimDisk(SeededRng(1))
        first = await claim(disk, "c", ONE, SeededRng(2))
        assert (first.cluster_id, first.broker_id, first.clean_epoch) == ("c", 1, None)
        await mark_clean(disk, first, Epoch(0))
        disk = disk.crash()
        second = await claim(disk, "c", ONE, SeededRng(3))
        assert (second.directory, second.clean_epoch) == (first.directory, 0)
        disk = disk.crash()  # the mark is gone before the broker registers, also from the disk
        assert (await claim(disk, "c", ONE, SeededRng(4))).clean_epoch is None

    asyncio.run(main())


@pytest.mark.parametrize(("cluster", "broker"), [("other", 1), ("c", 2)])
def test_the_folder_of_another_is_refused_and_left_alone(tmp_path: Path, cluster: str, broker: int) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        mine = await claim(disk, "c", ONE, SeededRng(1))
        await mark_clean(disk, mine, Epoch(7))
        before = (tmp_path / FILE).read_bytes()
        with pytest.raises(InvalidConfig, match=r"belongs to broker 1 of cluster c.*name another --data"):
            await claim(disk, cluster, BrokerId(broker), SeededRng(2))
        assert (tmp_path / FILE).read_bytes() == before
        disk.close()

    asyncio.run(main())


@pytest.mark.parametrize("content", [b"", b"{", b'{"cluster_id":"c"}', b"\xff"])
def test_an_identity_that_can_not_be_read_is_no_new_one(tmp_path: Path, content: bytes) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(InvalidConfig, match=r"can't be read.*put back a copy"):
            await claim(disk, "c", ONE, SeededRng(1))
        assert (tmp_path / FILE).read_bytes() == content
        disk.close()

    asyncio.run(main())


def test_a_disk_that_refuses_stops_the_start_but_not_an_orderly_end() -> None:
    async def main() -> None:
        disk = SimDisk(SeededRng(1))
        mine = await claim(disk, "c", ONE, SeededRng(1))
        disk.inject(Fault("rename", errno.ENOSPC))
        with pytest.raises(StorageFailed, match="see that the disk has room"):
            await claim(disk, "c", ONE, SeededRng(2))
        await mark_clean(disk, mine, Epoch(3))

    asyncio.run(main())
