"""Sending the cars' reports to a topic, at the time they are due; or all of the past at once.

Rule 1: what is sent is sent once: the producer is idempotent, and waits for all replicas.
Rule 2: memory is bounded by the producer's buffer: a cluster that is slow makes cars late, and loses nothing.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from runnel.client.admin import NewTopic
from runnel.client.connecting import connect
from runnel.client.producer import Producer, ProducerSettings
from runnel.pipelines.jobs.fleet.cars import FleetPlan, reports
from runnel.pipelines.jobs.fleet.topics import CARS_PARTITIONS, make

TELL_EVERY_S = 5.0
NAP_S = 0.05  # sends are due one by one; waking for each would cost more than sending


@dataclass(frozen=True, slots=True)
class SendConf:
    brokers: str
    topic: str
    plan: FleetPlan
    partitions: int = CARS_PARTITIONS
    for_ms: int | None = None  # None: for ever
    at_once: bool = False  # the last `for_ms`, sent without waiting


async def send(conf: SendConf, stop: asyncio.Event, tell: Callable[[int], None]) -> int:
    """Send until stopped or done; how many reports it were. `tell` hears the number now and then."""
    async with connect(*conf.brokers.split(","), name="runnel-fleet") as runnel:
        await make(runnel.admin, [NewTopic(conf.topic, conf.partitions)])
        async with Producer(runnel.cluster, ProducerSettings(linger_ms=20)) as producer:
            return await _send(conf, producer, stop, tell)


async def _send(conf: SendConf, producer: Producer, stop: asyncio.Event, tell: Callable[[int], None]) -> int:
    now_ms = time.time_ns() // 1_000_000
    begin_ms = now_ms - (conf.for_ms or 0) if conf.at_once else now_ms
    sent, told = 0, time.monotonic()
    for send_ms, report in reports(conf.plan, begin_ms):
        if stop.is_set() or (conf.for_ms is not None and send_ms >= begin_ms + conf.for_ms):
            break
        if not conf.at_once:
            await _until(send_ms, stop)
        await producer.send(conf.topic, report.value(), key=report.car.encode())
        sent += 1
        if time.monotonic() - told >= TELL_EVERY_S:
            told = time.monotonic()
            tell(sent)
    await producer.flush()
    return sent


async def _until(send_ms: int, stop: asyncio.Event) -> None:
    """Wait until then, or until asked to stop."""
    left_s = send_ms / 1000 - time.time()
    if left_s > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), max(left_s, NAP_S))
