"""The real disk: files below one data directory.

Rule 1: links are never followed; every component of a path is opened by name below its parent.
Rule 2: a folder is private (0700), and so is a file (0600). A data directory that everybody may write to is refused.
Rule 3: a write is whole or raises; a short write is continued, because a file-size limit or a full disk gives one
        before it gives an error.
Rule 4: nothing is mapped: a mapped file dies of SIGBUS where a written one gets ENOSPC.
Rule 5: one broker a directory; the lock dies with its process.
"""

import asyncio
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from runnel.model.errors import DataInUse, DataUnusable
from runnel.model.limits import MIB
from runnel.model.seams import LOCK_NAME, Buffer

T = TypeVar("T")

THREADS_MAX = 8  # enough for several partitions to sync at once; the kernel merges their journal commits
WRITEV_BUFFERS_MAX = 1024  # IOV_MAX of Linux
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # Linux 4.14; without it every read goes off the loop


class RealFile:
    """An open file of the operating system."""

    __slots__ = ("_fd", "_scratch", "path")

    def __init__(self, path: str, fd: int, scratch: memoryview) -> None:
        self.path = path
        self._fd = fd
        self._scratch = scratch

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) > WRITEV_BUFFERS_MAX:
            for first in range(0, len(buffers), WRITEV_BUFFERS_MAX):
                part = buffers[first : first + WRITEV_BUFFERS_MAX]
                self.write(part, position)
                position += sum(map(len, part))
            return
        written = os.pwritev(self._fd, buffers, position)
        if written != sum(map(len, buffers)):
            self._continue(buffers, position, written)

    def _continue(self, buffers: Sequence[Buffer], position: int, written: int) -> None:
        """The rest after a short write; the next call gives the reason if there is one."""
        rest = memoryview(b"".join(buffers))
        while written < len(rest):
            step = os.pwrite(self._fd, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "the file system took no bytes", self.path)
            written += step

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, size: int, position: int) -> bytes | memoryview | None:
        large = size > len(self._scratch)
        scratch = memoryview(bytearray(size)) if large else self._scratch[:size]
        try:
            got = os.preadv(self._fd, [scratch], position, NOWAIT) if NOWAIT else -1
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        if got == size or (got >= 0 and position + got >= self.size()):
            return scratch[:got] if large else bytes(scratch[:got])
        return None

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The file system below one data directory, and the threads that wait for it."""

    def __init__(self, root: str, *, threads_max: int = THREADS_MAX) -> None:
        self._root_name = root
        self._root, self._lock = _taken(root)
        self._scratch = memoryview(bytearray(MIB))  # `read_cached` is called on the loop alone, so one is enough
        self._threads = ThreadPoolExecutor(threads_max, "runnel-disk")

    def open(self, path: str, *, create: bool = False) -> RealFile:
        parent, name = self._parent(path)
        try:
            fd = os.open(name, FILE_FLAGS | (os.O_CREAT if create else 0), 0o600, dir_fd=parent)
        finally:
            os.close(parent)
        return RealFile(path, fd, self._scratch)

    def exists(self, path: str) -> bool:
        try:
            parent, name = self._parent(path)
        except FileNotFoundError:
            return False
        try:
            os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.close(parent)
        return True

    def list(self, path: str) -> list[str]:
        folder = self._folder(_components(path) if path else [])
        try:
            return sorted(os.listdir(folder))
        finally:
            os.close(folder)

    def make_dir(self, path: str) -> None:
        parts = _components(path)
        for depth, name in enumerate(parts):
            parent = self._folder(parts[:depth])
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
                os.fsync(parent)
            except FileExistsError:
                pass
            finally:
                os.close(parent)
        os.close(self._folder(parts))  # a file or a link of that name is an error

    def make_dirs(self, path: str, names: Sequence[str]) -> None:
        parent = self._folder(_components(path))
        try:
            for name in names:
                (plain,) = _components(name)
                with suppress(FileExistsError):
                    os.mkdir(plain, 0o700, dir_fd=parent)
        finally:
            os.close(parent)

    def rename(self, old: str, new: str) -> None:
        old_parent, old_name = self._parent(old)
        try:
            new_parent, new_name = self._parent(new)
            try:
                os.rename(old_name, new_name, src_dir_fd=old_parent, dst_dir_fd=new_parent)
            finally:
                os.close(new_parent)
        finally:
            os.close(old_parent)

    def remove(self, path: str) -> None:
        parent, name = self._parent(path)
        try:
            _remove(parent, name)
        finally:
            os.close(parent)

    def sync_dir(self, path: str) -> None:
        folder = self._folder(_components(path) if path else [])
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def free_bytes(self) -> int:
        room = os.fstatvfs(self._root)
        return room.f_bavail * room.f_frsize

    def total_bytes(self) -> int:
        room = os.fstatvfs(self._root)
        return room.f_blocks * room.f_frsize

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, work))

    def close(self) -> None:
        """Wait for the work under way, and let the directory go."""
        self._threads.shutdown()
        for fd in (self._lock, self._root):
            if fd >= 0:
                os.close(fd)
        self._lock = self._root = -1

    def _parent(self, path: str) -> tuple[int, str]:
        parts = _components(path)
        return self._folder(parts[:-1]), parts[-1]

    def _folder(self, parts: Sequence[str]) -> int:
        fd = os.dup(self._root)
        for name in parts:
            try:
                inner = os.open(name, FOLDER_FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd


def _components(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(errno.EINVAL, "a path below the data directory has plain names only", path)
    return parts


def _remove(parent: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    folder = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    try:
        for inner in os.listdir(folder):
            _remove(folder, inner)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _taken(root: str) -> tuple[int, int]:
    """The data directory, made if need be, and its lock."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        folder = os.open(root, FOLDER_FLAGS & ~os.O_NOFOLLOW)  # the operator may link the root itself
        try:
            _must_be_ours(folder, root)
            return folder, _locked(folder, root)
        except BaseException:
            os.close(folder)
            raise
    except OSError as error:
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is no folder" if no_folder else (error.strerror or str(error)).lower()
        raise DataUnusable(
            f"the data directory {root} can't be used: {why}; give the user who runs the broker a folder to write to, "
            "or name another with --data DIR"
        ) from None


def _must_be_ours(folder: int, root: str) -> None:
    """Refuse a folder that everybody may write to: any user could put files of their own in place of the broker's."""
    if os.fstat(folder).st_mode & stat.S_IWOTH:
        raise DataUnusable(
            f"the data directory {root} can't be used: every user of this machine may write to it; take that away with"
            f" chmod o-w {root}, or name another with --data DIR"
        )


def _locked(root: int, root_name: str) -> int:
    """The lock file, held; it names its holder so that the loser can say who it was."""
    fd = os.open(LOCK_NAME, FILE_FLAGS | os.O_CREAT, 0o600, dir_fd=root)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise DataInUse(
            f"the data directory {root_name} is in use by process {holder}: stop that broker first, "
            "or give this one a directory of its own"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd
