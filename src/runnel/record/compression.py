"""The five codecs of a record batch.

Rule 1: a library is imported when its codec is first used; a broker that passes batches through never loads one.
Rule 2: what comes out is bounded: a bomb costs at most `bytes_max`, and raises InvalidRecord.
Rule 3: whatever the bytes are, decompressing returns bytes or raises InvalidRecord.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Any

from runnel.model.errors import InvalidRecord
from runnel.model.limits import KIB
from runnel.model.seams import Buffer

# Snappy's container of the Java world: this magic, version and compatible version, then (length, raw block) pairs.
# No raw stream begins like this: its first element would copy from data that is not there yet.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2
XERIAL_BLOCK_BYTES = 32 * KIB  # the block of snappy-java

GZIP_WINDOW_BITS = 31  # 15 bits of window, +16 for the gzip container
LENGTH = Struct(">i")
LZ4_FAST = 9  # Kafka's default level means its fast compressor, any other the thorough one
ZSTD_USUAL = 3


class Compression(IntEnum):
    """The numbers in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# How much larger records can be than what they were compressed to: what each format can say with its fewest bits.
GROWTH_MAX = (
    1,
    1032,  # deflate: 258 bytes in 2 bits
    22,  # snappy: 64 bytes in 3
    255,  # lz4: 255 bytes for each byte of a length
    43_691,  # zstd: a block of 128 KiB in its header, 3 bytes
)


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """The records section of a batch, compressed; `level`: how hard, in the numbers of Kafka's settings."""
    return bytes(data) if codec is Compression.NONE else _COMPRESS[codec](data, level)


def decompress(codec: Compression, data: Buffer, *, bytes_max: int) -> bytes:
    """The records section of a batch; InvalidRecord if it is larger than `bytes_max`, torn, or not of this codec."""
    if codec is Compression.NONE:
        return bytes(data)  # nothing grows
    return _DECOMPRESS[codec](data, bytes_max)


def _too_large(bytes_max: int) -> InvalidRecord:
    return InvalidRecord(f"the records are larger than {bytes_max} bytes when decompressed: send smaller batches")


def _broken(codec: str, why: object) -> InvalidRecord:
    return InvalidRecord(f"the records are not valid {codec}: {why}")


# --- gzip
def _gzip(data: Buffer, level: int | None) -> bytes:
    if level is not None and level > 0:  # isal knows no such levels
        import zlib

        return zlib.compress(data, level, wbits=GZIP_WINDOW_BITS)
    from isal import isal_zlib

    return bytes(isal_zlib.compress(data, wbits=GZIP_WINDOW_BITS))


def _gunzip(data: Buffer, bytes_max: int) -> bytes:
    from isal import isal_zlib

    return _frame("gzip", data, isal_zlib.decompressobj(wbits=GZIP_WINDOW_BITS), isal_zlib.error, bytes_max)


# --- lz4
def _lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    thorough = 0 if level in (None, LZ4_FAST) else level
    # Java's reader knows independent blocks alone.
    return bytes(lz4.frame.compress(data, compression_level=thorough, block_linked=False, store_size=False))


def _unlz4(data: Buffer, bytes_max: int) -> bytes:
    import lz4.frame

    return _frame("lz4", data, lz4.frame.LZ4FrameDecompressor(), RuntimeError, bytes_max)


def _frame(codec: str, data: Buffer, frame: Any, error: Any, bytes_max: int) -> bytes:
    """One frame and nothing behind it, read by a decompressor that stops at a given length."""
    try:
        out: bytes = frame.decompress(data, max_length=bytes_max + 1)
    except (error, EOFError, ValueError, MemoryError) as problem:
        raise _broken(codec, problem) from None
    if len(out) > bytes_max:
        raise _too_large(bytes_max)
    if not frame.eof or frame.unused_data:
        raise _broken(codec, "bytes follow their end mark" if frame.eof else "they end before their end mark")
    return out


# --- zstd
def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(ZSTD_USUAL if level is None else level).compress(data)


def _unzstd(data: Buffer, bytes_max: int) -> bytes:
    import zstandard

    try:
        # librdkafka's frames carry no content size. The size of others is theirs to claim, so it is checked first.
        if zstandard.frame_content_size(data) > bytes_max:
            raise _too_large(bytes_max)
        # Room is reserved for `bytes_max`, but the kernel gives pages only for what is written.
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=bytes_max, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError, MemoryError) as problem:
        raise _broken("zstd", f"{problem} (of at most {bytes_max} bytes)") from None


# --- snappy
def _snappy(data: Buffer, level: int | None) -> bytes:
    from cramjam import snappy

    parts = [XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: Buffer, bytes_max: int) -> bytes:
    from cramjam import DecompressionError, snappy

    view = memoryview(data)
    parts: list[bytes] = []
    room = bytes_max
    try:
        for block in _snappy_blocks(view):
            room -= snappy.decompress_raw_len(block)
            if room < 0:
                raise _too_large(bytes_max)
            parts.append(bytes(snappy.decompress_raw(block)))
    except (DecompressionError, ValueError, MemoryError) as problem:
        raise _broken("snappy", problem) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of either shape: librdkafka sends one bare block, the others send xerial's container."""
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        yield view
        return
    position = len(XERIAL_HEADER)
    while position < len(view):
        if position + LENGTH.size > len(view):
            raise _broken("snappy", "they end inside the length of a block")
        (size,) = LENGTH.unpack_from(view, position)
        position += LENGTH.size
        if not 0 < size <= len(view) - position:
            raise _broken("snappy", f"a block claims {size} bytes")
        yield view[position : position + size]
        position += size


_COMPRESS: dict[Compression, Callable[[Buffer, int | None], bytes]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESS: dict[Compression, Callable[[Buffer, int], bytes]] = {
    Compression.GZIP: _gunzip,
    Compression.SNAPPY: _unsnappy,
    Compression.LZ4: _unlz4,
    Compression.ZSTD: _unzstd,
}
