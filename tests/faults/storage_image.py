"""A file system of one's own whose power can fail: ext4 in a file, mounted through a loop device.

FS_IOC_SHUTDOWN without a flush of the journal is to a disk what a power loss is: whatever was not synced is gone, data
and names alike. The mount belongs to the sandbox (namespaces of its own), and the loop device to the mount: both end
with the process that made them, however that ends.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from runnel.model.limits import GIB

FS_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32)
NO_LOG_FLUSH = 2
IMAGE_BYTES = 4 * GIB  # a sparse file: 200 losses of three brokers write about 1 GiB
TOOLS = ("mkfs.ext4", "mount", "umount")
UNMOUNT_S = 20.0


def missing() -> str | None:
    """Why there can be no such file system here, or None."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(absent)} not found (Debian: apt-get install e2fsprogs mount)"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices (/dev/loop-control)"
    return None


class Image:
    """An ext4 file system in a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "image"
        self.path = folder / "disk"
        self.path.mkdir()
        with self._file.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._file)], check=True)
        self.mount()

    def mount(self) -> None:
        """Mount it; the journal is replayed, as at the start of a machine."""
        subprocess.run(["mount", "-t", "ext4", "-o", "loop", str(self._file), str(self.path)], check=True)

    def cut(self) -> None:
        """The power fails: from now on every call gets EIO, and what was not synced is gone."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def unmount(self) -> None:
        """Unmount it, as soon as the last process that used it is gone."""
        end = time.monotonic() + UNMOUNT_S
        while True:
            tried = subprocess.run(["umount", str(self.path)], capture_output=True, text=True, check=False)
            if tried.returncode == 0:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"could not unmount {self.path}: {tried.stderr.strip()}")
            time.sleep(0.05)
