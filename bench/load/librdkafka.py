"""librdkafka through confluent-kafka: what most programs outside Java use to speak to a Kafka broker."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.load import REPLY_S_MAX, Outcome, Refused, payload
from bench.load.drive import Stopwatch, age, stamp

QUEUED_BYTES_MAX = 32 << 20  # in the client's queue; above it, we wait
NAP_S = 0.0001
IN_FLIGHT_MAX = 5  # as Java has it, and every idempotent producer: what is due meanwhile shares a batch
CHUNK = 5_000  # messages handed over in one call


@dataclass(frozen=True, slots=True)
class Bulk:
    """`total` messages of `size` bytes to (or from) one partition; after `seconds` no more are sent."""

    address: str
    topic: str
    partition: int
    acks: int
    total: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Paced:
    address: str
    topic: str
    acks: int
    size: int
    rate: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """A message to every partition of a topic, `rate` times a second, from when `begun` is written until `end` is."""

    address: str
    topic: str
    partitions: int
    size: int
    rate: float
    begun: str
    end: str


class Acked(NamedTuple):
    """One message: when it was due, on the monotonic clock, and the seconds from then to its acknowledgement."""

    partition: int
    due: float
    seconds: float


def _producer(address: str, acks: int, **more: Any) -> Any:
    settings = {"bootstrap.servers": address, "acks": acks, "log_level": 2, **more}
    return confluent_kafka.Producer(settings)


def _consumer(address: str, topic: str, partition: int, **more: Any) -> Any:
    settings = {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, "log_level": 2, **more}
    made = confluent_kafka.Consumer(settings)
    made.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    return made


def publish(job: Bulk) -> Outcome:
    """As fast as the client can, in the client's own batches of up to 1 MB."""
    errors: list[object] = []
    producer = _producer(
        job.address, job.acks, **{
            "linger.ms": 5, "batch.size": 1_000_000, "batch.num.messages": 10_000, "delivery.report.only.error": True,
            "queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 512 * 1024,
        }
    )  # fmt: skip
    producer.list_topics(job.topic, REPLY_S_MAX)
    room = QUEUED_BYTES_MAX // job.size
    chunk = [{"value": payload(job.size)} for _ in range(min(CHUNK, job.total, room // 2))]
    watch, sent = Stopwatch(), 0
    while sent < job.total and watch.seconds() < job.seconds:
        if len(producer) > room:
            producer.poll(0.001)
            continue
        sent += producer.produce_batch(job.topic, chunk, job.partition, lambda error, _: errors.append(error))
    if producer.flush(REPLY_S_MAX) or errors:
        raise Refused(f"librdkafka could not deliver to {job.topic}: {errors[:1]}")
    return watch.outcome(sent)


def read(job: Bulk) -> Outcome:
    """From the start of the partition, as fast as the client can, until all has come or the time is over."""
    consumer = _consumer(
        job.address, job.topic, job.partition, **{
            "fetch.max.bytes": 50 << 20, "max.partition.fetch.bytes": 4 << 20, "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 256 * 1024,
        }
    )  # fmt: skip
    watch, seen = Stopwatch(), 0
    while seen < job.total and watch.seconds() < job.seconds:
        messages = consumer.consume(10_000, 0.01)
        if problem := next((m.error() for m in messages if m.error()), None):
            raise Refused(f"librdkafka could not read {job.topic}: {problem}")
        seen += len(messages)
    outcome = watch.outcome(seen)
    consumer.close()
    return outcome


def pace(job: Paced) -> list[float]:
    """Send each message when it is due; gives the seconds from then to its acknowledgement."""
    producer = _producer(job.address, job.acks, **{"linger.ms": 0, "max.in.flight": IN_FLIGHT_MAX})
    producer.list_topics(job.topic, REPLY_S_MAX)
    latencies: list[float] = []
    total, step = int(job.rate * job.seconds), 1 / job.rate
    start = time.monotonic() + step

    def acknowledged(error: object, message: Any) -> None:
        if error:
            raise Refused(f"librdkafka could not deliver to {job.topic}: {error}")
        latencies.append(age(message.value()))

    for number in range(total):
        due = start + number * step
        while (left := due - time.monotonic()) > 0:
            _wait(producer, left)
        producer.produce(job.topic, payload(job.size, stamp(due)), None, 0, acknowledged)
    if producer.flush(REPLY_S_MAX):
        raise Refused(f"librdkafka could not deliver all of {job.topic} within {REPLY_S_MAX:.0f} s")
    return latencies


def watch(job: Watch) -> list[Acked]:
    """Send until told to end; every message is acknowledged in the end, or this fails."""
    producer = _producer(job.address, -1, **{"linger.ms": 0, "enable.idempotence": True})
    producer.list_topics(job.topic, REPLY_S_MAX)
    acked: list[Acked] = []
    begun = Path(job.begun)

    def acknowledged(error: object, message: Any) -> None:
        if error:
            raise Refused(f"librdkafka gave up a message to {job.topic}: {error}")
        seconds = age(message.value())
        acked.append(Acked(message.partition(), time.monotonic() - seconds, seconds))

    for due in _ticks(1 / job.rate, Path(job.end)):
        while (left := due - time.monotonic()) > 0:
            _wait(producer, left)
        for partition in range(job.partitions):
            producer.produce(job.topic, payload(job.size, stamp(due)), None, partition, acknowledged)
        if len(acked) > job.partitions and not begun.exists():
            begun.touch()
    if producer.flush(REPLY_S_MAX):
        raise Refused(f"librdkafka could not deliver all of {job.topic} within {REPLY_S_MAX:.0f} s")
    return acked


def _ticks(step: float, end: Path) -> Iterator[float]:
    """Times to come, at equal distances, until the file appears."""
    due = time.monotonic() + step
    while not end.exists():
        yield due
        due += step


def _wait(producer: Any, seconds: float) -> None:
    """Serve acknowledgements while waiting. librdkafka waits for whole milliseconds: below one it would spin."""
    if seconds >= 0.001:
        producer.poll(seconds)
    else:
        producer.poll(0)
        time.sleep(min(seconds, NAP_S))


def follow(job: Paced) -> list[float]:
    """Read while another process paces; gives the seconds from when each message was due to its arrival."""
    consumer = _consumer(job.address, job.topic, 0)
    total = int(job.rate * job.seconds)
    latencies: list[float] = []
    while len(latencies) < total:
        message = consumer.poll(REPLY_S_MAX)
        if message is None or message.error():
            raise Refused(f"librdkafka could not read {job.topic}: {message and message.error()}")
        latencies.append(age(message.value()))
    consumer.close()
    return latencies


def create_topics(
    address: str, topics: Sequence[str], partitions: int, replication: int, config: dict[str, str]
) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    wanted = [NewTopic(topic, partitions, replication, config=config) for topic in topics]
    for created in admin.create_topics(wanted, operation_timeout=REPLY_S_MAX, request_timeout=REPLY_S_MAX).values():
        created.result(REPLY_S_MAX)


def delete_topic(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    admin.delete_topics([topic], operation_timeout=REPLY_S_MAX)[topic].result(REPLY_S_MAX)
