"""Batches in the codec of their topic, where `compression.type` names one.

Rule 1: a batch that has that codec already is kept as it is, byte for byte; so is every batch of a topic whose
        `compression.type` is `producer`, the default: nothing of this module is asked there.
Rule 2: records are compressed anew off the loop, a few batches at a time. Their offsets, timestamps, headers, producer
        and sequences stay; only the codec, the size and the checksum change.
Rule 3: a batch is bounded before it is kept: its records may have UNPACKED_FACTOR times `max.message.bytes` when they
        are decompressed, and the batch `max.message.bytes` when it is compressed again.
Rule 4: what all requests together keep so is bounded, by a budget of its own. A request takes room for all its batches
        before it begins, the first that came first: a request that has room never waits for more of this budget.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Final, NamedTuple

from runnel.model.errors import BatchTooLarge, RunnelError
from runnel.model.topic_config import TopicConfig
from runnel.net.bounds import Bounds
from runnel.record.batch import COMPRESSION_MASK, BatchHeader
from runnel.record.compression import Compression
from runnel.record.records import RECORDS_BYTES_MAX, recompressed
from runnel.replica.partition import UNPACKED_FACTOR, Partition

AT_ONCE: Final = 4  # batches: with the default sizes they hold 64 MiB of records, and leave threads to the disk

CODECS: Final = {  # by their names in `compression.type`; `producer` is none of them
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class Target(NamedTuple):
    """The codec and the level that a topic wants for its batches."""

    codec: Compression
    level: int | None  # None: the codec has none


def target_of(config: TopicConfig) -> Target | None:
    """None: batches stay as their producers compressed them."""
    codec = CODECS.get(config.compression_type)
    return None if codec is None else Target(codec, _level(config, codec))


def _level(config: TopicConfig, codec: Compression) -> int | None:
    match codec:
        case Compression.GZIP:
            return config.compression_gzip_level
        case Compression.LZ4:
            return config.compression_lz4_level
        case Compression.ZSTD:
            return config.compression_zstd_level
    return None


class Recompression:
    """Of all partitions of a broker."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._bounds = bounds or Bounds()

    def room(
        self, batches: Iterable[tuple[Partition | RunnelError, memoryview | None]]
    ) -> AbstractAsyncContextManager[None]:
        """For all that these batches may become; no more than there is, whatever that is."""
        wanted = 0
        for partition, batch in batches:
            if isinstance(partition, Partition) and batch is not None and target_of(partition.config) is not None:
                wanted += partition.config.max_message_bytes
        if not wanted:
            return nullcontext()
        budget = self._bounds.recompressed
        return self._bounds.room(budget, min(wanted, budget.limit), "recompressed-bytes-max")

    async def pack(self, partition: Partition, batch: memoryview, header: BatchHeader) -> memoryview | None:
        """The batch as its topic wants it, in a buffer of its own; None if that is how it is."""
        config = partition.config
        target = target_of(config)
        if target is None or header.attributes & COMPRESSION_MASK == target.codec or not header.count:
            return None
        async with self._turns:
            return await partition.log.offload(
                partial(_packed, partition.name, batch, target, config.max_message_bytes)
            )


def _packed(name: str, batch: memoryview, target: Target, bytes_max: int) -> memoryview:
    packed = recompressed(batch, *target, bytes_max=min(UNPACKED_FACTOR * bytes_max, RECORDS_BYTES_MAX))
    if len(packed) > bytes_max:
        raise BatchTooLarge(
            f"a batch for {name} has {len(packed)} bytes when it is compressed as compression.type says"
            f" ({target.codec.name.lower()}), above max.message.bytes, {bytes_max}: send smaller batches"
        )
    return memoryview(packed)
