"""The real disk."""

import asyncio
import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnel.model.errors import DataInUse, DataUnusable
from runnel.shell.disk import RealDisk, RealFile


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(str(tmp_path / "data"))
    yield disk
    disk.close()


def test_what_is_written_is_read_and_private(disk: RealDisk, tmp_path: Path) -> None:
    disk.make_dir("partitions/p-0")
    file = disk.open("partitions/p-0/a", create=True)
    file.write([b"abc", bytearray(b"def"), memoryview(b"ghi")], 2)
    assert file.read(100, 0) == b"\0\0abcdefghi"
    assert file.read(3, 4) == b"cde"
    assert file.size() == 11
    file.truncate(5)
    file.sync()
    assert file.read(100, 0) == b"\0\0abc"
    file.close()
    mode = stat.S_IMODE((tmp_path / "data" / "partitions" / "p-0" / "a").stat().st_mode)
    assert mode == 0o600
    assert stat.S_IMODE((tmp_path / "data" / "partitions").stat().st_mode) == 0o700


def test_many_folders_are_made_at_once_those_that_are_missing(disk: RealDisk, tmp_path: Path) -> None:
    disk.make_dir("partitions")
    disk.make_dirs("partitions", ["p-0", "p-1"])
    disk.open("partitions/p-1/a", create=True).close()
    disk.make_dirs("partitions", ["p-1", "p-2"])
    assert disk.list("partitions") == ["p-0", "p-1", "p-2"]
    assert disk.list("partitions/p-1") == ["a"]
    assert stat.S_IMODE((tmp_path / "data" / "partitions" / "p-2").stat().st_mode) == 0o700
    for name in ("..", "", "p-3/q"):
        with pytest.raises((OSError, ValueError)):
            disk.make_dirs("partitions", [name])


def test_read_cached_gives_what_the_page_cache_has(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    file.write([b"x" * 3_000_000], 0)
    assert file.read_cached(1000, 10) == b"x" * 1000
    assert file.read_cached(2_500_000, 10) == b"x" * 2_500_000
    assert file.read_cached(1000, 2_999_990) == b"x" * 10
    assert file.read_cached(1000, 5_000_000) == b""
    file.close()


def test_read_cached_says_no_rather_than_wait(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    file.write([b"x" * 10_000], 0)
    for number in (errno.EAGAIN, errno.EOPNOTSUPP):

        def refuse(*args: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "preadv", refuse)
        assert file.read_cached(1000, 0) is None
    monkeypatch.setattr(os, "preadv", lambda *args: 4096)
    assert file.read_cached(8000, 0) is None, "half of it is cached"
    file.close()


def test_many_buffers_are_written_in_order(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    file.write([bytes([number % 256]) * 3 for number in range(3000)], 0)
    assert file.read(10_000, 0) == b"".join(bytes([number % 256]) * 3 for number in range(3000))
    file.close()


def test_a_short_write_is_continued(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    real, whole = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, b"".join(buffers)[:7], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:5], at))
    file.write([b"abcdef", b"ghijkl", b"mnopqr"], 0)
    assert file.read(100, 0) == b"abcdefghijklmnopqr"
    assert whole is not os.pwritev
    file.close()


def test_a_file_size_limit_gives_a_short_write_then_an_error(tmp_path: Path) -> None:
    """Seen on Linux: 10,000 of 20,000 bytes are written, then EFBIG."""
    code = """
import resource, signal, sys
from runnel.shell.disk import RealDisk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
disk = RealDisk(sys.argv[1])
file = disk.open("a", create=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    file.write([b"x" * 20_000], 0)
except OSError as error:
    print(error.errno, file.size())
"""
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), "10000"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", ".", "a/.", "", "a\0b"])
def test_no_path_leads_out(disk: RealDisk, path: str) -> None:
    with pytest.raises(OSError):
        disk.open(path, create=True)
    with pytest.raises(OSError):
        disk.remove(path)


def test_links_are_not_followed(disk: RealDisk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (tmp_path / "data" / "link").symlink_to(outside)
    (tmp_path / "data" / "file").symlink_to(outside / "secret")
    with pytest.raises(OSError):
        disk.open("link/secret")
    with pytest.raises(OSError):
        disk.open("file")
    with pytest.raises(OSError):
        disk.list("link")
    disk.remove("link")
    assert (outside / "secret").exists()


def test_rename_remove_list_and_exists(disk: RealDisk) -> None:
    disk.make_dir("d/e")
    disk.make_dir("d/e")
    for name in ("b", "a"):
        disk.open(f"d/{name}", create=True).close()
    assert disk.list("d") == ["a", "b", "e"]
    disk.rename("d/a", "d/b")
    disk.sync_dir("d")
    assert disk.list("d") == ["b", "e"]
    assert disk.exists("d/b")
    assert not disk.exists("d/a")
    assert not disk.exists("x/y")
    disk.remove("d")
    assert not disk.exists("d")
    with pytest.raises(FileNotFoundError):
        disk.open("d/b")
    assert 0 < disk.free_bytes() <= disk.total_bytes()


def test_two_brokers_never_share_a_directory(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    with pytest.raises(DataInUse, match=f"process {os.getpid()}"):
        RealDisk(str(tmp_path))
    disk.close()
    RealDisk(str(tmp_path)).close()


def test_offload_runs_elsewhere_and_is_not_stopped_by_its_caller(disk: RealDisk) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go_on.wait(10)
        done.set()
        return threading.get_ident()

    async def main() -> None:
        assert await disk.offload(threading.get_ident) != threading.get_ident()
        task = asyncio.create_task(disk.offload(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        while not done.is_set():
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_closed_file_can_be_closed_again(disk: RealDisk) -> None:
    file: RealFile = disk.open("a", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.size()


def test_a_data_directory_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(DataUnusable, match=f"every user of this machine may write to it.* chmod o-w {folder}"):
        RealDisk(str(folder))
    assert list(folder.iterdir()) == []
    folder.chmod(0o775)  # as orchestrators mount volumes, for a group of its own
    RealDisk(str(folder)).close()
