"""Try three times, put aside what can't be done, repair it, and push it back.

    make run                                        in one terminal
    .venv/bin/python examples/retry_and_repair.py   in another

The worker fails on an order without an amount. Each failure releases the message, which comes again after a pause that
grows; after three attempts the queue gives it up, and it lies among the dead letters, whole, with where it came from
and why. Somebody repairs it, and sends it back.
"""

import asyncio
import os
import time
from collections import Counter

from runnel.client import connect
from runnel.client.queue import Queue, QueueMessage

ORDERS = [{"id": 1, "amount": 30}, {"id": 2}, {"id": 3, "amount": 12}]
tries: Counter[int] = Counter()


def book(message: QueueMessage) -> int:
    order = message.json()
    tries[order["id"]] += 1
    return int(order["amount"])  # the second order has none


async def work(queue: Queue, until: int) -> int:
    """Book orders until so many are booked; returns what they are worth."""
    worth = booked = 0
    async for message in queue.messages(batch=1):
        try:
            async with message:  # accepted at the end, released on an exception
                worth += book(message)
                booked += 1
        except KeyError as error:
            print(f"order {message.json()['id']}, attempt {message.attempt}: no {error}")
        if booked == until:
            return worth
    raise AssertionError("a queue never ends")


async def buried(queue: Queue) -> None:
    """Try the bad order until the queue gives it up."""
    working = asyncio.create_task(work(queue, 1))
    while not await queue.dead_letters():
        await asyncio.sleep(0.1)
    working.cancel()


async def main() -> None:
    name = f"orders-{time.time_ns()}"
    async with connect(os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")) as runnel:
        queue = runnel.queue(name)
        await queue.create(partitions=1, attempts_max=3, retry_backoff_ms=100)
        for order in ORDERS:
            await runnel.send(name, order)
        print(f"booked: {await work(queue, 2)}")
        await buried(queue)
        [letter] = await queue.dead_letters()
        print(f"given up after {letter.attempts} attempts ({letter.reason}): {letter.text}")
        repaired = {**letter.json(), "amount": 8}
        done = await queue.redrive(only={letter.partition: letter.offset}, value=repaired)
        print(f"sent back: {done.moved}")
        print(f"booked: {await work(queue, 1)}, tries: {dict(tries)}")


if __name__ == "__main__":
    asyncio.run(main())
