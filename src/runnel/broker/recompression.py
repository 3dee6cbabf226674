"""Batches in the codec of their topic, where `compression.type` names one.

Rule 1: a batch that has that codec already is kept as it is, byte for byte; so is every batch of a topic whose
        `compression.type` is `producer`, the default: nothing of this module is asked there.
Rule 2: records are compressed anew off the loop, a few batches at a time. Their offsets, timestamps, headers, producer
        and sequences stay; only the codec, the size and the checksum change.
Rule 3: a batch is bounded before it is kept: its records may have BOMB times `max.message.bytes` when decompressed, and
        the batch `max.message.bytes` when it is compressed again.
Rule 4: what all requests together keep so is bounded. A request takes room for all its batches before it begins, the
        first that came first: who has room never waits for more.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from runnel.model.errors import BatchTooLarge, RunnelError
from runnel.model.limits import FRAME_BYTES_MAX
from runnel.model.topic_config import TopicConfig
from runnel.record.batch import COMPRESSION_MASK, BatchHeader
from runnel.record.compression import Compression
from runnel.record.records import RECORDS_BYTES_MAX, recompressed
from runnel.replica.partition import Partition

BOMB: Final = 16  # JSON shrinks to a tenth; what grows further was made to grow
AT_ONCE: Final = 4  # batches: with the default sizes they hold 64 MiB of records, and leave threads to the disk
ROOM_BYTES: Final = FRAME_BYTES_MAX  # of one request at the most: a client could have sent it as large as it becomes

CODECS: Final = {  # by their names in `compression.type`; `producer` is none of them
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class Target(NamedTuple):
    """What a topic wants its batches to be compressed with."""

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


class Room:
    """Bytes that may be taken at once (rule 4)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, wanted: int) -> AsyncIterator[None]:
        """No more than there is, whatever is wanted."""
        share = min(wanted, self._bytes_max)
        if share:
            await self._take(share)
        try:
            yield
        finally:
            self._give_back(share)

    async def _take(self, share: int) -> None:
        turn = share, asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._serve()
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
                self._serve()
            else:
                self._give_back(share)
            raise

    def _give_back(self, share: int) -> None:
        self._free += share
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            share, turn = self._waiting.popleft()
            self._free -= share
            if turn.cancelled():
                self._free += share
            else:
                turn.set_result(None)


class Recompression:
    """Of all partitions of a broker."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._room = Room(ROOM_BYTES)

    def room(
        self, batches: Iterable[tuple[Partition | RunnelError, memoryview | None]]
    ) -> AbstractAsyncContextManager[None]:
        """For all that these batches may become."""
        wanted = 0
        for partition, batch in batches:
            if isinstance(partition, Partition) and batch is not None and target_of(partition.config) is not None:
                wanted += partition.config.max_message_bytes
        return self._room.taken(wanted)

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
    packed = recompressed(batch, *target, bytes_max=min(BOMB * bytes_max, RECORDS_BYTES_MAX))
    if len(packed) > bytes_max:
        raise BatchTooLarge(
            f"a batch for {name} has {len(packed)} bytes when it is compressed as compression.type says"
            f" ({target.codec.name.lower()}), above max.message.bytes, {bytes_max}: send smaller batches"
        )
    return memoryview(packed)
