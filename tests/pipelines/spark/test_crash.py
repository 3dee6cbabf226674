"""Streams into topics whose driver dies: every row is there once, as a foreign client sees it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.pipelines.reading import make_topic, values
from tests.pipelines.spark.crashing import POINTS, start

from runnel.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(900)  # many starts of Spark, perhaps on a busy machine
EVERYTHING = bool(os.environ.get("RUNNEL_EVERY_STEP"))
KILLED_AT = POINTS if EVERYTHING else ("inside-commit",)
WAIT_S = 300
ROWS = 50  # in a batch


def rows_of(batch: int) -> list[str]:
    return [f"{batch:02}-{row:03}" for row in range(ROWS)]


class Trial:
    """A stream of files to a topic, with a checkpoint."""

    def __init__(self, folder: Path, brokers: str, topic: str) -> None:
        make_topic(brokers, topic)
        self.folder, self.brokers, self.topic = folder, brokers, topic
        self._source = folder / "in"
        self._source.mkdir()
        self._added = 0
        self.conf: dict[str, object] = {
            "source": str(self._source), "brokers": brokers, "topic": topic, "checkpoint": str(folder / "checkpoint"),
        }  # fmt: skip

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            rows = "".join(f"{row}\n" for row in rows_of(self._added))
            (self._source / f"{self._added:02}.txt").write_text(rows)
            self._added += 1

    def check(self) -> None:
        assert values(self.brokers, self.topic) == [row for batch in range(self._added) for row in rows_of(batch)]


@pytest.fixture
def trial(tmp_path: Path, broker: BrokerProcess, request: pytest.FixtureRequest) -> Trial:
    return Trial(tmp_path, broker.kafka, re.sub(r"[^a-z-]+", "-", str(request.node.name)[5:]).strip("-"))


def test_drivers_that_are_killed_at_every_step(trial: Trial) -> None:
    """One after the other, on one checkpoint: each finds what the one before left, and dies one step later."""
    for batch, point in enumerate(KILLED_AT):
        trial.add()
        assert driver(trial, f"{point}:{batch}") == -signal.SIGKILL, f"nobody died {point}"
    trial.add()
    assert driver(trial, "") == 0
    trial.check()


def driver(trial: Trial, die_at: str) -> int:
    """A driver of its own, until it ends or dies; its JVM is gone then, too."""
    (trial.folder / "spark").mkdir(exist_ok=True)
    conf = {
        **trial.conf, "folder": str(trial.folder / "spark"), "pids": str(trial.folder / "pids"), "die_at": die_at,
        "wait_s": WAIT_S,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.pipelines.spark.crashing", json.dumps(conf)]
    with (trial.folder / "errors").open("a") as errors:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stderr=errors, timeout=WAIT_S, check=False).returncode


@pytest.mark.parametrize("point", ["before-commit", "after-commit"])
def test_a_commit_that_fails(spark: SparkSession, trial: Trial, point: str) -> None:
    """Before, nothing is published, and the batch is withdrawn; after, it stays published. Both are run again."""
    trial.add(2)
    with pytest.raises(StreamingQueryException, match=f"{point}:1"):
        start(spark, {**trial.conf, "die_at": f"{point}:1"}).awaitTermination(WAIT_S)
    assert len(values(trial.brokers, trial.topic)) == (ROWS if point == "before-commit" else 2 * ROWS)
    assert start(spark, trial.conf).awaitTermination(WAIT_S)
    trial.check()
