"""Messages in transactions of so many, or as many without: flushed at the same places, so that only the transaction
differs.

Two clients: librdkafka, which speaks the protocol of before KIP-890, and Runnel's own, which speaks the new one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

import confluent_kafka
from confluent_kafka import admin

from bench.load import REPLY_S_MAX, Refused, payload
from runnel.client.cluster import Cluster
from runnel.client.producer import Producer
from runnel.client.sender import ProducerSettings
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

STATE = "__transaction_state"
kinds: Any = admin  # its names are not typed as exported


@dataclass(frozen=True, slots=True)
class Job:
    """Groups of `per` messages over all partitions in turn, for so long; each group a transaction, if it is to be."""

    address: str
    topic: str
    partitions: int
    size: int
    per: int
    seconds: float
    transactional: bool


class Done(NamedTuple):
    messages: int
    seconds: float
    commits: list[float]  # seconds that each commit took, when all of its messages had been acknowledged


def through_librdkafka(job: Job) -> Done:
    named = {"transactional.id": uuid4().hex} if job.transactional else {}
    common = {"bootstrap.servers": job.address, "enable.idempotence": True, "linger.ms": 5, "log_level": 2}
    producer: Any = confluent_kafka.Producer({**common, **named})
    value, failed = payload(job.size), list[object]()
    if job.transactional:
        producer.init_transactions(REPLY_S_MAX)

    def group() -> float:
        if job.transactional:
            producer.begin_transaction()
        for number in range(job.per):
            place = number % job.partitions
            producer.produce(job.topic, value, None, place, lambda error, _: failed.append(error) if error else None)
        if producer.flush(REPLY_S_MAX) or failed:
            raise Refused(f"librdkafka could not deliver to {job.topic}: {failed[:1]}")
        begun = time.perf_counter()
        if job.transactional:
            producer.commit_transaction(REPLY_S_MAX)
        return time.perf_counter() - begun

    group()  # connections, metadata
    commits, begun = [], time.perf_counter()
    while time.perf_counter() - begun < job.seconds:
        commits.append(group())
    return Done(len(commits) * job.per, time.perf_counter() - begun, commits)


def through_own(job: Job) -> Done:
    return asyncio.run(_own(job))


async def _own(job: Job) -> Done:
    settings = ProducerSettings(transactional_id=uuid4().hex if job.transactional else None)
    cluster = Cluster([job.address], clock=SystemClock(), rng=SystemRng())
    async with cluster, Producer(cluster, settings) as producer:
        group = _group(producer, job)
        await group()
        commits, begun = [], time.perf_counter()
        while time.perf_counter() - begun < job.seconds:
            commits.append(await group())
        return Done(len(commits) * job.per, time.perf_counter() - begun, commits)


def _group(producer: Producer, job: Job) -> Callable[[], Awaitable[float]]:
    value = payload(job.size)

    async def group() -> float:
        if job.transactional:
            await producer.begin()
        for number in range(job.per):
            await producer.send(job.topic, value, partition=number % job.partitions)
        await producer.flush()
        begun = time.perf_counter()
        if job.transactional:
            await producer.commit()
        return time.perf_counter() - begun

    return group


def prepare(address: str, config: dict[str, str]) -> None:
    """Let there be the topic where coordinators keep their state, with the same guarantee as the messages have."""
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": uuid4().hex, "log_level": 2}
    )
    producer.init_transactions(REPLY_S_MAX)
    if not config:
        return
    set_to = kinds.AlterConfigOpType.SET
    entries = [kinds.ConfigEntry(name, value, incremental_operation=set_to) for name, value in config.items()]
    topic = kinds.ConfigResource(kinds.ResourceType.TOPIC, STATE, incremental_configs=entries)
    client = kinds.AdminClient({"bootstrap.servers": address})
    [altered] = client.incremental_alter_configs([topic]).values()
    altered.result(REPLY_S_MAX)
