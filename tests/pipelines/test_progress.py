"""What is told of a query while it runs, and how it ends."""

import json
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest

from runnel.pipelines.progress import JobFailed, Step, Tally, behind, follow, plainly, reason_of


def report(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 50.0,
        "timestamp": "2026-11-16T10:00:00.000Z",
        "durationMs": {"addBatch": 90, "triggerExecution": 100},
        "sources": [],
        **more,
    }


# --- steps
def test_each_batch_is_told_once() -> None:
    tally = Tally("heat")
    first, second = tally.take([report(0, 10), report(1, 5)])
    assert (first.batch, first.rows, first.rows_total) == (0, 10, 10)
    assert (second.batch, second.rows, second.rows_total, second.took_ms) == (1, 5, 15, 100)
    assert tally.take([report(0, 10), report(1, 5)]) == []
    assert [step.batch for step in tally.take([report(1, 5), report(2, 1)])] == [2]


def test_a_trigger_that_found_nothing_is_not_told() -> None:
    assert Tally("heat").take([report(3, 0, durationMs={"latestOffset": 2, "triggerExecution": 3})]) == []


def test_how_far_behind_is_what_lies_between_the_batch_and_the_end_of_the_log() -> None:
    source = {"endOffset": {"t": {"0": 5, "1": 7}}, "latestOffset": {"t": {"0": 15, "1": 7, "2": 3}}}
    assert behind([source]) == 13
    assert behind([{"endOffset": json.dumps(source["endOffset"]), "latestOffset": json.dumps(source["latestOffset"])}])
    assert behind([{"endOffset": {"lease": "abc"}, "latestOffset": None}]) is None
    assert behind([]) is None


def test_an_error_is_told_without_traces() -> None:
    text = (
        "[STREAM_FAILED] Query failed: the topic 'cars' is not there.\n=== Streaming Query ===\nTraceback (most recent"
        ' call last):\n  File "x.py", line 1\n\tat org.apache.spark.Foo(Foo.scala:1)\nKeyError: 1'
    )
    assert reason_of(text) == "[STREAM_FAILED] Query failed: the topic 'cars' is not there. / KeyError: 1"


def test_an_error_of_a_task_is_what_python_raised_there() -> None:
    text = (
        "[STREAM_FAILED] Query terminated: Job aborted due to stage failure.\norg.apache.spark.SparkException: no\n"
        'Traceback (most recent call last):\n  File "x.py", line 1, in read\n'
        "runnel.pipelines.errors.DataLoss: cars/0 is kept from 17 on, and 5 was to be read\n\tat org.apache.Foo.bar(1)"
    )
    assert reason_of(text) == "cars/0 is kept from 17 on, and 5 was to be read"


def test_what_spark_raises_becomes_a_sentence() -> None:
    from py4j.protocol import Py4JNetworkError
    from pyspark.errors import AnalysisException

    with pytest.raises(JobFailed, match="there is no column b"), plainly():
        raise AnalysisException("there is no column b")
    with pytest.raises(JobFailed, match="Spark's own process"), plainly():
        raise Py4JNetworkError("Answer from Java side is empty")


# --- following
@dataclass
class Report:
    json: str


@dataclass
class Query:
    """As much of Spark's query as `follow` looks at, with a life that was written down: what each look finds."""

    name: str = "q"
    looks: int = 3  # so often it is found active
    busy: int = 0  # so often it is found in the middle of a trigger
    failure: str | None = None
    reports: list[dict[str, Any]] = field(default_factory=lambda: [report(0, 10)])
    stopped: bool = False
    stopped_busy: bool = False

    @property
    def isActive(self) -> bool:
        self.looks -= 1
        return not self.stopped and self.looks >= 0

    @property
    def recentProgress(self) -> list[Report]:
        return [Report(json.dumps(each)) for each in self.reports]

    @property
    def status(self) -> dict[str, bool]:
        self.busy -= 1
        return {"isTriggerActive": self.busy >= 0}

    def exception(self) -> Exception | None:
        return ValueError(self.failure) if self.failure and self.looks < 0 else None

    def stop(self) -> None:
        self.stopped, self.stopped_busy = True, self.busy > 0


def followed(queries: list[Query], stop: Event | None = None) -> list[Step]:
    steps: list[Step] = []
    follow(queries, steps.append, stop or Event())  # type: ignore[arg-type]
    return steps


def test_queries_that_end_are_followed_to_their_end() -> None:
    steps = followed([Query("a"), Query("b", looks=1)])
    assert sorted(step.query for step in steps) == ["a", "b"]


def test_a_failure_stops_the_others_and_is_raised_with_its_reason() -> None:
    bad, good = Query("bad", looks=2, failure="the disk is full"), Query("good", looks=1000)
    with pytest.raises(JobFailed, match="the disk is full"):
        followed([bad, good])
    assert good.stopped


def test_a_stop_waits_for_the_moment_between_two_triggers() -> None:
    query, stop = Query(looks=1000, busy=5), Event()
    stop.set()
    followed([query], stop)
    assert query.stopped
    assert not query.stopped_busy


def test_a_second_stop_does_not_wait() -> None:
    class Impatient(Event):
        """Asked again at once."""

        def clear(self) -> None:
            pass

    query, stop = Query(looks=1000, busy=10**6), Impatient()
    stop.set()
    followed([query], stop)
    assert query.stopped_busy
