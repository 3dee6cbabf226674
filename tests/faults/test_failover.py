"""A broker or a ZooKeeper falls under the hands of real clients: nothing acknowledged is lost, and it goes on soon.

Times are asserted generously, because the machine may be busy; docs/evidence/faults.md has those that were measured.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaign import Clients, last_word
from tests.faults.clients.load import Task
from tests.faults.journal import Journal, history_of, lines_of
from tests.faults.nemesis import Injury
from tests.faults.nodes import BrokerNode
from tests.faults.rig import Rig, Shape
from tests.faults.verdict import Verdict, judge, waits

from runnel.testing.history import History, Send, Status
from runnel.testing.zookeeper import missing

PARTITIONS = 6
LIMIT_S = 60.0
SESSION_MS = 4_000  # two thirds of it must be longer than an election of ZooKeeper's, also on a busy machine
BUSY_S = 5.0  # what a busy machine may add to a bar
ENDED = 70  # the exit code of a broker that must not go on
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if problem := missing():
        if os.environ.get("CI"):
            pytest.fail(f"a real ZooKeeper is needed: {problem}")
        pytest.skip(f"no ZooKeeper: {problem}")
    with Rig(tmp_path_factory.mktemp("failover"), shape=Shape(session_ms=SESSION_MS)) as rig:
        yield rig


class Load:
    """Clients at work on a topic of their own, until `finish`."""

    def __init__(self, rig: Rig, roles: dict[str, list[str]], **task: Any) -> None:
        self.rig, name = rig, f"t{next(numbers)}"
        self.folder = rig.folder / name
        self.folder.mkdir()
        rig.create_topic(name, PARTITIONS, 3, {"min.insync.replicas": "2"})
        self.task = Task(rig.bootstrap, name, PARTITIONS, "", "1", mortal=False, group=f"group-{name}", **task)
        self.clients = Clients(self.folder, self.task, roles)
        self.injuries: list[Injury] = []

    def __enter__(self) -> "Load":
        self.clients.__enter__()
        self.wait_acks()
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.__exit__()

    def history(self) -> History:
        return history_of(self.clients.journals)

    def wait_acks(self) -> None:
        """Wait until a message that is sent from now on is acknowledged in every partition."""
        since = time.monotonic()
        self.wait(lambda: {s.key for s in self.acked() if s.begun > since} == set(self.keys), "new acknowledgements")

    def acked(self) -> list[Send]:
        return [send for send in self.history().sends if send.status is Status.OK]

    @property
    def keys(self) -> list[str]:
        return [f"{self.task.topic}-{number}" for number in range(PARTITIONS)]

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"no {what}"
            time.sleep(0.1)

    def leader(self) -> BrokerNode:
        """Who leads partition 0."""
        view = self.rig.view(self.task.topic)
        assert view is not None
        return self.rig.brokers[view.leaders[0]]

    def fells(self, broker: BrokerNode) -> None:
        """From now on the broker does not lead what it leads now."""
        view = self.rig.view(self.task.topic)
        assert view is not None
        led = view.led_by(broker.number)
        self.injuries.append(Injury("fall of a leader", str(broker), time.monotonic(), True, led))

    def finish(self) -> Verdict:
        """Stop, read everything, judge."""
        self.rig.wait_whole([self.task.topic])
        problems = self.clients.stop() + last_word(self.task, self.folder)
        verdict = judge(self.history(), self.injuries, topic=self.task.topic, seed="", seconds=0)
        verdict.problems += problems
        verdict.failovers_s = waits(self.history(), self.injuries, self.task.topic)
        print(verdict.table())
        return verdict

    def complaints(self) -> list[str]:
        """What reached the applications that send."""
        return [
            json.dumps(line)
            for path in self.clients.journals
            for line in lines_of(path)
            if line["kind"] == "refused" or (line["kind"] == "trouble" and "producer" in line["process"])
        ]


def test_a_leader_is_killed(rig: Rig) -> None:
    with Load(rig, {"confluent": ["producer", "reader"], "own": ["producer"], "kafka_python": ["producer"]}) as load:
        leader = load.leader()
        load.fells(leader)
        with leader.down():
            load.wait_acks()
        verdict = load.finish()
    assert verdict.good, (verdict.anomalies, verdict.problems)
    assert verdict.failovers_s
    assert max(verdict.failovers_s) < rig.session_s + 2 + BUSY_S


def test_a_rolling_restart_is_not_noticed_by_applications(rig: Rig) -> None:
    with Load(rig, {"confluent": ["producer", "reader"], "aio": ["producer"]}, stock=True) as load:
        for broker in rig.brokers.values():
            load.fells(broker)
            with broker.down(signal.SIGTERM) as code:
                assert code == 0
            broker.wait()
            rig.wait_whole([load.task.topic])
        load.wait_acks()
        verdict = load.finish()
        assert load.complaints() == []
    assert verdict.good, (verdict.anomalies, verdict.problems)
    assert max(verdict.failovers_s) < 0.5 + BUSY_S


def test_a_group_goes_on_without_its_coordinator(rig: Rig) -> None:
    roles = {"confluent": ["producer", "member", "modern"], "own": ["member", "looker"]}
    with Load(rig, roles, modern_group="modern") as load:

        def commits_since(since: float) -> set[str]:
            return {c.group for c in load.history().commits if c.status is Status.OK and c.begun > since}

        groups = {load.task.group, load.task.modern_group}
        load.wait(lambda: commits_since(0.0) == groups, "commits of both groups")
        for broker in rig.brokers.values():  # one of them coordinates
            with broker.down():
                since = time.monotonic()
                load.wait(lambda since=since: commits_since(since) == groups, "new commits of both groups")  # type: ignore[misc]
            rig.wait_whole([load.task.topic, "__consumer_offsets"])
        verdict = load.finish()
    assert verdict.good, (verdict.anomalies, verdict.problems)


def test_a_leader_that_hung_longer_than_its_session_harms_nobody_when_it_wakes(rig: Rig) -> None:
    with Load(rig, {"confluent": ["producer", "reader"], "own": ["producer"]}) as load:
        leader, deaths = load.leader(), len(rig.deaths)
        load.fells(leader)
        with leader.paused():
            load.wait_acks()
        verdict = load.finish()
    assert verdict.good, (verdict.anomalies, verdict.problems)
    assert {death.code for death in rig.deaths[deaths:]} <= {ENDED}
    assert max(verdict.failovers_s) < rig.session_s + 2 + BUSY_S


def test_the_death_of_zookeepers_leader_is_not_felt(rig: Rig) -> None:
    with Load(rig, {"confluent": ["producer", "reader"]}) as load:
        deaths = len(rig.deaths)
        leader = rig.zookeeper_leader()
        assert leader is not None
        since = time.monotonic()
        with leader.down():
            load.wait(lambda: rig.zookeeper_leader() is not None, "new leader of ZooKeeper")
            load.wait_acks()
        leader.wait()
        verdict = load.finish()
    assert verdict.good, (verdict.anomalies, verdict.problems)
    assert rig.deaths[deaths:] == []
    assert longest_gap(load.history(), since) < 1.0 + BUSY_S


def longest_gap(history: History, since: float) -> float:
    """The longest time without any acknowledgement."""
    ended = sorted(send.ended for send in history.sends if send.status is Status.OK and send.ended > since)
    return max((b - a for a, b in itertools.pairwise(ended)), default=0.0)


def test_journals_of_killed_clients_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    journal = Journal(path)
    journal.send("p.1", "t-0", "p.1/0")
    journal.acked("p.1/0", 7)
    journal.close()
    with path.open("a") as file:
        file.write('{"kind": "send", "pro')
    (send,) = history_of([path]).sends
    assert (send.key, send.value, send.status, send.offset) == ("t-0", "p.1/0", Status.OK, 7)
