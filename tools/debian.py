"""Programs that Debian has: found on the PATH, or installed by name where this process may do so."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SBIN = "/usr/sbin"  # where Debian puts servers; often not on the PATH of a user
APT = ["apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=300"]  # somebody else may be installing something
LOCKED = "/var/lib/dpkg"


def find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=SBIN)


def lack(program: str, package: str) -> str | None:
    """Why the program can't be had, or None once it is there."""
    if find(program):
        return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"{program} was not found: install it (Debian: apt-get install {package})"
    with _alone():
        if find(program):
            return None  # another of us came first
        print(f"runnel: installing Debian's {package}", file=sys.stderr, flush=True)
        problem = _install(package)
    return None if find(program) else f"{program} was not found, and apt-get install {package} failed: {problem}"


@contextmanager
def _alone() -> Iterator[None]:
    """Steps of a set-up run side by side, and of apt's own locks one fails instead of waiting: that of its lists."""
    folder = os.open(LOCKED, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _install(package: str) -> str | None:
    """What apt complained of, or None. Its lists are fetched when they do not do: they are old, or not there."""
    install = ("install", "--no-install-recommends", package)
    return _apt(*install) and (_apt("update") or _apt(*install))


def _apt(*words: str) -> str | None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run([*APT, *words], capture_output=True, text=True, env=environment, check=False)
    return done.stderr.strip()[-400:] if done.returncode else None
