"""Read, transform, write, all in transactions, with real clients on a real cluster: exactly once, whoever dies.

Each client runs as processes of its own (tests/faults/copiers). The judgement is the checker's: each message is in the
target once and in order, and nothing is there that was not committed. `make faults-transactions` does it for longer.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.faults.copy_trials import STEPS as ALL_STEPS
from tests.faults.copy_trials import Ground, brokers_killed, hung, killed_at_each
from tests.faults.copying import CLIENTS, Client
from tests.faults.rig import Rig, Shape

from runnel.testing.zookeeper import missing

pytestmark = pytest.mark.timeout(900)  # with everything, on a busy machine
SESSION_MS = 4_000
EVERYTHING = bool(os.environ.get("RUNNEL_EVERY_STEP"))  # each client at each step, and each broker
STEPS = {
    "confluent": (("produced", 0.0), ("offsets", 0.0), ("committing", 1.0)),
    "kafka_python": (("begun", 0.0), ("committing", 3.0), ("committed", 0.0)),
    "aio": (("offsets", 0.0), ("committing", 1.0), ("aborting", 1.0)),
    "kafkajs": (("produced", 0.0), ("committing", 2.0)),
    "java": (("offsets", 0.0), ("committing", 4.0)),
    "own": (("produced", 0.0), ("committing", 1.0), ("aborted", 0.0)),
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if problem := missing():
        if os.environ.get("CI"):
            pytest.fail(f"a real ZooKeeper is needed: {problem}")
        pytest.skip(f"no ZooKeeper: {problem}")
    shape = Shape(zookeepers=1, session_ms=SESSION_MS)
    with Rig(tmp_path_factory.mktemp("exactly-once"), shape=shape) as rig:
        yield rig


@pytest.fixture
def ground(rig: Rig) -> Ground:
    def create(topic: str, partitions: int) -> None:
        rig.create_topic(topic, partitions, 3, {"min.insync.replicas": "2"})

    return Ground(rig.bootstrap, create, rig.folder / "copies")


def present(*names: str) -> list[Client]:
    """Those that are there; in CI a client that is missing is a failure."""
    absent = {name: problem for name in names if (problem := CLIENTS[name].missing())}
    if absent and os.environ.get("CI") == "true":
        pytest.fail(f"missing: {absent}")
    return [CLIENTS[name] for name in names if name not in absent]


def at_once(*trials: Callable[[], None]) -> None:
    """They mostly wait; each answers for itself."""
    with ThreadPoolExecutor(len(trials)) as pool:
        for done in [pool.submit(trial) for trial in trials]:
            done.result()


def test_a_worker_is_killed_at_each_step(ground: Ground) -> None:
    at_once(
        *(
            partial(killed_at_each, ground, client, ALL_STEPS if EVERYTHING else STEPS[client.name])
            for client in present(*STEPS)
        )
    )


def test_a_worker_that_hung_is_refused_when_it_wakes(ground: Ground) -> None:
    at_once(
        *(
            partial(hung, ground, client)
            for client in present(*(CLIENTS if EVERYTHING else ("confluent", "aio", "java")))
        )
    )


def test_brokers_are_killed(rig: Rig, ground: Ground) -> None:
    """Whatever they lead or coordinate: partitions of the source and the target, groups, transactions."""
    clients = present(*(CLIENTS if EVERYTHING else ("confluent", "java", "own")))
    fells = [broker.down for broker in rig.brokers.values()]
    brokers_killed(ground, clients, fells if EVERYTHING else fells[:2])
