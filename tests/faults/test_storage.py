"""Disks that fail, on every change: a few power losses, hurt logs, and every error at every call of the disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults import storage_corruption, storage_errno, storage_power
from tests.faults.sandbox import ROOT


def power(*options: str) -> "subprocess.CompletedProcess[str]":
    """Some power losses, in a process of their own: mounts end with it."""
    if why := storage_power.problem():
        reason = f"NO POWER LOSSES were tried: {why}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    command = [sys.executable, "-m", storage_power.MODULE, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def row(table: str, name: str) -> int:
    found = re.search(rf"^  {name} +(\d+)$", table, re.MULTILINE)
    assert found, table
    return int(found[1])


@pytest.mark.parametrize("brokers", ["1", "3"])  # one keeps its metadata on that disk; three lose it together
def test_nothing_acknowledged_is_lost_when_the_power_fails(brokers: str) -> None:
    done = power("--cycles", "10", "--brokers", brokers, "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert row(done.stdout, "power losses") == 10
    assert row(done.stdout, "acknowledged") > 100


def test_it_would_be_noticed_if_something_was_lost() -> None:
    """What was acknowledged without a sync does not survive: the power loss is one, and the check sees it."""
    done = power("--cycles", "2", "--seed", "1", "--flush-mode", "os")
    assert done.returncode == 1, done.stdout + done.stderr
    assert row(done.stdout, "lost") + row(done.stdout, "inconsistent offsets") > 0


def test_no_bad_byte_is_served_from_a_hurt_log(tmp_path: Path) -> None:
    result = storage_corruption.run(tmp_path, range(50), "1")
    assert result.good, result.table()
    assert result.damage_reported > 20


def test_a_copy_of_a_batch_that_was_moved_is_cut_off_as_a_whole(tmp_path: Path) -> None:
    """One of a thousand cases: 15 bytes of noise, then the very batch that they stand in for."""
    result = storage_corruption.run(tmp_path, [100], "20261118")
    assert result.good, result.table()
    assert result.damage_reported == 1


def test_every_error_at_every_call_of_the_disk_ends_well() -> None:
    matrix = storage_errno.run(later=False)
    assert not matrix.broken, matrix.table()
    assert matrix.sites > 100
    assert min(matrix.outcomes[how] for how in ("went on", "refused", "ended")) > 20
