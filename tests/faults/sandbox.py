"""A place where faults hurt nobody else: namespaces of its own for network, mounts and processes.

Everything that is made inside (hosts, links, packet filters, small file systems, processes) ends with the process that
entered, however that ends. Nothing of the machine outside is changed, and no packet can leave.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools import debian

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "RUNNEL_FAULTS_SANDBOX"
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2", "nft": "nftables"}


def missing() -> str | None:
    """Why there can be no sandbox here, or None."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        packages = " ".join(sorted({TOOLS[tool] for tool in absent}))
        return f"{', '.join(absent)} not found: install them (Debian: apt-get install {packages})"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"namespaces are not permitted here: {tried.stderr.strip()}" if tried.returncode else None


def inside() -> bool:
    return INSIDE in os.environ


def enter(module: str, arguments: Sequence[str]) -> NoReturn:
    """Go on as `python -m module` inside; this process becomes the one that waits for it."""
    os.chdir(ROOT)
    os.environ[INSIDE] = "1"
    os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, "-m", module, *arguments])


def install() -> str | None:
    """Have the tools, where that is possible; returns what is missing after that."""
    problems = [problem for tool, package in TOOLS.items() if (problem := debian.lack(tool, package))]
    return "; ".join(problems) or missing()


if __name__ == "__main__":
    if problem := install():
        print(f"runnel: no sandbox for faults: {problem}", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 0)
