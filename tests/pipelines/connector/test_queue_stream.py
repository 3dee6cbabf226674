"""Queues as a stream, as Spark drives it: what is accepted when, what a restart does, and leases that run out."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from pyspark.sql.types import StructType

from runnel.client.sync import Queue, QueueMessage, Runnel, connect
from runnel.pipelines.connector.arrow.columns import default_schema
from runnel.pipelines.connector.leasing.queue_stream import QueueStream, queue_stream
from runnel.pipelines.errors import BadOption, UnknownOption
from runnel.testing.process import BrokerProcess

NUMBERS = count()
LIMIT_S = 60.0
LONG = "10m"
SCHEMA: StructType = default_schema()


@pytest.fixture
def runnel(broker: BrokerProcess) -> Iterator[Runnel]:
    with connect(broker.kafka) as connected:
        yield connected


@pytest.fixture
def queue(runnel: Runnel) -> Queue:
    """A queue of one partition, with messages 0 to 9."""
    made = runnel.queue(f"spark-{next(NUMBERS)}")
    made.create(partitions=1, retry_backoff_ms=1)
    for number in range(10):
        made.send(str(number))
    return made


class Driver:
    """Does with a stream what Spark does; a new one on the same `offsets` is a restart."""

    def __init__(self, broker: BrokerProcess, queue: Queue, **options: str) -> None:
        given = {"runnel.brokers": broker.kafka, "queues": queue.name, "lease": LONG, **options}
        self.stream: QueueStream = queue_stream(given, SCHEMA)
        self.start: Any = self.stream.initialOffset()

    def restarted(self, other: "Driver") -> "Driver":
        self.start = other.start
        return self

    def plan(self) -> Any:
        """The offset of the next batch, as it comes back from the checkpoint."""
        return json.loads(json.dumps(self.stream.latestOffset(self.start, self.stream.getDefaultReadLimit())))

    def rows(self, end: Any) -> list[str]:
        tasks = self.stream.partitions(self.start, end)
        found = [row for task in tasks for batch in self.stream.read(task) for row in batch.to_pylist()]
        return sorted(row["value"].decode() for row in found)

    def batch(self) -> list[str]:
        """One batch, kept by the sink and by Spark."""
        end = self.plan()
        rows = self.rows(end)
        self.start = end
        return rows

    def close(self) -> None:
        self.stream.stop()


@pytest.fixture
def drive(broker: BrokerProcess, queue: Queue) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def driver(**options: str) -> Driver:
        made.append(Driver(broker, queue, **options))
        return made[-1]

    yield driver
    for each in made:
        each.close()


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def settled(queue: Queue) -> int:
    return sum(partition.accepted for partition in queue.describe().partitions)


def leased(queue: Queue) -> int:
    return sum(partition.leased for partition in queue.describe().partitions)


def drained(driver: Driver, into: list[str]) -> bool:
    """Take one batch more; never true, so that it is asked again."""
    into += driver.batch()
    return False


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_messages_are_accepted_when_the_next_batch_is_planned(queue: Queue, drive: Callable[..., Driver]) -> None:
    driver = drive(maxOffsetsPerTrigger="4")
    assert driver.batch() == numbers(0, 4)
    assert (leased(queue), settled(queue)) == (4, 0)
    assert driver.batch() == numbers(4, 8)
    assert (leased(queue), settled(queue)) == (4, 4)
    assert driver.batch() == numbers(8, 10)
    assert driver.plan() == driver.start, "nothing is left"
    assert driver.plan() == driver.start
    assert (leased(queue), settled(queue)) == (0, 10)
    queue.send("10")
    assert driver.batch() == ["10"]


def test_a_batch_that_is_repeated_brings_the_same(queue: Queue, drive: Callable[..., Driver]) -> None:
    driver = drive(maxOffsetsPerTrigger="4")
    end = driver.plan()
    assert driver.rows(end) == driver.rows(end) == numbers(0, 4)


def test_a_restart_before_the_batch_was_committed_goes_on_with_its_lease(
    queue: Queue, drive: Callable[..., Driver]
) -> None:
    first = drive(maxOffsetsPerTrigger="4")
    end = first.plan()  # Spark wrote it down, and was killed
    second = drive(maxOffsetsPerTrigger="4").restarted(first)
    assert second.rows(end) == numbers(0, 4)
    second.start = end
    assert second.batch() == numbers(4, 8)
    assert settled(queue) == 4


def test_a_restart_after_the_batch_was_committed_accepts_it(queue: Queue, drive: Callable[..., Driver]) -> None:
    first = drive(maxOffsetsPerTrigger="4")
    first.batch()
    second = drive(maxOffsetsPerTrigger="4").restarted(first)
    assert second.batch() == numbers(4, 8)
    assert settled(queue) == 4


def test_a_restart_between_accepting_and_writing_down_the_next_batch_loses_nothing(
    queue: Queue, drive: Callable[..., Driver]
) -> None:
    first = drive(maxOffsetsPerTrigger="4", lease="1s")
    first.batch()
    assert first.plan() != first.start, "accepted 0 to 3, leased 4 to 7; nobody heard of it"
    first.close()
    second = drive(maxOffsetsPerTrigger="100").restarted(first)
    found: list[str] = []
    while len(found) < 6:
        found += second.batch()
    assert sorted(found) == numbers(4, 10)


def test_a_lease_is_extended_while_spark_works(queue: Queue, drive: Callable[..., Driver]) -> None:
    driver = drive(maxOffsetsPerTrigger="4", lease="1s")
    driver.batch()
    assert sorted(message.text for message in queue.receive(10)) == numbers(4, 10)
    assert queue.receive(10, wait=1.5) == [], "longer than the lease, 0 to 3 are nobody else's"
    driver.plan()
    assert settled(queue) == 4


def test_what_ran_out_before_it_was_accepted_comes_again_and_makes_no_second_row(
    queue: Queue, drive: Callable[..., Driver]
) -> None:
    first = drive(maxOffsetsPerTrigger="4", lease="1s")
    first.batch()
    first.close()
    eventually(lambda: leased(queue) == 0)
    second = drive(maxOffsetsPerTrigger="100").restarted(first)
    found: list[str] = []
    eventually(lambda: drained(second, found) or settled(queue) == 10)
    assert sorted(found) == numbers(4, 10)


def test_what_another_consumer_took_meanwhile_is_its_own(queue: Queue, drive: Callable[..., Driver]) -> None:
    first = drive(maxOffsetsPerTrigger="4", lease="1s")
    end = first.plan()
    first.close()
    taken: list[QueueMessage] = []
    while len(taken) < 10:
        taken += queue.receive(10, wait=5)
    second = drive().restarted(first)
    assert second.rows(end) == numbers(0, 4), "the batch was written down: it brings what it brought"
    second.start = end
    assert second.plan() == end
    for message in taken:
        message.accept()
    assert settled(queue) == 10


def test_available_now_takes_what_was_there(queue: Queue, drive: Callable[..., Driver]) -> None:
    driver = drive(maxOffsetsPerTrigger="4")
    driver.stream.prepareForTriggerAvailableNow()
    assert driver.batch() == numbers(0, 4)
    for number in range(10, 20):
        queue.send(str(number))
    assert driver.batch() == numbers(4, 8)
    assert driver.batch() == numbers(8, 10)
    assert driver.plan() == driver.start
    assert settled(queue) == 10


def test_messages_that_are_far_apart_are_read_each_for_itself(
    queue: Queue, drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.pipelines.connector.leasing.queue_stream.GAP_MAX", 1)
    held = queue.receive(8)
    for message in held[::2]:
        message.release(delay=0)
    driver = drive()
    found: list[str] = []
    while len(found) < 6:
        found += driver.batch()
    assert sorted(found) == ["0", "2", "4", "6", "8", "9"]


def test_a_filter_leases_what_passes(queue: Queue, drive: Callable[..., Driver], runnel: Runnel) -> None:
    runnel.send(queue.name, "big", key="wanted")
    assert drive(filter="key = 'wanted'").batch() == ["big"]


def test_several_queues_in_one_stream(runnel: Runnel, queue: Queue, drive: Callable[..., Driver]) -> None:
    other = runnel.queue(f"spark-{next(NUMBERS)}")
    other.create()
    other.send("other")
    driver = drive(queues=f"{queue.name}, {other.name}")
    assert driver.batch() == sorted([*numbers(0, 10), "other"])
    driver.plan()
    assert (settled(queue), settled(other)) == (10, 1)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"queues": " , "}, BadOption, "name queues"),
        ({"queues": "q", "lease": "10ms"}, BadOption, "lease"),
        ({"queues": "q", "subscribe": "t"}, UnknownOption, "subscribe"),
        ({"queues": "q", "startingOffsets": "latest"}, UnknownOption, "startingOffsets"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        queue_stream(options, SCHEMA)
