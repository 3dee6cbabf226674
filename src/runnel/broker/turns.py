"""Long work in short parts: whoever goes through thousands of partitions lets others have the loop in between.

What can't be parted, as the records of one batch, is done off the loop if it may be long.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

from runnel.model.limits import MIB
from runnel.record.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from runnel.record.compression import GROWTH_MAX, Compression
from runnel.record.records import COUNTED_BYTES
from runnel.replica.partition import Partition

UNPACKED_BYTES_MAX: Final = 4 * MIB  # decompressed in one go, a few milliseconds
RECORD_BYTES: Final = 250  # what Python needs beside the bytes of a record
TURN: Final = 100  # partitions in one go: a few milliseconds, whatever is done with each

T = TypeVar("T")
R = TypeVar("R")


async def by_turns(items: Iterable[T], turn: int = TURN) -> AsyncIterator[T]:
    """Each of them; after so many, others have the loop first. What may change meanwhile is to be looked at anew."""
    for number, item in enumerate(items, 1):
        yield item
        if number % turn == 0:
            await asyncio.sleep(0)


async def side_by_side(items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """Do it for each, for so many at a time; what came of it, in the order in which it came."""
    rest = iter(items)
    done: list[R] = []

    async def take_on() -> None:
        for item in rest:
            result = await work(item)
            done.append(result)

    await asyncio.gather(*[take_on() for _ in range(at_once)])
    return done


async def off_loop(partition: Partition, batches: Iterable[BatchHeader], work: Callable[[], R]) -> R:
    """Look at the records of batches off the loop, once the budget has room for what these become."""
    most = partition.unreadable.bytes_max
    async with partition.room(sum(weight_of(header, most) for header in batches)):
        return await partition.log.offload(work)


def weight_of(header: BatchHeader, bytes_max: int) -> int:
    """Bytes that a batch takes once its records are taken apart, at most."""
    packed, codec = header.size - HEADER_BYTES, header.attributes & COMPRESSION_MASK
    growth = GROWTH_MAX[codec] if codec < len(GROWTH_MAX) else 1
    return min(packed * growth, bytes_max) + RECORD_BYTES * max(0, min(header.count, bytes_max // COUNTED_BYTES))


def may_be_large(header: BatchHeader, records_max: int) -> bool:
    """Whether to look at the records of a batch may take longer than a turn of the loop."""
    if header.count > records_max:
        return True
    codec = header.attributes & COMPRESSION_MASK
    return codec != Compression.NONE and (header.size - HEADER_BYTES) * GROWTH_MAX[codec] > UNPACKED_BYTES_MAX
