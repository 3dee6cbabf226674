"""How far the queries of a job are, and their end.

Rule 1: what Spark reports of a micro-batch is told once, as a `Step`; reports of idleness are not told.
Rule 2: a query that fails takes the others of its job with it, and its reason is raised as `JobFailed`.
Rule 3: of a batch job, which has no micro-batches, the tasks at work are told now and then, if anything changed.
Rule 4: a stop is asked for, and done between two triggers where there is such a moment within `STOP_WAIT_S`; asked
        again, it is done at once. Either is safe: what a batch had not published, the next run does again.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.model.errors import RunnelError

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.25  # between two looks at the queries
WATCH_S = 3.0  # between two looks at the tasks of a batch job
STOP_WAIT_S = 30.0  # for a moment between two triggers
TRACES = ("at ", "File ", "Traceback", "=== ", "JVM stacktrace")  # how lines begin that tell people nothing
PYTHON_ERROR = re.compile(r"^(?:(?!org\.|java\.)[a-z_]\w*\.)+[A-Z]\w+: (.+)$", re.MULTILINE)


class JobFailed(RunnelError):
    """A query of a job ended with an error."""


@dataclass(frozen=True, slots=True)
class Step:
    """One micro-batch, done."""

    query: str
    batch: int
    rows: int
    rows_total: int  # of this run
    rows_per_s: float
    took_ms: int
    behind: int | None  # messages that waited when it was planned; None: its source does not say
    at: str  # when it began, ISO 8601


class Tally:
    """Spark's reports of one query, turned into steps."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._batch = -1
        self._rows = 0

    def take(self, reports: Sequence[Mapping[str, Any]]) -> list[Step]:
        """The steps among these reports that were not told yet."""
        return [step for report in reports if (step := self._step(report)) is not None]

    def _step(self, report: Mapping[str, Any]) -> Step | None:
        batch, durations = int(report["batchId"]), report.get("durationMs", {})
        if batch <= self._batch or "addBatch" not in durations:  # an idle trigger runs no batch
            return None
        self._batch = batch
        self._rows += int(report["numInputRows"])
        return Step(
            query=self._query,
            batch=batch,
            rows=int(report["numInputRows"]),
            rows_total=self._rows,
            rows_per_s=float(report.get("processedRowsPerSecond") or 0.0),
            took_ms=int(durations.get("triggerExecution", 0)),
            behind=behind(report.get("sources", ())),
            at=str(report["timestamp"]),
        )


def behind(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Messages between where a batch ended and the end of the log, over all partitions."""
    known = [count for source in sources if (count := _behind(source)) is not None]
    return sum(known) if known else None


def _behind(source: Mapping[str, Any]) -> int | None:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if ends is None or latest is None:
        return None
    return sum(max(0, offset - ends.get(place, 0)) for place, offset in latest.items())


def _offsets(told: Any) -> dict[tuple[str, str], int] | None:
    """Offsets by topic and partition, from `{"topic": {"0": 5}}`; None if it is anything else."""
    value = json.loads(told) if isinstance(told, str) and told.startswith("{") else told
    if not isinstance(value, Mapping):
        return None
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in value.items():
        if topic.startswith("~"):  # what a source tells besides: no topic has such a name
            continue
        if not isinstance(partitions, Mapping) or not all(isinstance(each, int) for each in partitions.values()):
            return None
        found |= {(topic, partition): offset for partition, offset in partitions.items()}
    return found


# --- following
def follow(queries: "Sequence[StreamingQuery]", tell: Callable[[Step], None], stop: Event) -> None:
    """Tell every step until all queries ended by themselves, one failed, or a stop was asked for."""
    tallies = [(query, Tally(query.name or f"query {number}")) for number, query in enumerate(queries, 1)]
    try:
        while any(query.isActive for query in queries) and not stop.is_set():
            _tell_all(tallies, tell)
            _raise_failure(queries)
            stop.wait(LOOK_S)
        _stop_between(queries, stop)
    finally:
        for query in queries:
            query.stop()
    _tell_all(tallies, tell)
    _raise_failure(queries)


def _tell_all(tallies: "Sequence[tuple[StreamingQuery, Tally]]", tell: Callable[[Step], None]) -> None:
    for query, tally in tallies:
        for step in tally.take([json.loads(each.json) for each in query.recentProgress]):
            tell(step)


def _raise_failure(queries: "Sequence[StreamingQuery]") -> None:
    for query in queries:
        if (error := query.exception()) is not None:
            raise JobFailed(reason_of(str(error))) from error


def _stop_between(queries: "Sequence[StreamingQuery]", stop: Event) -> None:
    """Wait for a moment when no trigger is active; a second stop, or one that takes long, does not wait."""
    stop.clear()
    deadline = time.monotonic() + STOP_WAIT_S
    while any(query.isActive and query.status["isTriggerActive"] for query in queries):
        if stop.wait(0.02) or time.monotonic() > deadline:
            return


# --- batch jobs
class Tasks(NamedTuple):
    """Of the stages that are at work."""

    done: int
    all: int


def tasks_of(tracker: "StatusTracker") -> Tasks:
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    return Tasks(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))


@contextmanager
def watching(tracker: "StatusTracker", tell: Callable[[Tasks], None], every_s: float = WATCH_S) -> Iterator[None]:
    """Tell in the background how far the tasks are, for as long as the block lasts."""
    over = Event()

    def watch() -> None:
        before = Tasks(0, 0)
        while not over.wait(every_s):
            if (now := tasks_of(tracker)).all and now != before:
                tell(now)
                before = now

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


# --- errors
@contextmanager
def plainly() -> Iterator[None]:
    """Let what Spark raises be a sentence; what Runnel raises is one already."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise JobFailed(reason_of(str(error))) from error
    except Py4JError as error:
        raise JobFailed(f"Spark's own process failed or ended, its log says why: {reason_of(str(error))}") from error


def reason_of(text: str) -> str:
    """What an error tells people: what Python raised in a task, else the lines that are no traces."""
    raised = PYTHON_ERROR.findall(text)
    if raised:
        return str(raised[-1])
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(TRACES)]
    return " / ".join(dict.fromkeys(told[:3])) or "Spark gave no reason"
