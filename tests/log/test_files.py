"""Open files: never one that its path does not name any more."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from runnel.log.files import Files
from runnel.testing.clock import SeededRng
from runnel.testing.disk import SimDisk

T = TypeVar("T")


class Slow(SimDisk):
    """What was done off the loop is told when a test lets it."""

    def __init__(self) -> None:
        super().__init__(SeededRng(1))
        self.told = asyncio.Event()
        self.told.set()

    async def offload(self, work: Callable[[], T]) -> T:
        result = await super().offload(work)
        await self.told.wait()
        return result


def write(disk: Slow, path: str, text: bytes) -> None:
    file = disk.open(path, create=True)
    file.write((text,), 0)
    file.close()


async def content(files: Files, path: str) -> bytes:
    async with files.pinned(path) as file:
        return file.read(10, 0)


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again() -> None:
    async def work() -> None:
        disk = Slow()
        files = Files(disk)
        disk.make_dir("d")
        write(disk, "d/old", b"old")
        write(disk, "d/new", b"new")
        disk.told.clear()
        reading = [asyncio.ensure_future(content(files, "d/old")) for _ in range(2)]
        while not sum(call == "open" for call, _ in disk.calls) >= 4:
            await asyncio.sleep(0)
        disk.rename("d/new", "d/old")
        files.forget("d/old")
        disk.told.set()
        assert await asyncio.gather(*reading) == [b"new", b"new"]
        assert await content(files, "d/old") == b"new"

    asyncio.run(work())


def test_those_who_open_a_file_at_once_share_it() -> None:
    async def work() -> None:
        disk = Slow()
        files = Files(disk)
        disk.make_dir("d")
        write(disk, "d/f", b"text")
        assert await asyncio.gather(*(content(files, "d/f") for _ in range(3))) == [b"text"] * 3
        opened = sum(call == "open" for call, _ in disk.calls)
        assert await content(files, "d/f") == b"text"
        assert sum(call == "open" for call, _ in disk.calls) == opened

    asyncio.run(work())
