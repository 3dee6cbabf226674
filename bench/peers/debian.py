"""Programs that Debian has: found on the PATH, or installed by name where this process may do so."""

import os
import shutil
import subprocess
import sys

SBIN = "/usr/sbin"  # where Debian puts servers; often not on the PATH of a user


def find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=SBIN)


def lack(program: str, package: str) -> str | None:
    """Why the program can't be had, or None once it is there."""
    if find(program):
        return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"{program} is not installed (Debian: apt-get install {package})"
    print(f"bench: installing Debian's {package}", file=sys.stderr)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0 or not find(program):
        return f"apt-get install {package} failed: {done.stderr.strip()[-200:]}"
    return None
