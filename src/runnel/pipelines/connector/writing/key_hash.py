"""The partitions of many keys at once: the same as `client.partitioner` says of each."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runnel.client.partitioner import MULTIPLIER, SEED, SHIFT
from runnel.pipelines.connector.writing.packing import Numbers, offsets_of

_M = np.uint32(MULTIPLIER)


def partitions_of_keys(keys: pa.Array, count: int) -> Numbers:
    """The partition of each key (a column of binary without nulls) in a topic with so many partitions."""
    return (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """The 32-bit MurmurHash2 of Java's client, four bytes of every key at a time."""
    bounds = offsets_of(keys)
    start, length = bounds[:-1] - bounds[0], np.diff(bounds)
    data = _padded(keys, int(bounds[0]), int(bounds[-1]))
    found = np.uint32(SEED) ^ length.astype(np.uint32)
    whole = length >> 2
    for word in range(int(whole.max(initial=0))):
        some = np.flatnonzero(whole > word)
        k = _word(data, start[some] + 4 * word) * _M
        found[some] = found[some] * _M ^ (k ^ k >> np.uint32(SHIFT)) * _M
    some = np.flatnonzero(length & 3)
    rest = _word(data, start[some] + 4 * whole[some]) & _mask(length[some] & 3)
    found[some] = (found[some] ^ rest) * _M
    found = (found ^ found >> np.uint32(13)) * _M
    return found ^ found >> np.uint32(15)


def _padded(keys: pa.Array, first: int, end: int) -> npt.NDArray[np.uint8]:
    """The bytes of all keys, and some more: the last word of the last key may reach beyond."""
    data = np.zeros(end - first + 4, np.uint8)
    if end > first:
        data[: end - first] = np.frombuffer(keys.buffers()[2], np.uint8)[first:end]
    return data


def _word(data: npt.NDArray[np.uint8], at: Numbers) -> npt.NDArray[np.uint32]:
    """Four bytes at each of these places, the lowest first."""
    word = data[at].astype(np.uint32)
    for place in range(1, 4):
        word |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return word


def _mask(count: Numbers) -> npt.NDArray[np.uint32]:
    return ((np.int64(1) << 8 * count) - 1).astype(np.uint32)
