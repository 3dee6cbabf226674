"""The five seams between Runnel and its machine.

Time, disk and randomness are the protocols below; coordination is `cluster.store`; the network is the running event
loop (`create_server`, `create_connection`), used by `net` alone. Nothing else of Runnel reads a clock, opens a file,
draws a random number, or starts a thread: so the same code runs under a seeded simulation.

The real bodies live in `shell`, the simulated ones in `testing`.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from runnel.model.ids import Millis

Buffer: TypeAlias = bytes | bytearray | memoryview
LOCK_NAME: Final = "lock"  # in a data directory: the broker that uses it holds this file, and writes its pid into it
T = TypeVar("T")


class Clock(Protocol):
    """Two clocks: one that never goes back, for deadlines; one that people read, for timestamps."""

    def monotonic_ms(self) -> Millis: ...

    def wall_ms(self) -> Millis: ...


class Rng(Protocol):
    """The only source of chance."""

    def below(self, bound: int) -> int:
        """A whole number in [0, bound)."""
        ...

    def token(self, size: int) -> bytes:
        """Random bytes, e.g. for ids; unguessable in the real body."""
        ...


class File(Protocol):
    """An open file. Positions are always explicit; nothing is mapped, nothing relies on O_APPEND."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one after the other from `position`, or raise OSError. Short writes are continued."""
        ...

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes, fewer only at the end of the file. May block: call it off the loop, or on small files."""
        ...

    def read_cached(self, size: int, position: int) -> bytes | memoryview | None:
        """Like `read` if the page cache has it all, else None; never blocks."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """fdatasync: return once every byte written so far survives a power loss. Blocks: call it off the loop."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The file system below one data directory. Paths are relative to it and use "/". All but `offload` may block."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing, mode 0600, links not followed; `create` makes it if it is not there."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a folder (0700) and its missing parents; syncs each parent that changed."""
        ...

    def make_dirs(self, path: str, names: Sequence[str]) -> None:
        """Make folders (0700) in a folder, those that are not there; durable only after `sync_dir` of it."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable only after `sync_dir` of the parent."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        ...

    def free_bytes(self) -> int:
        """Room left on the file system."""
        ...

    def total_bytes(self) -> int:
        """Size of the file system."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run blocking work (reads, syncs, recovery, compaction) off the loop and return its result.

        Cancelling the caller does not stop the work; it ends on its own.
        """
        ...
