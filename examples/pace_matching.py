"""Three services send 10, 20 and 30 requests a second to a notifier that can take 15.

    make run                                     in one terminal
    .venv/bin/python examples/pace_matching.py   in another

The services never wait for the notifier, and the notifier is never overrun: the queue between them takes up the
difference, and every request is notified once.
"""

import asyncio
import os
import time
from collections import Counter

from runnel.client import connect
from runnel.client.queue import Queue
from runnel.client.session import Runnel

SERVICES = {"orders": 10, "payments": 20, "shipping": 30}  # requests a second
NOTIFIER = 15  # a second
SECONDS = 2


async def service(runnel: Runnel, queue: str, name: str, rate: int) -> None:
    """Send at a steady rate, each when it is due."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for n in range(rate * SECONDS):
        await asyncio.sleep(begin + n / rate - loop.time())
        await runnel.send(queue, {"service": name, "request": n})


async def notifier(queue: Queue, expected: int) -> Counter[str]:
    """Take one request after the other, no faster than it can."""
    notified: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    async for message in queue.messages(batch=1):
        await asyncio.sleep(next_at - loop.time())
        next_at = loop.time() + 1 / NOTIFIER
        async with message:  # accepted at the end of the block
            notified[message.json()["service"]] += 1
        if notified.total() == expected:
            break
    return notified


async def main() -> None:
    name, expected = f"notifications-{time.time_ns()}", sum(SERVICES.values()) * SECONDS
    async with connect(os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")) as runnel:
        queue = runnel.queue(name)
        await queue.create(partitions=1)
        begin = time.monotonic()
        working = asyncio.create_task(notifier(queue, expected))
        await asyncio.gather(*(service(runnel, name, *each) for each in SERVICES.items()))
        sent_s = time.monotonic() - begin
        state = (await queue.describe()).partitions[0]
        print(f"{expected} requests sent in {sent_s:.1f} s; {state.end - state.first_open} wait in the queue")
        notified = await working
        took_s = time.monotonic() - begin
        print(f"all notified after {took_s:.1f} s, {expected / took_s:.0f} a second: {dict(sorted(notified.items()))}")
        left = await queue.receive()
        print(f"left: {len(left)}  each exactly once: {notified == {s: r * SECONDS for s, r in SERVICES.items()}}")


if __name__ == "__main__":
    asyncio.run(main())
