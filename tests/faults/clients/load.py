"""What the clients under load share: what they are asked to do, when to stop, and how a message is written.

A client program is `python -m tests.faults.clients.X TASK`, where TASK is JSON; it stops when its input ends.
Every value is sent once, names its sender, and grows; a key of the history is a partition.
"""

import json
import random
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.journal import Journal

PADDING_BYTES = 400
LIFE_S = (15.0, 45.0)  # then a client is thrown away, and another one takes its place
COMMIT_S = 0.5
BACKOFF_S = 0.2


@dataclass(frozen=True)
class Task:
    """What one client program does."""

    bootstrap: str
    topic: str
    partitions: int
    journal: str
    seed: str
    rate: float = 50.0  # messages a second, of each producer
    roles: list[str] = field(default_factory=list)  # which of its roles it plays
    group: str = "billing"
    modern_group: str = "shipping"  # its protocol is KIP-848
    mortal: bool = True  # clients are thrown away now and then
    stock: bool = False  # producers have the settings that their library gives them

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Stage:
    """One client program."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.journal = Journal(Path(task.journal))
        self.over = threading.Event()
        self._lives: dict[str, int] = defaultdict(int)

    def life(self, role: str) -> "Life":
        """A new life of a client, with chances of its own."""
        self._lives[role] += 1
        name = f"{role}.{self._lives[role]}"
        rng = random.Random(f"{self.task.seed}/{name}")
        return Life(self, name, rng, time.monotonic() + rng.uniform(*LIFE_S) if self.task.mortal else float("inf"))

    def play(self, roles: dict[str, Callable[[], None]]) -> None:
        """Play the roles asked for, each in a thread, until the input ends."""
        threads = [threading.Thread(target=self._guarded, args=(name, roles[name])) for name in self.task.roles]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.over.set()
        for thread in threads:
            thread.join()

    def _guarded(self, name: str, role: Callable[[], None]) -> None:
        while not self.over.is_set():
            try:
                role()
            except Exception as error:  # noqa: BLE001  whatever a client raises: noted, and it lives again
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.journal.trouble(name, f"{error!r} in {Path(where.filename).name}:{where.lineno} {where.name}")
                self.over.wait(BACKOFF_S)


class Life:
    """One life of one client: a process, as the checker calls it."""

    def __init__(self, stage: Stage, process: str, rng: random.Random, until: float) -> None:
        self.stage, self.process, self.rng, self._until = stage, process, rng, until
        self._count = 0

    @property
    def over(self) -> bool:
        return self.stage.over.is_set() or time.monotonic() > self._until

    def message(self) -> tuple[int, str, bytes]:
        """The next message: its partition, its value as the history names it, and its bytes."""
        partition = self.rng.randrange(self.stage.task.partitions)
        value = f"{self.process}/{self._count}"
        self._count += 1
        self.stage.journal.send(self.process, key(self.stage.task.topic, partition), value)
        return partition, value, f"{value}|{'x' * self.rng.randrange(PADDING_BYTES)}".encode()

    def pause_s(self) -> float:
        """Until the next message, so that the rate is right on average."""
        return self.rng.uniform(0, 2 / self.stage.task.rate)


def key(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def records_of(messages: Iterable[tuple[str, int, int, bytes]]) -> dict[str, list[tuple[int, str]]]:
    """(topic, partition, offset, bytes) of messages, as the history has them."""
    records: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for topic, partition, offset, value in messages:
        records[key(topic, partition)].append((offset, value.partition(b"|")[0].decode()))
    return records


def program(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.faults.clients.{module}"]


def task_given() -> Task:
    fields: dict[str, Any] = json.loads(sys.argv[1])
    return Task(**fields)
