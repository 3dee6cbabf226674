"""Workers that read, turn each message into another, and commit both in one transaction: what all of them share.

A worker is a program, `python -m tests.faults.copiers.X TASK` (or its like in another language), where TASK is JSON. It
stops when its input ends. Whatever it can't do, it does not repair: it ends, and whoever runs it starts it again. It
also ends when a call takes too long.

It notes each step as a line of JSON before it goes on, and can be told to die (SIGKILL) or to hang (SIGSTOP) at one:

    polled -> begun -> produced -> offsets -> committing -> committed
                                          \\-> aborting -> aborted       (now and then, by choice)

A message is `KEY/NUMBER`; what it is turned into `KEY/NUMBER>WORKER:TRANSACTION`. Keys are numbers; the key decides the
partition, in the source and in another way in the target, so that a transaction writes to many partitions.
"""

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

KEYS = 24


class Message(NamedTuple):
    """One message that was read."""

    partition: int
    offset: int
    value: str

    @property
    def key(self) -> int:
        return int(self.value.partition("/")[0])


class Output(NamedTuple):
    """What it is turned into."""

    partition: int
    key: bytes
    value: str
    source: str


@dataclass(frozen=True)
class CopyTask:
    """What one worker does."""

    bootstrap: str
    source: str
    target: str
    partitions: int  # of both
    group: str
    transactional_id: str
    worker: str  # a name for this life: what it writes carries it
    journal: str
    mine: list[int] = field(default_factory=list)  # what to read, for clients that can't share by a group
    timeout_ms: int = 15_000  # of a transaction
    batch_max: int = 20
    aborts: float = 0.15  # so many of the transactions, by choice
    # A call may take so long. Clients wait for ever for a coordinator that is gone: librdkafka 5511, aiokafka 1145.
    stuck_s: float = 20.0
    at_step: str = ""  # where to stop
    at_transaction: int = 1  # in which transaction
    after_ms: float = 0.0  # how long after
    by: str = "SIGKILL"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def source_partition(key: int, partitions: int) -> int:
    return key % partitions


def target_partition(key: int, partitions: int) -> int:
    return key // partitions % partitions


class Notes:
    """The worker's journal, and its end where it was told to end."""

    def __init__(self, task: CopyTask) -> None:
        self._task = task
        self._file = Path(task.journal).open("a", buffering=1)  # noqa: SIM115  open as long as the process

    def reach(self, step: str, transaction: int, **more: Any) -> None:
        line = {"at": time.monotonic(), "worker": self._task.worker, "transaction": transaction, "step": step, **more}
        self._file.write(json.dumps(line) + "\n")
        self.alive()
        if (step, transaction) == (self._task.at_step, self._task.at_transaction):
            self._stop()

    def alive(self) -> None:
        """From now on the next call has its time."""
        faulthandler.dump_traceback_later(self._task.stuck_s, exit=True)

    def _stop(self) -> None:
        number = signal.Signals[self._task.by]
        if self._task.after_ms:
            threading.Timer(self._task.after_ms / 1000, os.kill, (os.getpid(), number)).start()
        else:
            os.kill(os.getpid(), number)


class Copier(ABC):
    """One client library at this work."""

    def __init__(self, task: CopyTask) -> None:
        self.task = task

    @abstractmethod
    def open(self) -> None:
        """Fence whoever used the transactional id before, and only then ask where to read on."""

    @abstractmethod
    def poll(self) -> list[Message]: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, outputs: Sequence[Output]) -> None:
        """Returns when all are acknowledged."""

    @abstractmethod
    def send_offsets(self, offsets: Mapping[int, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def rewind(self, offsets: Mapping[int, int]) -> None: ...


def outputs_of(messages: Sequence[Message], task: CopyTask, transaction: int) -> list[Output]:
    return [
        Output(
            target_partition(message.key, task.partitions),
            str(message.key).encode(),
            f"{message.value}>{task.worker}:{transaction}",
            message.value,
        )
        for message in messages
    ]


def transact(client: Copier, notes: Notes, number: int, messages: Sequence[Message], *, abort: bool) -> None:
    """One transaction: what was read, turned into something, and the offsets behind it."""
    outputs = outputs_of(messages, client.task, number)
    notes.reach("polled", number)
    client.begin()
    written = [(output.partition, output.value, output.source) for output in outputs]
    notes.reach("begun", number, outputs=written)
    client.send(outputs)
    notes.reach("produced", number)
    client.send_offsets({message.partition: message.offset + 1 for message in messages})
    notes.reach("offsets", number)
    if abort:
        notes.reach("aborting", number)
        client.abort()
        client.rewind({message.partition: message.offset for message in reversed(messages)})
        notes.reach("aborted", number)
        return
    notes.reach("committing", number)
    client.commit()
    notes.reach("committed", number)


def _await_end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def run(kind: type[Copier]) -> None:
    """The program: work until the input ends."""
    task = CopyTask(**json.loads(sys.argv[1]))
    over = threading.Event()
    threading.Thread(target=_await_end_of_input, args=(over,), daemon=True).start()
    notes, rng = Notes(task), random.Random(task.worker)
    notes.alive()
    client = kind(task)
    client.open()
    notes.reach("open", 0)
    number = 0
    while not over.is_set():
        notes.alive()
        messages = client.poll()
        if messages:
            number += 1
            transact(client, notes, number, messages, abort=rng.random() < task.aborts)
    os._exit(0)  # nothing is open; clients may take their time to say goodbye
