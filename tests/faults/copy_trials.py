"""What is done to workers that copy in transactions, with real processes: killed, hung, and their brokers killed."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.faults.copying import KILLED, LIMIT_S, Client, Copy, Feed, Worker

PARTITIONS = 4
CALM_S = 1.0  # of messages that are sent before anybody looks
WORK = 150  # messages for each life: more than the transactions until its death take
STEPS = (  # where a worker dies, and how many milliseconds later
    ("polled", 0.0),
    ("begun", 0.0),
    ("produced", 0.0),
    ("offsets", 0.0),
    ("committing", 1.0),
    ("committing", 6.0),
    ("committed", 0.0),
    ("aborting", 1.0),
    ("aborted", 0.0),
)
_numbers = itertools.count(1)
Create = Callable[[str, int], None]  # a topic with so many partitions
Down = Callable[[], AbstractContextManager[object]]  # a broker is down until the end of the block


class Ground:
    """A cluster to try workers on: where it is, and how topics are made there."""

    def __init__(self, bootstrap: str, create: Create, folder: Path) -> None:
        self.bootstrap, self._create, self._folder = bootstrap, create, folder
        self._one_by_one = threading.Lock()

    def feed(self) -> Feed:
        return Feed(self.bootstrap, self._topic("source"), PARTITIONS)

    def copy(self, client: Client, feed: Feed) -> Copy:
        target = self._topic(f"target-{client.name}")
        return Copy(self.bootstrap, client, feed, target, PARTITIONS, self._folder / target)

    def _topic(self, hint: str) -> str:
        name = f"{hint}-{next(_numbers)}"
        with self._one_by_one:
            self._create(name, PARTITIONS)
        return name


@contextmanager
def alone(ground: Ground, client: Client) -> Iterator[tuple[Copy, Worker]]:
    """A single worker with a source of its own; at the end another one finishes its work, and all is judged."""
    copy = ground.copy(replace(client, workers=1), ground.feed())
    try:
        yield copy, copy.workers[0]
        finish(copy)
    finally:
        copy.close()


def finish(*copies: Copy) -> None:
    """Workers that nothing is done to any more finish what is left; then everything is judged."""
    for copy in copies:
        copy.run()
        copy.feed.flush()
    _catch_up(copies)
    for copy in copies:
        copy.close()
        found = copy.anomalies()
        assert not found, f"{copy.client.name}: {[str(anomaly) for anomaly in found[:10]]}"


def killed_at_each(ground: Ground, client: Client, steps: Sequence[tuple[str, float]] = STEPS) -> None:
    """Life after life ends at some step of its second transaction; the next one takes over."""
    with alone(ground, client) as (copy, worker):
        for step, after_ms in steps:
            copy.feed.send(WORK)
            aborts = 1.0 if step.startswith("abort") else 0.0
            worker.start(at_step=step, at_transaction=2, after_ms=after_ms, aborts=aborts)
            code = worker.wait()
            assert code == KILLED, f"{client.name} ended with {code}, not at {step}:\n{worker.trouble()}"
        copy.feed.send(WORK)


def hung(ground: Ground, client: Client, step: str = "offsets") -> None:
    """A worker hangs before its commit until another one has done its work: then it is refused, and ends."""
    with alone(ground, client) as (copy, zombie):
        copy.feed.send(WORK)
        process = zombie.start(at_step=step, at_transaction=2, aborts=0.0, by="SIGSTOP", stuck_s=LIMIT_S)
        _wait(lambda: _stopped(process.pid), f"{client.name} to hang", zombie)
        heir = Worker(client, replace(zombie.task, worker=f"{zombie.task.worker}-heir"), copy.folder)
        try:
            heir.start(aborts=0.0)
            copy.feed.flush()
            copy.wait_caught_up()
            os.kill(process.pid, signal.SIGCONT)
            code = zombie.wait()
            assert code not in (0, KILLED), f"{client.name} went on as if nothing had happened: {zombie.trouble()}"
        finally:
            heir.kill()


def brokers_killed(ground: Ground, clients: Sequence[Client], fells: Sequence[Down]) -> None:
    """All workers of all clients are at work while one broker after the other falls."""
    feed = ground.feed()
    copies = [ground.copy(client, feed) for client in clients]
    try:
        for copy in copies:
            copy.run()
        with feed.flowing():
            _catch_up(copies)
            for fell in fells:
                with fell():
                    time.sleep(CALM_S)
                    _catch_up(copies)
                time.sleep(CALM_S)
        finish(*copies)
    finally:
        for copy in copies:
            copy.close()


def _catch_up(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.wait_caught_up()


def _wait(holds: Callable[[], bool], what: str, worker: Worker) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}:\n{worker.trouble()}")
        time.sleep(0.05)


def _stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal: state T in field 3 of proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
