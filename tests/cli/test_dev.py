"""`runnel dev`, with real processes."""

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.calls import COMMAND
from tests.conftest import need_zookeeper

from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 90.0


class Dev:
    """The command while it runs, and what it has printed."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.printed = ""

    def until(self, pattern: str) -> "re.Match[str]":
        """Read on until it has printed this."""
        output = self.process.stdout
        assert output is not None
        while not (found := re.search(pattern, self.printed)):
            assert select.select([output], [], [], LIMIT_S)[0], self.printed
            piece = os.read(output.fileno(), 4096)
            assert piece, f"ended before it printed {pattern!r}: {self.printed}"
            self.printed += piece.decode()
        return found

    def end(self) -> int:
        """Its exit code, and all that it had to say."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        self.printed += out.decode()
        return self.process.returncode

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"starts.* \(pid (\d+)\)", self.printed)]


@contextmanager
def dev(folder: Path, *options: str) -> Iterator[Dev]:
    command = [*COMMAND, "dev", "--data", str(folder / "dev"), *options]
    environment = {**os.environ, "RUNNEL_SESSION_MS": "2000"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=environment)
    running = Dev(process)
    try:
        yield running
    finally:
        process.terminate()
        running.end()


def eventually_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether it runs; one that ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_cluster_lives_and_ends_together(tmp_path: Path) -> None:
    need_zookeeper()
    with dev(tmp_path, "--brokers", "2", "--port", "0") as running:
        brokers = running.until(r"the cluster is up: use it with -b (\S+)")[1]
        running.until(r"broker \d is the controller")
        assert len(brokers.split(",")) == 2
        assert len(running.pids) == 3
        with dev(tmp_path, "--port", "0") as second:
            assert second.end() == 1
            assert "is used by another 'runnel dev'" in second.printed
        made = subprocess.run(
            [*COMMAND, "topic", "create", "t", "-p", "2", "-r", "1", "-b", brokers], check=True, capture_output=True
        )
        assert made.stdout == b"created topic t with 2 partitions\n"
        running.until("new: topic t")
        os.kill(running.pids[2], signal.SIGKILL)
        running.until(r"broker 2 was ended by SIGKILL; to start it again: .* serve .*--broker-id 2")
        running.until("broker 2 is gone from the cluster")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 0
        assert "everything is stopped" in running.printed
        assert not any(alive(pid) for pid in running.pids)


def test_zookeeper_stays_for_brokers_that_were_started_again(tmp_path: Path) -> None:
    need_zookeeper()
    with dev(tmp_path, "--brokers", "2", "--port", "0") as running:
        address = running.until(r"the cluster is up: use it with -b (\S+)")[1]
        zookeeper, *brokers = running.pids
        for pid in brokers:
            os.kill(pid, signal.SIGKILL)
        commands = [running.until(f"broker {n} was ended.*to start it again: (.*)")[1] for n in (1, 2)]
        running.until("no broker is left: there are 60 s to start one again")
        environment = {**os.environ, "RUNNEL_SESSION_MS": "2000"}
        again = [
            subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
            for command in commands
        ]
        try:
            for broker in again:
                assert broker.stdout is not None
                assert broker.stdout.readline()  # it serves
            done = subprocess.run([*COMMAND, "produce", "t", "-m", "x", "-b", address], check=False)
            assert done.returncode == 0  # where it was
            assert alive(zookeeper)
            running.process.send_signal(signal.SIGINT)
            assert running.end() == 0
            for number, broker in enumerate(again, 1):
                assert (
                    f"broker {number} was started again by somebody else: stop it too (kill {broker.pid})"
                    in running.printed
                )
        finally:
            for broker in again:
                broker.kill()
                broker.communicate()


@contextmanager
def taken_behind_a_free_one() -> Iterator[int]:
    """A port that is free; the next one is not."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1] - 1
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:  # somebody's: look for another pair
                continue
            yield port
            return


def test_if_one_can_not_start_none_stays(tmp_path: Path) -> None:
    need_zookeeper()
    with taken_behind_a_free_one() as port, dev(tmp_path, "--brokers", "2", "--port", str(port)) as running:
        assert running.end() == 1
        assert "broker 2 did not start" in running.printed
        assert "free port" in running.printed
        assert not any(alive(pid) for pid in running.pids)


def test_a_zookeeper_that_is_given_stays(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    address = f"{zookeeper.address}{tmp_path}"
    with dev(tmp_path, "--brokers", "1", "--port", "0", "--zookeeper", address) as running:
        running.until("the cluster is up")
        assert len(running.pids) == 1
    assert zookeeper.leader().mode() == "standalone"


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="Linux alone tells children of their parent's end")
def test_children_end_even_if_it_is_killed(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    address = f"{zookeeper.address}{tmp_path}"
    with dev(tmp_path, "--brokers", "1", "--port", "0", "--zookeeper", address) as running:
        running.until("the cluster is up")
        running.process.kill()
        eventually_gone(running.pids)
