"""A real cluster of Spark on a real cluster of brokers: an executor and a broker are killed, and all counts once.

The package is not installed for the executors' Python: they have it from the driver. RUNNEL_CLUSTER_MINUTES of driving
are told (make pipelines-cluster: more of them).
"""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.conftest import cluster_broker
from tests.pipelines.cluster_driver import TOPICS
from tests.pipelines.reading import values
from tests.pipelines.standalone import Standalone, standalone, wait_until

import runnel
from runnel.client.connecting import connect
from runnel.dev.children import end_with_parent
from runnel.pipelines.jobs.fleet.cars import FleetPlan, Report, reports
from runnel.pipelines.jobs.fleet.topics import make_all
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

MINUTE = 60_000
BEGIN_MS = 1_700_000_040_000
MINUTES = int(os.environ.get("RUNNEL_CLUSTER_MINUTES", "9"))
PLAN = FleetPlan(int(os.environ.get("RUNNEL_CLUSTER_CARS", "40")), seed=5)
STEP_S = 480.0  # a bound, for machines with much else to do
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}
SOURCES = Path(runnel.__file__).parents[1]


class Driver:
    """The driver as a process, and what it told."""

    def __init__(self, cluster: Standalone, brokers: str, folder: Path, how: str) -> None:
        self._errors = folder / f"driver-{how}.log"
        command = [sys.executable, "-m", "tests.pipelines.cluster_driver", cluster.address, brokers, str(folder), how]
        python = {"PYSPARK_PYTHON": str(bare_python(folder)), "PYTHONPATH": f"{SOURCES}{os.pathsep}{os.getcwd()}"}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **python, **LOOPBACK},
                preexec_fn=end_with_parent,
            )
        self.told: list[Any] = []
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # Spark's processes end when they see it gone
        self.process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.told.append(json.loads(line))

    def rows(self, query: str) -> int:
        return max(
            (step["rows_total"] for step in self.told if str(step.get("query", "")).startswith(query)), default=0
        )

    def wait_rows(self, count: int) -> None:
        """Until each query has taken in so many rows."""

        def arrived() -> bool:
            assert self.process.poll() is None, self._errors.read_text()[-4000:]
            return all(self.rows(query) >= count for query in ("archive", "track", "heat"))

        wait_until(arrived, f"{count} rows of each query", STEP_S)

    def ended(self) -> int:
        code = self.process.wait(STEP_S)
        assert code == 0, self._errors.read_text()[-4000:]
        return code


def bare_python(folder: Path) -> Path:
    """A Python with the dependencies, and without the package itself."""
    script = folder / "python"
    packages = sysconfig.get_paths()["purelib"]
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


def test_a_bare_python_has_no_runnel(tmp_path: Path) -> None:
    code = "import pyarrow, importlib.util as u; print(u.find_spec('runnel'))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [bare_python(tmp_path), "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == "None\n", done.stderr


def reported(begin: float, end: float) -> list[Report]:
    """What is sent in a part of all the time."""
    span = MINUTES * MINUTE
    sent = takewhile(lambda each: each.send_ms < BEGIN_MS + end * span, reports(PLAN, BEGIN_MS))
    return [each.report for each in sent if each.send_ms >= BEGIN_MS + begin * span]


async def send(brokers: str, some: list[Report]) -> None:
    async with connect(*brokers.split(","), linger=0.02) as connected:
        await asyncio.gather(*(connected.send(TOPICS.source, each.value(), key=each.car) for each in some))


@pytest.mark.timeout(1800)
def test_all_counts_once_though_an_executor_and_a_broker_are_killed(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]
        addresses = ",".join(broker.kafka for broker in brokers)
        make_all(addresses, TOPICS)
        cluster = stack.enter_context(standalone(tmp_path))
        sent = through_faults(cluster, brokers, addresses, tmp_path)
        with Driver(cluster, addresses, tmp_path, "once") as last:
            last.ended()
        check(addresses, sent, last.told[-1]["audit"])


def through_faults(cluster: Standalone, brokers: list[BrokerProcess], addresses: str, folder: Path) -> list[Report]:
    """Run the jobs; kill an executor after a third, and a broker after two thirds; everything that was sent."""
    parts = [reported(0, 1 / 3), reported(1 / 3, 2 / 3), reported(2 / 3, 1)]
    with Driver(cluster, addresses, folder, "forever") as driver:
        asyncio.run(send(addresses, parts[0]))
        driver.wait_rows(len(parts[0]))
        victim = cluster.kill_executor()
        asyncio.run(send(addresses, parts[1]))
        driver.wait_rows(len(parts[0] + parts[1]))
        assert victim not in cluster.executors()
        brokers[0].kill()
        asyncio.run(send(addresses, parts[2]))
        brokers[0].start()
        driver.process.terminate()
        driver.ended()
    return [report for part in parts for report in part]


def check(addresses: str, sent: list[Report], audit: Any) -> None:
    assert audit["verdict"] == "clean", audit
    counted: Counter[str] = Counter()
    for each in found(addresses, TOPICS.cars):
        counted[each["car"]] = max(counted[each["car"]], each["reports"])
    assert counted == Counter(each.car for each in sent)
    heat = Counter((each["minute"], each["cell"]) for each in found(addresses, TOPICS.heat))
    assert not heat or max(heat.values()) == 1
    alerts = Counter((each["what"], each["car"], each["at"]) for each in found(addresses, TOPICS.alerts))
    assert not alerts or max(alerts.values()) == 1


def found(addresses: str, topic: str) -> list[Any]:
    return [json.loads(value) for value in values(addresses, topic) if value]
