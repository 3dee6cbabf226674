"""What tasks and the driver do with rows, against a real broker and without Spark."""

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType
from tests.pipelines.reading import WAIT_S, make_topic, read_committed, values

from runnel.client import calls as calls_module
from runnel.client.admin import Admin
from runnel.client.sinks import Sinks
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.connector.writing import later
from runnel.pipelines.connector.writing.later import TooManyLater
from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.pipelines.connector.writing.stream_writer import stream_writer
from runnel.pipelines.connector.writing.write_options import WriteOptions
from runnel.pipelines.connector.writing.writer import PlainWriter, publish, running_batch, withdraw, writer
from runnel.pipelines.connector.writing.written import Attempt, Written, write_at_least_once, write_exactly_once
from runnel.pipelines.errors import BadOption
from runnel.testing.process import BrokerProcess


class Job:
    """A job that writes batches of rows, task by task."""

    def __init__(self, gate: Gateway, brokers: str, topic: str, **options: str) -> None:
        self.gate = gate
        self.brokers, self.topic = brokers, topic
        self.options = WriteOptions.batch({"runnel.brokers": brokers, "topic": topic, **options})
        self._attempts = 0

    def task(self, batch: int, number: int, *rows: str, query: str = "q", **columns: Any) -> Written:
        return self.attempt(batch, number, iter([table(rows, **columns)]), query, tuple(columns))

    def attempt(
        self, batch: int, partition: int, found: Iterator[pa.RecordBatch], query: str = "q", more: tuple[str, ...] = ()
    ) -> Written:
        self._attempts += 1
        attempt = Attempt(self.topic, batch, partition, self._attempts, query)
        layout = Layout({name: place for place, name in enumerate(("value", *more))})
        return write_exactly_once(self.options, layout, attempt, found)

    def publish(self, *messages: Written | None) -> None:
        publish(self.options, list(messages))

    def seen(self) -> list[str]:
        return values(self.brokers, self.topic)

    def nothing_stays_open(self) -> bool:
        """An abort is carried out soon after it was promised."""
        return soon(lambda: not self.gate.run(Sinks(self.gate.cluster).describe(self.topic)).attempts)


def soon(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def table(rows: tuple[str, ...], **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(rows), **{name: pa.array(column) for name, column in columns.items()}})


@pytest.fixture
def job(gate: Gateway, broker: BrokerProcess, name: str) -> Job:
    topic = name.partition("--")[2]
    make_topic(broker.kafka, topic)
    return Job(gate, broker.kafka, topic)


def test_rows_are_seen_when_their_batch_is_published_and_not_before(job: Job) -> None:
    told = [job.task(0, 0, "a", "b"), job.task(0, 1, "c")]
    assert job.seen() == []
    job.publish(*told)
    assert job.seen() == ["a", "b", "c"]
    assert [one.rows for one in told] == [2, 1]


def test_a_batch_that_was_published_is_not_written_again(job: Job) -> None:
    job.publish(job.task(0, 0, "a"))
    again = job.task(0, 0, "a")
    assert again.handle is None
    job.publish(again)
    assert job.seen() == ["a"]


def test_of_two_attempts_at_one_task_one_counts(job: Job) -> None:
    """Speculation, or a retry whose first attempt goes on unseen."""
    job.task(0, 0, "a")
    job.publish(job.task(0, 0, "a"))
    assert job.seen() == ["a"]
    assert job.nothing_stays_open()


def test_a_task_that_fails_leaves_nothing_open(job: Job) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield table(("a",))
        raise OSError("the row after this one can't be read")

    with pytest.raises(OSError, match="can't be read"):
        job.attempt(0, 0, failing())
    assert job.nothing_stays_open()
    job.publish(job.task(0, 0, "a"))
    assert job.seen() == ["a"]


def test_what_is_withdrawn_is_never_seen(job: Job) -> None:
    told = [job.task(0, 0, "a"), None]
    withdraw(job.options, list(told))
    assert job.nothing_stays_open()
    with pytest.raises(RunnelError):
        job.publish(*told)
    assert job.seen() == []


def test_tasks_without_rows_ask_nobody(job: Job) -> None:
    empty = job.attempt(0, 0, iter([table(())]))
    assert empty == Written()
    job.publish(empty, None)
    job.publish(job.task(1, 0, "a"), empty)
    assert job.seen() == ["a"]


def test_another_query_cannot_use_the_same_sink(job: Job) -> None:
    job.publish(job.task(0, 0, "a"))
    with pytest.raises(RunnelError, match="another"):
        job.task(0, 0, "b", query="another query")
    assert job.seen() == ["a"]


def test_rows_of_many_batches_of_arrow(job: Job) -> None:
    rows = [f"{n:05}" for n in range(3_000)]
    batches = (table(tuple(rows[at : at + 700])) for at in range(0, 3_000, 700))
    job.publish(job.attempt(0, 0, batches))
    assert job.seen() == rows


def test_at_least_once_is_there_at_the_end_of_the_task_and_again_at_the_end_of_the_next(job: Job) -> None:
    options = WriteOptions.batch({"runnel.brokers": job.brokers, "topic": job.topic, "semantics": "at-least-once"})
    layout = Layout({"value": 0})
    for _ in range(2):
        assert write_at_least_once(options, layout, iter([table(("a", "b"))])).rows == 2
        PlainWriter(options, layout).commit([None])
    assert job.seen() == ["a", "a", "b", "b"]


def test_what_the_broker_refuses_fails_the_task_and_not_the_next_one(job: Job) -> None:
    options = WriteOptions.batch({"runnel.brokers": job.brokers, "topic": job.topic, "semantics": "at-least-once"})
    with pytest.raises(RunnelError, match="MESSAGE_TOO_LARGE"):
        write_at_least_once(options, Layout({"value": 0}), iter([table(("x" * 3_000_000,))]))
    write_at_least_once(options, Layout({"value": 0}), iter([table(("a",))]))
    assert job.seen() == ["a"]


# --- delivered later
def until(job: Job, wanted: list[str]) -> None:
    soon(lambda: job.seen() == wanted)
    assert job.seen() == wanted


def test_rows_that_come_later_wait_for_their_batch_and_for_their_time(job: Job) -> None:
    told = job.task(0, 0, "at once", "soon", "much later", delay=[None, 1, 3_600_000])
    assert [row.value for row in told.later] == [b"soon", b"much later"]
    assert job.seen() == []
    job.publish(told)
    until(job, ["at once", "soon"])


def test_rows_that_come_later_come_once_though_their_batch_is_run_again(job: Job) -> None:
    job.publish(job.task(0, 0, "x", "y", "y", delay=[1, 2, 2]))
    until(job, ["x", "y", "y"])
    job.publish(job.task(0, 0, "x", "y", "y", delay=[1, 2, 2]))
    job.publish(job.task(1, 0, "end", delay=[1]))
    until(job, ["end", "x", "y", "y"])


def test_a_driver_that_died_before_all_were_given_gives_them_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names count from where the partition ended, however short the time is for which a broker looks back."""
    job.gate.run(Admin(job.gate.cluster).alter_config(job.topic, set_={"dedup.window.ms": "1"}))
    monkeypatch.setattr(later, "SEND_ROWS_MAX", 1)
    real, calls = calls_module.call_until_done, 0

    async def dying(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("killed")
        return await real(*args)

    monkeypatch.setattr(later, "call_until_done", dying)
    rows, delays = ("a", "b", "c", "d"), [1, 1, 1, 1]
    with pytest.raises(OSError, match="killed"):
        job.publish(job.task(0, 0, *rows, delay=delays))
    until(job, ["a", "b"])
    job.publish(job.task(0, 0, *reversed(rows), delay=delays))
    job.publish(job.task(1, 0, "end", delay=[1]))
    until(job, ["a", "b", "c", "d", "end"])


def test_rows_that_come_later_go_to_the_partitions_of_their_keys(job: Job) -> None:
    job.publish(job.task(0, 0, "a", "b", delay=[1, 1], key=["car", "car"], partition=[None, 2]))
    until(job, ["a", "b"])
    found = {message.value(): message for message in read_committed(job.brokers, job.topic)}
    assert found[b"b"].partition() == 2
    assert found[b"a"].key() == b"car"


def test_more_rows_that_come_later_than_the_driver_can_hold_are_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "ROWS_MAX", 2)
    with pytest.raises(TooManyLater, match="maxOffsetsPerTrigger"):
        job.task(0, 0, "a", "b", "c", delay=[1, 1, 1])
    assert job.nothing_stays_open()


def test_at_least_once_rows_may_come_later_too(job: Job) -> None:
    options = WriteOptions.batch({"runnel.brokers": job.brokers, "topic": job.topic, "semantics": "at-least-once"})
    write_at_least_once(options, Layout({"value": 0, "delay": 1}), iter([table(("a", "b"), delay=[None, 1])]))
    until(job, ["a", "b"])


def test_there_is_nothing_to_write_for_a_batch_that_was_published(job: Job) -> None:
    job.publish(job.task(3, 0, "a"))
    begun = job.gate.run(Sinks(job.gate.cluster).begin(job.topic, 2, 0, 1))
    assert begun.decided
    with pytest.raises(InvalidRequest, match="published already"):
        job.gate.run(Sinks(job.gate.cluster).writing(begun).__aenter__())


# --- which writer does it
@pytest.mark.parametrize("make", [writer, stream_writer])
def test_what_spark_is_handed_travels_to_the_tasks(make: Callable[..., object]) -> None:
    schema = StructType().add("value", StringType())
    for semantics in ("exactly-once", "at-least-once"):
        made = make({"topic": "t", "semantics": semantics}, schema, False)
        assert type(pickle.loads(pickle.dumps(made))) is type(made)
    with pytest.raises(BadOption, match="use append"):
        make({"topic": "t"}, schema, True)


def test_every_write_has_a_name_of_its_own_unless_it_is_given_one() -> None:
    schema = StructType().add("value", StringType())
    own = {vars(writer({"topic": "t"}, schema, False))["_own"] for _ in range(3)}
    assert len(own) == 3
    assert vars(writer({"topic": "t", "sinkId": "s", "batchId": "1"}, schema, False))["_own"] == ""


def test_a_sink_with_a_name_needs_a_batch_outside_of_micro_batches() -> None:
    with pytest.raises(BadOption, match="needs the batch's number"):
        running_batch()
