"""What `runnel bench` does: the measuring itself."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any

from runnel.cli.output import progress
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.errors import TopicMissing
from runnel.client.fetcher import FetchSettings
from runnel.client.metadata import TopicPartition
from runnel.client.positions import END, START, bounds
from runnel.client.producer import ACKS_ALL, Producer, ProducerSettings
from runnel.model.errors import RequestTimedOut
from runnel.model.limits import MIB
from runnel.record import records
from runnel.record.compression import Compression
from runnel.record.records import Record

ARRIVAL_S = 30.0  # a message that did not arrive by then is lost
DRAW_S = 0.1  # between two looks at the progress
QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


@dataclass(frozen=True, slots=True)
class Throughput:
    """What `bench produce` sends."""

    topic: str
    count: int
    message_bytes: int
    batch_bytes: int
    acks: str
    compression: Compression
    in_flight: int

    @property
    def per_batch(self) -> int:
        return max(1, min(self.count, self.batch_bytes // self.message_bytes))


@dataclass(frozen=True, slots=True)
class Pace:
    """What `bench latency` sends."""

    topic: str
    count: int
    message_bytes: int
    rate: int | None
    acks: str


def quantiles(samples_s: Sequence[float]) -> dict[str, float]:
    """p50, p99, p99.9 and the largest, in milliseconds."""
    ordered = sorted(samples_s)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {name: round(ordered[min(last, int(part * len(ordered)))] * 1000, 3) for name, part in QUANTILES}


def _note_time(samples: list[float], since: float) -> None:
    samples.append(time.perf_counter() - since)


def result_of(count: int, size_bytes: int, seconds: float, message_bytes: int, **more: Any) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "messages": count,
        "message_bytes": message_bytes,
        "seconds": round(seconds, 6),
        "messages_per_s": round(count / seconds, 1),
        "mb_per_s": round(size_bytes / seconds / 1e6, 3),
        **more,
    }


async def ensure_topic(cluster: Cluster, topic: str) -> list[TopicPartition]:
    """The partitions of a topic, which is created with one if it is not there."""
    admin = Admin(cluster)
    try:
        found = await admin.topics([topic])
    except TopicMissing:
        await admin.create_topics([NewTopic(topic, partitions=1)])
        found = {topic: await cluster.topic(topic, create=True)}
    return [TopicPartition(topic, n) for n in found[topic].partitions]


class _Meter:
    """Progress on stderr: how much is done, and how fast it goes."""

    def __init__(self, description: str, total: int) -> None:
        self._progress = progress()
        self._task = self._progress.add_task(description, total=total, rate="")
        self._began = self._drawn = time.perf_counter()
        self._progress.start()

    def show(self, done: int, size_bytes: int) -> None:
        """Draw it, unless it was drawn just now."""
        now = time.perf_counter()
        if now - self._drawn < DRAW_S:
            return
        self._drawn = now
        seconds = now - self._began
        rate = f"{done / seconds:,.0f} messages/s  {size_bytes / seconds / 1e6:,.1f} MB/s"
        self._progress.update(self._task, completed=done, rate=rate)

    def stop(self) -> float:
        """The seconds it took."""
        self._progress.stop()
        return time.perf_counter() - self._began


# --- produce
def encoded_batch(count: int, message_bytes: int, compression: Compression, now_ms: int) -> bytes:
    """A batch of so many messages; their content repeats a little, as real content does."""
    words = b"".join(b"%08x" % (n * 2654435761 % 2**32) for n in range(message_bytes // 8 + 1))
    content = [Record(n, now_ms, None, words[n % 8 :][:message_bytes].ljust(message_bytes, b".")) for n in range(count)]
    return records.encode(content, compression=compression)


async def produce_run(cluster: Cluster, plan: Throughput) -> dict[str, Any]:
    partitions = await ensure_topic(cluster, plan.topic)
    whole, left = divmod(plan.count, plan.per_batch)
    batch, last = (
        encoded_batch(count, plan.message_bytes, plan.compression, cluster.clock.wall_ms())
        for count in (plan.per_batch, left or plan.per_batch)
    )
    settings = ProducerSettings(
        acks=ACKS_ALL if plan.acks == "all" else int(plan.acks),
        idempotent=False,
        linger_ms=0,
        in_flight_max=plan.in_flight,
        request_bytes_max=max(len(batch), 1 * MIB),
        buffer_bytes_max=(2 * plan.in_flight + 2) * len(batch),
    )
    took: list[float] = []
    async with Producer(cluster, settings) as producer:
        meter = _Meter("produce", plan.count)
        try:
            for n, each in enumerate(chain(repeat(batch, whole), [last] if left else [])):
                began = time.perf_counter()
                delivery = await producer.send_batch(plan.topic, partitions[n % len(partitions)].partition, each)
                delivery.add_done_callback(partial(_note_time, took, began))
                meter.show(producer.delivered, producer.delivered * plan.message_bytes)
            await producer.flush()
        finally:
            seconds = meter.stop()
    more = {"batch_bytes": len(batch), "acks": plan.acks, "ack_ms": quantiles(took)}
    return result_of(plan.count, plan.count * plan.message_bytes, seconds, plan.message_bytes, **more)


# --- consume
async def consume_run(cluster: Cluster, topic: str, count: int | None, decode: bool) -> dict[str, Any]:
    partitions = [TopicPartition(topic, n) for n in (await Admin(cluster).topics([topic]))[topic].partitions]
    held = await bounds(cluster, partitions)
    total = sum(b.end - b.start for b in held.values())
    wanted = total if count is None else min(count, total)
    settings = FetchSettings(partition_bytes_max=4 * MIB, buffer_bytes_max=64 * MIB)
    done = size = 0
    async with Consumer(cluster, settings) as consumer:
        meter = _Meter("consume", wanted)
        try:
            await consumer.assign(dict.fromkeys(partitions, START))
            while done < wanted:
                batches = await consumer.poll_batches(timeout_ms=5_000)
                if not batches:
                    break
                for batch in batches:
                    done += len(records.decode(batch.data)) if decode else batch.header.count
                    size += batch.header.size
                meter.show(done, size)
        finally:
            seconds = meter.stop()
    return result_of(done, size, seconds, size // max(done, 1), decoded=decode)


# --- latency
async def latency_run(cluster: Cluster, plan: Pace) -> dict[str, Any]:
    partitions = await ensure_topic(cluster, plan.topic)
    where = partitions[0]
    settings = ProducerSettings(
        acks=ACKS_ALL if plan.acks == "all" else int(plan.acks), idempotent=plan.acks == "all", linger_ms=0
    )
    probe = _Probe(plan)
    async with Consumer(cluster) as consumer, Producer(cluster, settings) as producer:
        await consumer.assign({where: END})
        await producer.send(where.topic, b"\xff" * 8, partition=where.partition)  # connections are made, code is warm
        await producer.flush()
        listening = asyncio.create_task(probe.listen(consumer))
        meter = _Meter("latency", plan.count)
        try:
            await probe.send_all(producer, where, meter)
            async with asyncio.timeout(ARRIVAL_S):
                await listening
        except TimeoutError:
            raise RequestTimedOut(
                f"{len(probe.arrivals)} of {plan.count} messages arrived within {ARRIVAL_S:.0f} s at the consumer of "
                f"{where}: see whether others write to or trim the topic"
            ) from None
        finally:
            seconds = meter.stop()
            listening.cancel()
    return result_of(
        plan.count,
        plan.count * plan.message_bytes,
        seconds,
        plan.message_bytes,
        acks=plan.acks,
        rate=plan.rate,
        ack_ms=quantiles(probe.acks),
        arrival_ms=quantiles(probe.arrivals),
    )


class _Probe:
    """Messages that carry their number; when each was due, was acknowledged, and came back."""

    def __init__(self, plan: Pace) -> None:
        self.plan = plan
        self.due: list[float] = []
        self.acks: list[float] = []
        self.arrivals: list[float] = []

    async def listen(self, consumer: Consumer) -> None:
        while len(self.arrivals) < self.plan.count:
            for message in await consumer.poll(timeout_ms=1_000):
                now = time.perf_counter()
                number = int.from_bytes((message.value or b"")[:8], "big")
                if number < len(self.due):
                    self.arrivals.append(now - self.due[number])

    async def send_all(self, producer: Producer, where: TopicPartition, meter: _Meter) -> None:
        plan, began = self.plan, time.perf_counter()
        for number in range(plan.count):
            due = time.perf_counter() if plan.rate is None else began + number / plan.rate
            waiting = due - time.perf_counter()
            if waiting > 0:
                await asyncio.sleep(waiting)
            self.due.append(due)
            value = number.to_bytes(8, "big").ljust(plan.message_bytes, b".")
            delivery = await producer.send(where.topic, value, partition=where.partition)
            delivery.add_done_callback(partial(_note_time, self.acks, due))
            if plan.rate is None:
                await delivery
            meter.show(number, number * plan.message_bytes)
        await producer.flush()
