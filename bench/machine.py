"""What the machine says of a process and of itself."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def kept_to_one_core() -> Iterator[None]:
    """Run on the last core alone: clients that answers wake up there do not push the server off its own."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time of a process and all its threads, in seconds. The total is exact; its parts tick every 10 ms."""

    user_s: float
    system_s: float
    total_s: float

    def __sub__(self, earlier: "Cpu") -> "Cpu":
        return Cpu(self.user_s - earlier.user_s, self.system_s - earlier.system_s, self.total_s - earlier.total_s)

    def __add__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.user_s + other.user_s, self.system_s + other.system_s, self.total_s + other.total_s)


def cpu_of(*pids: int) -> Cpu:
    """What these processes have used together."""
    return sum(map(_cpu_of_one, pids), Cpu(0.0, 0.0, 0.0))


def _cpu_of_one(pid: int) -> Cpu:
    process = Path(f"/proc/{pid}")
    user_s, system_s = parse_stat((process / "stat").read_text())
    on_cpu_ns = [int(file.read_text().split()[0]) for file in process.glob("task/*/schedstat")]
    return Cpu(user_s, system_s, sum(on_cpu_ns) / 1e9)


def cpu_of_tree() -> float:
    """What this process and all that descend from it have used, in seconds: those that ended too, if they were waited
    for."""
    parents, used = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        parents[int(process.name)], used[int(process.name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    return sum(seconds for pid, seconds in used.items() if _descends(pid, os.getpid(), parents))


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid not in (ancestor, 0):
        pid = parents.get(pid, 0)
    return pid == ancestor


def parse_stat(text: str) -> tuple[float, float]:
    """User and system time: fields 14 and 15 of proc(5); the name in field 2 may hold blanks and brackets."""
    fields = text.rsplit(")", 1)[1].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def describe() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
