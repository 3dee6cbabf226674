"""The open files of all logs on one disk: a bounded number of descriptors, the least used closed first.

Rule 1: only the loop touches this; work off the loop gets a file that is pinned until it ends.
Rule 2: a file that is forgotten (removed, replaced) stays open for those who are still reading it.
Rule 3: what was opened before its path was forgotten is never kept for those who come after.
Rule 4: only who writes a log makes its files. Who reads may come late, when the folder is being removed or is another
        log's.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from runnel.model.seams import Disk, File

FILES_MAX = 512  # well below the usual 1,024 descriptors of a process, which connections need too


class _Open:
    __slots__ = ("file", "forgotten", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.forgotten = False


def _unpin(found: _Open) -> None:
    found.users -= 1
    if found.forgotten and not found.users:
        found.file.close()


class Files:
    """Open files by path."""

    def __init__(self, disk: Disk, *, files_max: int = FILES_MAX) -> None:
        self._disk = disk
        self._files_max = files_max
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._opening: dict[str, object] = {}  # paths that are being opened, until they are forgotten

    @property
    def crowded(self) -> bool:
        """Whether keeping one more open may soon cost another its place."""
        return len(self._open) * 4 > self._files_max * 3

    def get(self, path: str) -> File | None:
        """The file if it is open; use it before the next await."""
        found = self._open.get(path)
        if found is None:
            return None
        self._open.move_to_end(path)
        return found.file

    def put(self, path: str, file: File) -> None:
        """Keep a file that was just opened."""
        self.forget(path)
        self._open[path] = _Open(file)
        self._close_idle()

    @asynccontextmanager
    async def pinned(self, path: str) -> AsyncIterator[File]:
        """The file, open until the end of the block, opened off the loop if need be; never made: see rule 4."""
        while (found := self._open.get(path)) is None:
            await self._try_open(path)
        found.users += 1
        self._open.move_to_end(path)
        self._close_idle()
        try:
            yield found.file
        finally:
            _unpin(found)

    async def _try_open(self, path: str) -> None:
        opening = self._opening.setdefault(path, object())
        try:
            file = await self._disk.offload(lambda: self._disk.open(path))
        finally:
            stands = self._opening.get(path) is opening
            if stands:
                del self._opening[path]
        if stands:
            self._open[path] = _Open(file)
        else:
            file.close()  # somebody else was faster, or it is another file by now (rule 3)

    def hold(self, path: str) -> Callable[[], None]:
        """Keep an open file open until what is returned is called: its sync must not miss an error of its writes."""
        found = self._open[path]
        found.users += 1
        return lambda: _unpin(found)

    def forget(self, path: str) -> None:
        """The path is gone, or names another file from now on."""
        self._opening.pop(path, None)
        found = self._open.pop(path, None)
        if found is not None:
            found.forgotten = True
            if not found.users:
                found.file.close()

    def _close_idle(self) -> None:
        if len(self._open) > self._files_max:
            for path, found in self._open.items():
                if not found.users:
                    self.forget(path)
                    return
