"""A disk in memory that crashes like a real one.

Rule 1: what was not synced may be lost, in part, in any order, at the granularity of a sector (512 bytes).
Rule 2: what was made, renamed or removed in a folder that was not synced since may be undone, the last first.
Rule 3: the same seed and the same calls give the same disk.

    crash()   the power fails: rules 1 and 2
    kill()    the process dies: the page cache survives, nothing is lost
    inject()  the n-th call of some kind fails with an errno, or the power fails at it, or the process is killed there
    decay()   a bit of a file is read wrong from now on

After a crash or a kill the disk is another object; the old one, and every file opened on it, is dead: whatever a
process of before still tries to do raises PowerCut, and does nothing.
"""

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from runnel.model.seams import Buffer, Rng

T = TypeVar("T")

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The power failed, or the process ended, in the middle of work. Not an Exception: nothing may catch it."""


@dataclass(slots=True)
class Fault:
    """What goes wrong, and when: at the `nth` matching call from now, and at `times` of them."""

    call: str  # the name of a method of Disk or File; "" for any
    errno: int = errno.EIO
    path: str = ""  # a part of the path; "" for any
    nth: int = 1
    times: int = 1
    short_bytes: int | None = None  # write: so many bytes reach the file before it fails
    loses: bool = False  # sync: what it was to make durable never gets to the disk, though memory still has it
    power_cut: bool = False
    killed: bool = False

    def strikes(self, call: str, path: str) -> bool:
        if self.times <= 0 or self.call not in ("", call) or self.path not in path:
            return False
        self.nth -= 1
        if self.nth > 0:
            return False
        self.times -= 1
        return True


class _Write(NamedTuple):
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def covered(self) -> range:
        return range(self.position, self.position + len(self.data))


class _Cut(NamedTuple):
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))

    def covered(self) -> range:
        return range(self.size, sys.maxsize)


class _Inode:
    """The bytes of one file: as they are now, as they were synced, and what happened between."""

    __slots__ = ("_decayed", "_since", "_synced", "now")

    def __init__(self) -> None:
        self.now = bytearray()
        self._synced = bytearray()
        self._since: list[_Write | _Cut] = []
        self._decayed: dict[int, int] = {}  # position -> bits that are read wrong

    def change(self, change: _Write | _Cut) -> None:
        change.apply(self.now)
        self._since.append(change)
        if self._decayed:
            gone = change.covered()
            self._decayed = {at: mask for at, mask in self._decayed.items() if at not in gone}

    def read(self, size: int, position: int) -> bytes:
        data = bytearray(self.now[position : position + size])
        for at, mask in self._decayed.items():
            if position <= at < position + len(data):
                data[at - position] ^= mask
        return bytes(data)

    def decay(self, pick: Callable[[int], int]) -> bool:
        """Let one bit of what is synced, and stands, be read wrong from now on."""
        size = min(len(self._synced), len(self.now))
        if size:
            self._decayed[pick(size)] = 1 << pick(8)
        return size > 0

    def sync(self) -> None:
        for change in self._since:
            change.apply(self._synced)
        self._since.clear()

    def drop(self) -> None:
        """What was written and not synced stays in memory, where it counts as synced, and never gets to the disk."""
        self._since = [change for change in self._since if isinstance(change, _Cut)]

    def replace(self, content: Buffer) -> None:
        self.now = bytearray(content)
        self._synced = bytearray(content)
        self._since.clear()

    def tear(self, rng: Rng) -> None:
        """Keep of each sector the synced state or any later one, within one of the sizes the file has had."""
        state = bytearray(self._synced)
        sizes = [len(state)]
        sectors: dict[int, list[bytes]] = {}
        for change in self._since:
            first = min(len(state), change.position if isinstance(change, _Write) else change.size) // SECTOR_BYTES
            last = change.position + len(change.data) if isinstance(change, _Write) else max(len(state), change.size)
            for number in range(first, last // SECTOR_BYTES + 1):
                sectors.setdefault(number, [_sector(state, number)])
            change.apply(state)
            sizes.append(len(state))
            for number in range(first, last // SECTOR_BYTES + 1):
                sectors[number].append(_sector(state, number))
        torn = bytearray(self._synced)
        _Cut(sizes[rng.below(len(sizes))]).apply(torn)
        for number, versions in sorted(sectors.items()):
            start = number * SECTOR_BYTES
            kept = versions[rng.below(len(versions))][: max(0, len(torn) - start)]
            torn[start : start + len(kept)] = kept
        self.replace(torn)


def _sector(state: bytearray, number: int) -> bytes:
    return bytes(state[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])


class _Folder:
    """The names in one folder: as they are now, and every state since the last sync."""

    __slots__ = ("now", "synced", "versions")

    def __init__(self) -> None:
        self.now: dict[str, _Inode | _Folder] = {}
        self.synced: dict[str, _Inode | _Folder] = {}
        self.versions: list[dict[str, _Inode | _Folder]] = []

    def changed(self) -> None:
        self.versions.append(dict(self.now))

    def sync(self) -> None:
        self.synced = dict(self.now)
        self.versions.clear()

    def tear(self, rng: Rng) -> None:
        states = [self.synced, *self.versions]
        self.now = dict(states[rng.below(len(states))])
        self.sync()
        for name in sorted(self.now):
            self.now[name].tear(rng)


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: "SimDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True
        self.path = path

    def size(self) -> int:
        self._called("size")
        return len(self._inode.now)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(buffers)
        try:
            self._called("write")
        except _Short as short:
            self._put(data[: short.size], position)
            raise short.error from None
        self._put(data, position)

    def _put(self, data: bytes, position: int) -> None:
        self._inode.change(_Write(position, data))

    def read(self, size: int, position: int) -> bytes:
        self._called("read")
        return self._inode.read(size, position)

    def read_cached(self, size: int, position: int) -> bytes | None:
        self._called("read_cached")
        if self._disk.is_cold(self.path):
            return None
        return self._inode.read(size, position)

    def truncate(self, size: int) -> None:
        self._called("truncate")
        self._inode.change(_Cut(size))

    def sync(self) -> None:
        try:
            self._called("sync")
        except _Lost as lost:
            self._inode.drop()
            self._disk.forgot = True
            raise lost.error from None
        self._inode.sync()

    def close(self) -> None:
        self._open = False

    def _called(self, call: str) -> None:
        if not self._open:
            raise RuntimeError(f"{self.path} is used after it was closed")
        self._disk.called(call, self.path)


class _Short(Exception):
    def __init__(self, size: int, error: OSError) -> None:
        super().__init__(size, error)
        self.size = size
        self.error = error


class _Lost(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class SimDisk:
    """A file system in memory, of one process at a time."""

    def __init__(self, rng: Rng, *, free_bytes: int = 2**40) -> None:
        self._rng = rng
        self._root = _Folder()
        self._free_bytes = free_bytes
        self._faults: list[Fault] = []
        self._cold: Callable[[str], bool] = lambda path: False
        self.pace_s: Callable[[], float] | None = None  # how long work off the loop takes, on a loop with virtual time
        self.on_end: Callable[[bool], None] | None = None  # called when an injected fault ends the process; by power?
        self.dead = False
        self.forgot = False  # a sync failed, and memory has what the disk never got
        self.calls: list[tuple[str, str]] = []  # every call so far

    # --- what a test does to it

    def crash(self) -> "SimDisk":
        """The power fails; the disk as it is when it comes back."""
        survivor = self.kill()
        survivor._root.tear(self._rng)
        return survivor

    def kill(self) -> "SimDisk":
        """The process dies and the operating system lives; the disk for the next process."""
        self.dead = True
        survivor = SimDisk(self._rng, free_bytes=self._free_bytes)
        survivor._root = self._root
        survivor.pace_s, survivor.on_end = self.pace_s, self.on_end
        return survivor

    def discard(self) -> None:
        """Hold nothing any more: nobody will use this disk, though somebody may still know it."""
        self.dead = True
        self._root = _Folder()
        self._cold = lambda path: False
        self.pace_s = self.on_end = None
        self.calls.clear()

    def inject(self, fault: Fault) -> None:
        self._faults.append(fault)

    def inherit(self, before: "SimDisk") -> None:
        """What was wrong with the disk before a restart is wrong after it."""
        self._faults = [fault for fault in before._faults if fault.times > 0]

    def heal(self) -> None:
        """Nothing fails any more."""
        self._faults.clear()

    def chill(self, cold: Callable[[str], bool]) -> None:
        """Say of which files the page cache has nothing."""
        self._cold = cold

    def content(self, path: str) -> bytes:
        return bytes(self._inode(path).now)

    def damage(self, path: str, content: bytes) -> None:
        """Let a file hold something else, durably."""
        self._inode(path).replace(content)

    def rot(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Flip bits of one byte, durably."""
        content = bytearray(self._inode(path).now)
        content[position] ^= mask
        self._inode(path).replace(content)

    def decay(self, path: str) -> bool:
        """Let one bit that was synced be read wrong, until it is written anew; `content` still knows it."""
        return self._inode(path).decay(self._rng.below)

    def files(self, folder: str) -> list[str]:
        """What lies in a folder, for those who look behind; nothing if it is not there."""
        try:
            return [f"{folder}/{name}" for name in sorted(self._folder(folder).now)]
        except OSError:
            return []

    # --- the protocol

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.called("open", path)
        folder, name = self._parent(path)
        found = folder.now.get(name)
        if found is None:
            if not create:
                raise _error(errno.ENOENT, path)
            found = folder.now[name] = _Inode()
            folder.changed()
        if isinstance(found, _Folder):
            raise _error(errno.EISDIR, path)
        return SimFile(self, path, found)

    def exists(self, path: str) -> bool:
        self.called("exists", path)
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in folder.now

    def list(self, path: str) -> list[str]:
        self.called("list", path)
        return sorted(self._folder(path).now)

    def make_dir(self, path: str) -> None:
        self.called("make_dir", path)
        folder = self._root
        for name in path.split("/"):
            inner = folder.now.get(name)
            if inner is None:
                inner = folder.now[name] = _Folder()
                folder.sync()
            if not isinstance(inner, _Folder):
                raise _error(errno.ENOTDIR, path)
            folder = inner

    def make_dirs(self, path: str, names: Sequence[str]) -> None:
        self.called("make_dirs", path)
        folder = self._folder(path)
        for name in names:
            folder.now.setdefault(name, _Folder())

    def rename(self, old: str, new: str) -> None:
        self.called("rename", old)
        old_folder, old_name = self._parent(old)
        new_folder, new_name = self._parent(new)
        if old_name not in old_folder.now:
            raise _error(errno.ENOENT, old)
        new_folder.now[new_name] = old_folder.now.pop(old_name)
        new_folder.changed()
        if old_folder is not new_folder:
            old_folder.changed()

    def remove(self, path: str) -> None:
        self.called("remove", path)
        folder, name = self._parent(path)
        if name not in folder.now:
            raise _error(errno.ENOENT, path)
        del folder.now[name]
        folder.changed()

    def sync_dir(self, path: str) -> None:
        self.called("sync_dir", path)
        self._folder(path).sync()

    def free_bytes(self) -> int:
        self.called("free_bytes", "")
        return self._free_bytes

    def total_bytes(self) -> int:
        self.called("total_bytes", "")
        return self._free_bytes

    async def offload(self, work: Callable[[], T]) -> T:
        """The loop turns before the work and after it, as often as chance wants: others get in between."""
        if self.pace_s is not None:
            return await self._offload_paced(work, self.pace_s)
        for _ in range(1 + self._rng.below(3)):
            await asyncio.sleep(0)
        if self.dead:
            raise PowerCut("work of a process that is dead")
        result = work()
        for _ in range(self._rng.below(2)):
            await asyncio.sleep(0)
        return result

    async def _offload_paced(self, work: Callable[[], T], pace_s: Callable[[], float]) -> T:
        """The work takes virtual time, and is done even if the caller does not wait for it any more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            try:
                outcome = partial(done.set_result, work())
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the caller's)
                outcome = partial(done.set_exception, error)
            loop.call_later(pace_s(), lambda: done.done() or outcome())

        loop.call_later(pace_s(), do)
        return await done

    # --- inside

    def called(self, call: str, path: str) -> None:
        if self.dead:
            raise PowerCut(f"{call} {path} by a process that is dead")
        self.calls.append((call, path))
        for fault in self._faults:
            if fault.strikes(call, path):
                if fault.power_cut or fault.killed:
                    self.dead = True
                    if self.on_end is not None:
                        self.on_end(fault.power_cut)
                    raise PowerCut(f"at {call} {path}")
                error = _error(fault.errno, path)
                if fault.short_bytes is not None and call == "write":
                    raise _Short(fault.short_bytes, error)
                if fault.loses and call == "sync":
                    raise _Lost(error)
                raise error

    def is_cold(self, path: str) -> bool:
        return self._cold(path)

    def _folder(self, path: str) -> _Folder:
        folder = self._root
        for name in path.split("/") if path else []:
            inner = folder.now.get(name)
            if not isinstance(inner, _Folder):
                raise _error(errno.ENOENT if inner is None else errno.ENOTDIR, path)
            folder = inner
        return folder

    def _parent(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        return self._folder(parent), name

    def _inode(self, path: str) -> _Inode:
        folder, name = self._parent(path)
        found = folder.now.get(name)
        if not isinstance(found, _Inode):
            raise _error(errno.ENOENT, path)
        return found


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
