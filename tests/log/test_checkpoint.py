"""Checkpoints are read in several threads at once when a broker starts."""

import subprocess
import sys
from pathlib import Path

# A fresh process each time: what goes wrong does so at the first use of a type. One in ten crashed, without the rule.
FIRST_USE = """
import sys, threading
sys.setswitchinterval(1e-6)
from runnel.log.checkpoint import Checkpoint, IndexMark, load, save
from runnel.shell.disk import RealDisk

disk = RealDisk(sys.argv[1])
disk.make_dir("p")
save(disk, "p", Checkpoint(1, 2, 0, 0, 0, False, 0, IndexMark(0, 0, 0, False), [(0, 0)]))
at_once, found = threading.Barrier(8), []

def read():
    at_once.wait()
    found.append(load(disk, "p"))

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
disk.close()
assert [checkpoint.recovery_offset for checkpoint in found] == [2] * 8
"""
PROCESSES = 15


def test_threads_that_read_the_first_checkpoints_at_once_get_them(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", FIRST_USE, str(tmp_path)]
    ended = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(PROCESSES)]
    assert [(done.returncode, done.stderr) for done in ended] == [(0, "")] * PROCESSES
