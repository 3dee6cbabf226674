"""At least once: nothing gets lost, and a message may be handled twice.

    make run                                      in one terminal
    .venv/bin/python examples/at_least_once.py    in another

The producer waits until all in-sync replicas have a message on their disks, and sends it again until they do (with a
number, so that it is stored once all the same). The worker works first and commits then: what it had done since its
last commit when it died is done again. The right choice where doing something twice does no harm.
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
from runnel.client.producer import Producer
from runnel.shell.clock import SystemClock

COUNT = 20
DIES_AT = 16  # the worker dies when it has handled this one


def connect() -> Cluster:
    return Cluster([os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")], clock=SystemClock())


async def produce(topic: str) -> None:
    async with connect() as cluster:
        await Admin(cluster).create_topics([NewTopic(topic, partitions=1)])
        async with Producer(cluster) as producer:  # acks=all and idempotent, unless told otherwise
            for n in range(COUNT):
                await producer.send(topic, b"%d" % n)
            await producer.flush()  # from here on they are safe; it raises if one is not


async def work(topic: str, dies: bool) -> None:
    """Handle, then commit. `instance_id` lets the worker's next life have its place at once."""
    where = TopicPartition(topic, 0)
    settings = GroupConsumerSettings(group=GroupSettings(instance_id="worker-1"), commit_ms=None)
    async with connect() as cluster, GroupConsumer(cluster, f"{topic}.workers", [topic], settings) as consumer:
        while consumer.positions.get(where, 0) < COUNT:
            messages = await consumer.poll(count_max=10)
            for message in messages:
                print((message.value or b"").decode(), flush=True)
                if dies and message.offset == DIES_AT:
                    os._exit(1)  # as if the power went
            if messages:
                await consumer.commit()


def run_worker(topic: str, *options: str) -> list[int]:
    """The worker in a process of its own; what it has handled."""
    done = subprocess.run([sys.executable, __file__, topic, *options], stdout=subprocess.PIPE, text=True)
    return [int(line) for line in done.stdout.split()]


def main() -> None:
    topic = f"at-least-once-{time.time_ns()}"
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
