"""One run: a cluster, its clients, the nemesis, and the judgement."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

from tests.faults.clients.load import Task, key, program
from tests.faults.clients.own import QUICK, found
from tests.faults.copies import differences
from tests.faults.journal import Journal, history_of
from tests.faults.nemesis import Nemesis
from tests.faults.rig import IN_SYNC_MIN, Rig, Shape
from tests.faults.sandbox import ROOT
from tests.faults.verdict import Verdict, judge

from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.positions import bounds
from runnel.model.errors import RunnelError
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

TOPIC, PARTITIONS = "orders", 6
GROUPS_TOPIC = "__consumer_offsets"
ROLES = {
    "confluent": ["producer", "reader", "member", "modern", "modern-too"],
    "kafka_python": ["producer", "member"],
    "aio": ["producer", "member"],
    "own": ["producer", "reader", "member", "looker"],
}
CALM_S = 4.0  # load goes on so long before the first fault, and after the last
STOP_S = 120.0
LAWFUL = (1, 70, -9)  # it could not start, it must not go on, it was killed: it is started again
Say = Callable[[str], None]


class Clients:
    """The client programs, until the end of the block."""

    def __init__(self, folder: Path, task: Task, roles: dict[str, list[str]]) -> None:
        self.folder = folder
        self._task, self._roles = task, roles
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def journals(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def __enter__(self) -> "Clients":
        for module, roles in self._roles.items():
            fields = {**self._task.__dict__, "roles": roles, "journal": str(self.folder / f"{module}.jsonl")}
            with (self.folder / f"{module}.log").open("wb") as log:
                self._programs[module] = subprocess.Popen(
                    [*program(module), Task(**fields).to_json()], stdin=subprocess.PIPE, stdout=log, stderr=log,
                    cwd=ROOT, env={**os.environ, "PYTHONWARNINGS": "ignore"},
                )  # fmt: skip
        return self

    def stop(self) -> list[str]:
        """Let them finish; what went wrong with that."""
        problems = []
        for each in self._programs.values():
            assert each.stdin is not None
            each.stdin.close()
        deadline = time.monotonic() + STOP_S
        for name, each in self._programs.items():
            try:
                code = each.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                problems.append(f"client {name} did not end")
            else:
                if code:
                    problems.append(f"client {name} ended with {code}")
        return problems

    def __exit__(self, *_: object) -> None:
        for each in self._programs.values():
            each.kill()
            each.wait()
            if each.stdin is not None:
                each.stdin.close()


def run_once(
    folder: Path, seed: str, seconds: float, *, sandbox: bool, say: Say, only: str = "", replication: int = 3
) -> Verdict:
    """Load and faults for so many seconds, then the last word."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        rig = stack.enter_context(Rig(folder / "rig", shape=Shape(), sandbox=sandbox))
        rig.create_topic(TOPIC, PARTITIONS, replication, {"min.insync.replicas": str(min(IN_SYNC_MIN, replication))})
        task = Task(rig.bootstrap, TOPIC, PARTITIONS, "", seed)
        clients = stack.enter_context(Clients(folder, task, ROLES))
        say("the cluster is up, clients begin")
        began = time.monotonic()
        time.sleep(CALM_S)
        nemesis = Nemesis(rig, TOPIC, seed, say, only)
        nemesis.run(time.monotonic() + seconds)
        (folder / "injuries.json").write_text(json.dumps([asdict(injury) for injury in nemesis.injuries], indent=1))
        problems, whole_s = heal(rig, say)
        time.sleep(CALM_S)
        say("clients stop")
        problems += clients.stop()
        took_s = time.monotonic() - began
        say("reading everything")
        problems += last_word(task, folder)
        copied = asyncio.run(topic_id(task))
        problems += stop_in_order(rig)
        problems += compare(rig, str(copied))
        say("judging")
        verdict = judge(history_of(clients.journals), nemesis.injuries, topic=TOPIC, seed=seed, seconds=took_s)
    verdict.problems += nemesis.problems + problems
    verdict.whole_s += [whole_s] if whole_s is not None else []
    verdict.exits.update(f"{death.name.rstrip('0123456789')} with {death.code}" for death in rig.deaths)
    for death in rig.deaths:
        say(f"{death.name} had ended with {death.code}: {death.words}")
        if death.code not in LAWFUL:
            verdict.problems.append(f"{death.name} ended with {death.code}: {death.words}")
    return verdict


def heal(rig: Rig, say: Say) -> tuple[list[str], float | None]:
    """Nothing is wrong any more: wait until every replica is in sync."""
    say("faults are over, waiting for every replica to be in sync")
    try:
        return [], rig.wait_whole([TOPIC, GROUPS_TOPIC])
    except RuntimeError as error:
        return [str(error)], None


def last_word(task: Task, folder: Path) -> list[str]:
    """Read everything from the leaders, once; what went wrong with that."""
    journal = Journal(folder / "final.jsonl")
    try:
        asyncio.run(asyncio.wait_for(_read_all(task, journal), STOP_S))
    except (RunnelError, TimeoutError) as error:
        return [f"not everything could be read at the end: {error!r}"]
    finally:
        journal.close()
    return []


async def _read_all(task: Task, journal: Journal) -> None:
    async with Cluster(task.bootstrap.split(","), clock=SystemClock(), rng=SystemRng(), settings=QUICK) as cluster:
        await _read(cluster, task, journal)


async def _read(cluster: Cluster, task: Task, journal: Journal) -> None:
    places = [TopicPartition(task.topic, number) for number in range(task.partitions)]
    limits = await bounds(cluster, places)
    consumer = Consumer(cluster)
    await consumer.assign({place: limits[place].start for place in places})
    journal.assigned("final", {key(*place): offset for place, offset in consumer.positions.items()})
    while any(consumer.positions[place] < limits[place].end for place in places):
        begun = time.monotonic()
        messages = await consumer.poll(count_max=1_000, timeout_ms=500)
        journal.polled("final", found(messages), begun, final=True)
    await consumer.close()


def stop_in_order(rig: Rig) -> list[str]:
    """SIGTERM to every broker: an orderly end has exit code 0."""
    with ExitStack() as stack:
        codes = {str(b): stack.enter_context(b.down(signal.SIGTERM)) for b in rig.brokers.values()}
        stack.pop_all()  # they stay down
    return [f"{name} ended with {code} when asked to" for name, code in codes.items() if code]


async def topic_id(task: Task) -> UUID:
    async with Cluster(task.bootstrap.split(","), clock=SystemClock(), rng=SystemRng(), settings=QUICK) as cluster:
        return (await cluster.topic(task.topic)).id


def compare(rig: Rig, topic: str) -> list[str]:
    """Where the copies of a topic's partitions differ on the disks. (Compaction may make them differ: it has none.)"""
    problems = []
    for name in [f"{topic}-{number}" for number in range(PARTITIONS)]:
        copies = [(str(broker), broker.data / "partitions" / name) for broker in rig.brokers.values()]
        problems += [f"partition {name}: {difference}" for difference in differences(copies)]
    return problems


def printer(began: float) -> Say:
    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True, file=sys.stderr)

    return say
