"""Wall clocks that jump while a process runs: a small library that is loaded before libc (`wall_clock.c`)."""

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("wall_clock.c")


def missing() -> str | None:
    """Why clocks can't jump here, or None."""
    return (
        None if shutil.which("cc") else "cc was not found: install a C compiler (Debian: apt-get install gcc libc6-dev)"
    )


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "wall_clock.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class WallClock:
    """The clock of one process."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library, self._file = library, file
        self.set(0.0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "FAULTS_CLOCK": str(self._file)}

    def set(self, seconds: float) -> None:
        """Let it be so far from the right time, from now on."""
        shift = struct.pack("=q", int(seconds * 1e9))
        if not self._file.exists():
            self._file.write_bytes(shift)
        with self._file.open("r+b") as file:
            file.write(shift)
