"""At most once: a message may get lost, and is never handled twice.

    make run                                     in one terminal
    .venv/bin/python examples/at_most_once.py    in another

The producer asks for no answer, so it never sends anything again. The worker commits first and works then: what it was
working on when it died was committed, and nobody does it again. Good for what is soon worthless, such as measurements.
"""

import asyncio
import os
import subprocess
import sys
import time

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.positions import bounds
from runnel.client.producer import Producer, ProducerSettings
from runnel.shell.clock import SystemClock

COUNT = 20
DIES_AT = 6  # the worker dies before it has handled this one


def connect() -> Cluster:
    return Cluster([os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")], clock=SystemClock())


async def produce(topic: str) -> None:
    async with connect() as cluster:
        await Admin(cluster).create_topics([NewTopic(topic, partitions=1)])
        async with Producer(cluster, ProducerSettings(acks=0, idempotent=False)) as producer:
            for n in range(COUNT):
                await producer.send(topic, b"%d" % n)
        where = TopicPartition(topic, 0)
        async with asyncio.timeout(30):  # nobody tells us that they arrived: we look
            while (await bounds(cluster, [where]))[where].end < COUNT:
                await asyncio.sleep(0.05)


async def work(topic: str, dies: bool) -> None:
    """Commit, then handle. `instance_id` lets the worker's next life have its place at once."""
    where = TopicPartition(topic, 0)
    settings = GroupConsumerSettings(group=GroupSettings(instance_id="worker-1"), commit_ms=None)
    async with connect() as cluster, GroupConsumer(cluster, f"{topic}.workers", [topic], settings) as consumer:
        while consumer.positions.get(where, 0) < COUNT:
            messages = await consumer.poll(count_max=10)
            if messages:
                await consumer.commit()
            for message in messages:
                if dies and message.offset == DIES_AT:
                    os._exit(1)  # as if the power went
                print((message.value or b"").decode(), flush=True)


def run_worker(topic: str, *options: str) -> list[int]:
    """The worker in a process of its own; what it has handled."""
    done = subprocess.run([sys.executable, __file__, topic, *options], stdout=subprocess.PIPE, text=True)
    return [int(line) for line in done.stdout.split()]


def main() -> None:
    topic = f"at-most-once-{time.time_ns()}"
    asyncio.run(produce(topic))
    print(f"sent {COUNT} messages to {topic}")
    first = run_worker(topic, "--dies")
    print(f"the worker handled {first}, and died")
    second = run_worker(topic)
    print(f"started again, it handled {second}")
    handled = [*first, *second]
    lost = sorted(set(range(COUNT)) - set(handled))
    twice = sorted(n for n in set(handled) if handled.count(n) > 1)
    print(f"lost: {lost}  twice: {twice}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1], "--dies" in sys.argv))
    else:
        main()
