"""Where a lake lies, and its files: a folder, or a URL of an object store.

Rule 1: files are named by their path below the lake; nobody outside of this module joins paths.
Rule 2: a file in a folder is on the disk when `finish` returns: a commit that names it may follow.
Rule 3: access to an object store is the one that `deltalake` has: one set of credentials for log and files.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runnel.pipelines.errors import BadOption

SCHEME = "://"
LOCAL = "file://"


@dataclass(frozen=True)
class Place:
    """A lake's address."""

    path: str
    storage: Mapping[str, str] = field(default_factory=dict)  # as deltalake's storage_options

    @classmethod
    def of(cls, path: str, storage: Mapping[str, str] | None = None) -> "Place":
        if not path.strip():
            raise BadOption("path", path, "name the lake's folder or URL")
        local = path.removeprefix(LOCAL) if path.startswith(LOCAL) or SCHEME not in path else None
        return cls(path.rstrip("/") if local is None else str(Path(local).absolute()), dict(storage or {}))

    @property
    def local(self) -> bool:
        return SCHEME not in self.path

    def exists(self) -> bool:
        """Whether there is a table."""
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(self.path, dict(self.storage) or None))

    @cached_property
    def _files(self) -> Any:
        from pyarrow import fs

        if self.local:
            return fs.SubTreeFileSystem(self.path, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.path, dict(self.storage) or None))

    def create(self, name: str) -> Any:
        """A stream into a new file."""
        if self.local:
            self._files.create_dir(name.rpartition("/")[0], recursive=True)
        return self._files.open_output_stream(name)

    def finish(self, name: str) -> int:
        """Make a closed file last; its size."""
        if self.local:
            for each in (name, name.rpartition("/")[0]):
                _sync(Path(self.path, each))
        return int(self._files.get_file_info(name).size)

    def text(self, name: str) -> str:
        """What is in a small file."""
        with self._files.open_input_stream(name) as file:
            return bytes(file.read()).decode()

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already are no matter."""
        for name in names:
            try:
                self._files.delete_file(name)
            except FileNotFoundError:
                continue

    def names(self, folder: str) -> Iterator[str]:
        """The files of a folder, by name; none if there is no such folder."""
        from pyarrow import fs

        for info in self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            if info.type == fs.FileType.File:
                yield info.base_name

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Which of these files are not there."""
        from pyarrow import fs

        wanted = list(names)
        found = self._files.get_file_info(wanted) if wanted else []
        return [name for name, info in zip(wanted, found, strict=True) if info.type != fs.FileType.File]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
