"""Classes as a JVM lays them out in memory, kept in a file: a program that has it starts in half the time.

Without it all works the same: a JVM leaves out a file that does not fit its jars.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "classes"
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]  # a short life needs one compiler, and no threads for garbage
QUIET = ["-Xlog:disable", "-Xlog:all=error:stderr"]  # what a JVM says of an archive would be among the program's words


class ClassArchive:
    """The file for a program: for one Java, and whatever else `fits` names."""

    def __init__(self, name: str, java: str | None, *fits: object) -> None:
        self.name = name
        self._java = java if java is None else shutil.which(java)
        version = "" if self._java is None else _said_by(self._java, "-version")
        digest = hashlib.sha256(repr((version, fits)).encode()).hexdigest()
        self._path = FOLDER / f"{name}-{digest[:16]}.jsa"

    @property
    def options(self) -> list[str]:
        """For each JVM that runs the program."""
        return [*QUICK, *QUIET, f"-XX:SharedArchiveFile={self._path}"] if self._path.exists() else QUICK

    @property
    def is_missing(self) -> bool:
        """Whether it could be made, and was not."""
        return self._java is not None and not self._path.exists()

    @contextmanager
    def making(self) -> Iterator[list[str]]:
        """Run the program in this block with these options, and wait for its end: what it used is in the archive."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".new")
        yield [*QUICK, *QUIET, f"-XX:ArchiveClassesAtExit={unfinished}"]
        unfinished.replace(self._path)


def _said_by(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
