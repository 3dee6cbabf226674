"""Publish-subscribe and point-to-point, side by side on one topic.

    make run                                         in one terminal
    .venv/bin/python examples/publish_and_queue.py   in another

Groups read a topic by offset: every group gets every message, in order. A queue hands out the same messages one by one:
each goes to one of its workers. The messages are stored once.
"""

import asyncio
import os
import time

from runnel.client import connect
from runnel.client.session import Runnel

COUNT = 20


async def subscriber(runnel: Runnel, group: str, topic: str) -> list[int]:
    """Reads everything, whatever others do."""
    seen: list[int] = []
    async with runnel.group(f"{topic}.{group}", topic) as messages:
        async for message in messages:
            seen.append(message.json())
            if len(seen) == COUNT:
                break
    return seen


async def worker(runnel: Runnel, name: str, topic: str) -> list[int]:
    """Shares the work with the others."""
    done: list[int] = []
    while messages := await runnel.queue(topic).receive(2, wait=2, consumer=name):
        for message in messages:
            async with message:
                done.append(message.json())
        await asyncio.sleep(0.01)  # it takes its time
    return done


async def main() -> None:
    topic = f"news-{time.time_ns()}"
    async with connect(os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")) as runnel:
        await runnel.queue(topic).create(partitions=1)
        for n in range(COUNT):
            await runnel.send(topic, n)
        billing, audit, ann, bob = await asyncio.gather(
            subscriber(runnel, "billing", topic),
            subscriber(runnel, "audit", topic),
            worker(runnel, "ann", topic),
            worker(runnel, "bob", topic),
        )
    everything = list(range(COUNT))
    print(f"publish-subscribe: billing saw all in order: {billing == everything}, audit too: {audit == everything}")
    print(f"point-to-point: ann did {len(ann)}, bob {len(bob)}; each once: {sorted([*ann, *bob]) == everything}")


if __name__ == "__main__":
    asyncio.run(main())
