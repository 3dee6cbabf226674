"""Workers that copy in transactions, run and started again as a service manager would, and what became of it all.

The judgement is the checker's: every message of the source is in the target exactly once and in order, and nothing is
there that was not committed. `CLIENTS` says which clients there are, and how many workers share the work.
"""

import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.compat import setup_clients
from tests.compat.java_classes import java_command
from tests.faults.clients.load import key as place_name
from tests.faults.copiers.work import KEYS, CopyTask, source_partition
from tests.faults.journal import lines_of

from runnel.testing.checker import Anomaly, check
from runnel.testing.history import History, Looked, Poll, Records, Send, Status, Transaction

HERE = Path(__file__).resolve().parent / "copiers"
JAVA_VERSION = "4.3"
AGAIN_S = 0.3
LIMIT_S = 240.0  # a busy machine
END_S = 5.0
CALL_S = 30.0
FLOW_S, FLOW = 0.25, 3  # so many messages each time: a busy machine must be able to copy them
KILLED = -9
COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


@dataclass(frozen=True)
class Client:
    """One client library: how many workers share its group, and whether each reads partitions of its own."""

    name: str
    workers: int = 2
    fixed: bool = False

    def missing(self) -> str | None:
        wanted = {"java": f"java-{JAVA_VERSION}", "kafkajs": "kafkajs"}.get(self.name)
        return setup_clients.missing(wanted) if wanted else None

    def command(self, task: CopyTask) -> list[str]:
        if self.name == "kafkajs":
            program = setup_clients.KAFKAJS / "copier.mjs"  # node looks for modules beside the file
            shutil.copy(HERE / "kafkajs.mjs", program)
            return ["node", str(program), task.to_json()]
        if self.name == "java":
            return [*java_command(JAVA_VERSION, memory="128m"), "Copier", task.to_json()]
        return [sys.executable, "-m", f"tests.faults.copiers.{self.name}", task.to_json()]


CLIENTS = {
    client.name: client
    for client in (
        Client("confluent"),
        Client("kafka_python"),
        Client("aio", fixed=True),
        Client("kafkajs", workers=1),  # it can't tell the coordinator which of two members an offset is from
        Client("java"),
        Client("own"),
    )
}


class Worker:
    """One seat at the work: a process, and the next one when it ends."""

    def __init__(self, client: Client, task: CopyTask, folder: Path) -> None:
        self.client, self.task, self._folder = client, task, folder
        self.ends: list[int] = []  # exit codes
        self._lives = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **how: Any) -> "subprocess.Popen[bytes]":
        """A new life; `how` says where it stops."""
        name = f"{self.task.worker}.{next(self._lives)}"
        task = replace(self.task, worker=name, journal=str(self._folder / f"{self.task.worker}.jsonl"), **how)
        with (self._folder / f"{self.task.worker}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.client.command(task), stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=setup_clients.ROOT,
                env={**os.environ, "PYTHONWARNINGS": "ignore", "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
            )  # fmt: skip
        return self._process

    def revive(self) -> None:
        """Start it again if it ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        self._hang_up()
        self.ends.append(code)
        self.start()

    def _hang_up(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Let it finish what it does."""
        self._hang_up()

    def strike(self) -> None:
        """SIGKILL, whatever it is at; whoever runs it starts it again."""
        if self._process is not None:
            self._process.kill()

    def kill(self, after_s: float = 0.0) -> None:
        """End it, at once or if it does not end within this time."""
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(after_s)
        self._process.kill()
        self._process.wait()
        self._hang_up()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Until it ended; its exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.task.worker} did not end:\n{self.trouble()}") from None
        self._hang_up()
        return code

    def trouble(self) -> str:
        return (self._folder / f"{self.task.worker}.log").read_text(errors="replace")[-3000:]


class Feed:
    """Sends the messages to be copied; keeps those that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic, self._partitions = topic, partitions
        self.sends: list[Send] = []
        self._numbers = itertools.count()
        self._producer: Any = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5, "log_level": 0}
        )

    def send(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            key = number % KEYS
            partition = source_partition(key, self._partitions)
            send = Send("feed", place_name(self.topic, partition), f"{key}/{number // KEYS}", time.monotonic())
            self.sends.append(send)
            self._producer.produce(
                self.topic, send.value, str(key), partition,
                on_delivery=lambda error, message, send=send: _settle(send, error, message),
            )  # fmt: skip
            self._producer.poll(0)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Messages keep coming, until the end of the block."""
        over = threading.Event()

        def flow() -> None:
            while not over.wait(FLOW_S):
                self.send(FLOW)

        thread = threading.Thread(target=flow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def flush(self) -> None:
        self._producer.flush(LIMIT_S)

    def ends(self) -> dict[int, int]:
        """How far what was acknowledged reaches in each partition."""
        found = dict.fromkeys(range(self._partitions), 0)
        for send in list(self.sends):
            number = int(send.key.rpartition("-")[2])
            found[number] = max(found[number], 0 if send.offset is None else send.offset + 1)
        return found


def _settle(send: Send, error: KafkaError | None, message: Any) -> None:
    send.ended = time.monotonic()
    if error is None:
        send.status, send.offset = Status.OK, message.offset()


class Copy:
    """The work of one client: a source, a target of its own, a group, and its workers."""

    def __init__(self, bootstrap: str, client: Client, feed: Feed, target: str, partitions: int, folder: Path) -> None:
        self.bootstrap, self.client, self.feed, self.target, self.partitions = (
            bootstrap,
            client,
            feed,
            target,
            partitions,
        )
        self.group = f"copiers-{target}"
        self.folder = folder
        folder.mkdir(parents=True)
        self.workers = [self._worker(number) for number in range(client.workers)]
        self._over = threading.Event()
        self._reviver: threading.Thread | None = None

    def _worker(self, number: int) -> Worker:
        name = f"{self.client.name}-{number}"
        mine = [part for part in range(self.partitions) if part % self.client.workers == number]
        task = CopyTask(
            self.bootstrap, self.feed.topic, self.target, self.partitions, self.group,
            transactional_id=f"{self.target}-{number}", worker=name, journal="",
            mine=mine if self.client.fixed else [],
        )  # fmt: skip
        return Worker(self.client, task, self.folder)

    @property
    def journals(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    # --- running
    def run(self) -> None:
        """All workers, each started again when it ends; those that are at work stay so."""
        if self._reviver is not None:
            return
        for worker in self.workers:
            worker.start()
        self._reviver = threading.Thread(target=self._revive, daemon=True)
        self._reviver.start()

    def _revive(self) -> None:
        while not self._over.wait(AGAIN_S):
            for worker in self.workers:
                worker.revive()

    def close(self) -> None:
        """End the workers: those that are at work finish their transactions."""
        self._over.set()
        if self._reviver is not None:
            self._reviver.join()
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.kill(after_s=END_S)

    def trouble(self) -> str:
        return "\n".join(worker.trouble() for worker in self.workers)

    def committed(self) -> dict[int, int]:
        """Where the group is; librdkafka leaves it to its caller to ask again when the coordinator has just moved."""
        places = [TopicPartition(self.feed.topic, number) for number in range(self.partitions)]
        deadline = time.monotonic() + LIMIT_S
        with _reader(self.bootstrap, "read_uncommitted", self.group) as consumer:
            while True:
                try:
                    found = consumer.committed(places, CALL_S)
                except KafkaException as error:
                    if error.args[0].code() not in COORDINATOR_MOVES or time.monotonic() > deadline:
                        raise
                    time.sleep(AGAIN_S)
                else:
                    return {place.partition: max(place.offset, 0) for place in found}

    def wait_caught_up(self, limit_s: float = LIMIT_S) -> None:
        """Until the group has committed all that is acknowledged now."""
        ends, deadline = self.feed.ends(), time.monotonic() + limit_s
        while True:
            at = self.committed()
            if all(at[number] >= end for number, end in ends.items()):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.client.name} is at {at}, not at {ends}:\n{self.trouble()}")
            time.sleep(0.2)

    # --- judging
    def anomalies(self) -> list[Anomaly]:
        """Read everything, and judge."""
        return check(self.history())

    def history(self) -> History:
        given, made = (read_all(self.bootstrap, topic, self.partitions) for topic in (self.feed.topic, self.target))
        at = {place_name(self.feed.topic, number): offset for number, offset in self.committed().items()}
        places = {value: (key, offset) for key, records in given.items() for offset, value in records}
        transactions = list(transactions_of(self.journals, self.target, places))
        return history_of(self.feed.sends, transactions, given, made, self.group, at)


def history_of(
    sends: Sequence[Send], transactions: list[Transaction], given: Records, made: Records, group: str,
    committed: Mapping[str, int],
) -> History:  # fmt: skip
    """What was sent, what workers did, and what the source and the target hold at the end."""
    return History(
        sends=[*sends, *(send for one in transactions for send in one.sends)],
        polls=[
            Poll("final", given, final=True),
            Poll("final", made, final=True),
            *(polled(one, given, group) for one in transactions),
        ],
        looks=[Looked(group, committed)],
        transactions=transactions,
        transforming_group=group,
    )


def polled(transaction: Transaction, source: Records, group: str) -> Poll:
    """What a worker was given for a transaction: a process of its own, because it may go back after an abort."""
    wanted = {send.source for send in transaction.sends}
    found = {key: [(at, value) for at, value in records if (key, at) in wanted] for key, records in source.items()}
    name = f"{transaction.process}:{transaction.sends[0].value.rpartition(':')[2]}"
    return Poll(name, {key: records for key, records in found.items() if records}, group=group)


def transactions_of(
    journals: Iterable[Path], target: str, places: Mapping[str, tuple[str, int]]
) -> Iterator[Transaction]:
    """What workers noted. Nothing is there of a transaction whose commit was not asked for."""
    found: dict[tuple[str, int], Transaction] = {}
    for line in itertools.chain.from_iterable(map(lines_of, journals)):
        name, at = (line["worker"], line["transaction"]), line["at"]
        match line["step"]:
            case "begun":
                found[name] = Transaction(line["worker"])
                found[name].sends = [
                    Send(line["worker"], place_name(target, n), value, at, transactional=True, source=places.get(old))
                    for n, value, old in line["outputs"]
                ]
                found[name].becomes(Status.FAIL, at)
            case "committing":
                found[name].becomes(Status.INFO)
            case "committed":
                found[name].becomes(Status.OK, at)
    yield from found.values()


def read_all(bootstrap: str, topic: str, partitions: int, limit_s: float = LIMIT_S) -> Records:
    """All that is committed, once no transaction is open any more."""
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
    with _reader(bootstrap, "read_uncommitted") as consumer:
        left = {place.partition: consumer.get_watermark_offsets(place, CALL_S)[1] for place in places}
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    deadline = time.monotonic() + limit_s
    with _reader(bootstrap, "read_committed") as consumer:
        consumer.assign(places)
        while left:
            for message in consumer.consume(1_000, 0.2):
                number, offset = message.partition(), message.offset()
                if message.error() is None:
                    found[place_name(topic, number)].append((offset, message.value().decode()))
                elif message.error().code() == KafkaError._PARTITION_EOF and offset >= left.get(number, 0):
                    left.pop(number, None)
            if time.monotonic() > deadline:
                raise TimeoutError(f"a transaction stays open: {topic} has nothing committed up to {left}")
    return found


@contextmanager
def _reader(bootstrap: str, isolation: str, group: str = "reader") -> Iterator[Any]:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer: Any = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
    try:
        yield consumer
    finally:
        consumer.close()
