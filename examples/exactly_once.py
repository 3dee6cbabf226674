"""Exactly once: a worker reads orders and writes invoices. It dies and starts again, and each order has one invoice.

    make run                                     in one terminal
    .venv/bin/python examples/exactly_once.py    in another

The invoices and the offsets of the orders they came from are one transaction: both count, or neither. What the worker
left undone when it died is aborted when its next life takes the same transactional id, and whoever reads committed
messages never sees it. This holds within the cluster: a worker that also sends a letter may send it twice.
"""

import asyncio
import os
import subprocess
import sys
import time

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.fetcher import FetchSettings
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from runnel.client.positions import START, bounds
from runnel.client.producer import Producer, ProducerSettings
from runnel.model.errors import TransactionAbortable
from runnel.shell.clock import SystemClock

COUNT = 20
DIES_AT = 13  # the worker dies when it has sent the invoice of this order


def connect() -> Cluster:
    return Cluster([os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")], clock=SystemClock())


async def produce(orders: str, invoices: str) -> None:
    async with connect() as cluster:
        await Admin(cluster).create_topics([NewTopic(orders, partitions=1), NewTopic(invoices, partitions=1)])
        async with Producer(cluster) as producer:
            for n in range(COUNT):
                await producer.send(orders, b"%d" % n)


async def work(orders: str, invoices: str, dies: bool) -> None:
    """Consume, transform, produce. A worker keeps its transactional id over its lives, and no two share one."""
    where = TopicPartition(orders, 0)
    sending = ProducerSettings(transactional_id=f"{orders}.worker-1")
    reading = GroupConsumerSettings(group=GroupSettings(instance_id="worker-1"), commit_ms=None)
    async with (
        connect() as cluster,
        Producer(cluster, sending) as producer,  # from here on, an earlier life of this worker can write no more
        GroupConsumer(cluster, f"{orders}.workers", [orders], reading) as consumer,
    ):
        while consumer.positions.get(where, 0) < COUNT:
            messages = await consumer.poll(count_max=5)
            if not messages:
                continue
            try:
                async with producer.transaction():
                    for message in messages:
                        await producer.send(invoices, b"invoice of order " + (message.value or b""))
                        if dies and message.offset == DIES_AT:
                            await producer.flush()
                            os._exit(1)  # as if the power went: what was sent is in the log
                    await producer.send_offsets(consumer.positions, consumer.seat)
            except TransactionAbortable as reason:
                print(f"do it again: {reason}")
                await consumer.rewind()


async def read(topic: str, isolation: int) -> list[str]:
    """All there is to be read."""
    where = TopicPartition(topic, 0)
    found: list[str] = []
    async with connect() as cluster, Consumer(cluster, FetchSettings(isolation=isolation)) as consumer:
        end = (await bounds(cluster, [where], isolation=isolation))[where].end
        await consumer.assign({where: START})
        while consumer.positions[where] < end:
            found += [(message.value or b"").decode() for message in await consumer.poll()]
    return found


def run_worker(*arguments: str) -> int:
    """The worker in a process of its own; its exit code."""
    return subprocess.run([sys.executable, __file__, *arguments]).returncode


def main() -> None:
    run = time.time_ns()
    orders, invoices = f"orders-{run}", f"invoices-{run}"
    asyncio.run(produce(orders, invoices))
    print(f"sent {COUNT} orders to {orders}")
    code = run_worker(orders, invoices, "--dies")
    written = asyncio.run(read(invoices, READ_UNCOMMITTED))
    committed = asyncio.run(read(invoices, READ_COMMITTED))
    print(f"the worker died (exit code {code}): {len(written)} invoices are written, {len(committed)} are committed")
    run_worker(orders, invoices)
    written = asyncio.run(read(invoices, READ_UNCOMMITTED))
    committed = asyncio.run(read(invoices, READ_COMMITTED))
    print(f"started again, it finished: {len(written)} are written, {len(committed)} are committed")
    exact = committed == [f"invoice of order {n}" for n in range(COUNT)]
    print(f"each order has exactly one invoice, in order: {exact}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1], sys.argv[2], "--dies" in sys.argv))
    else:
        main()
