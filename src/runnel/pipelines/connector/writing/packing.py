"""Records as bytes, for whole columns at once: what record/records.py writes one by one, NumPy and Arrow write for all.

Rule 1: the bytes are those of `record.records.encode`, row for row.
Rule 2: no loop here goes over rows: only over columns, and over the bytes that a number may take.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runnel.model.errors import InvalidRecord

Numbers: TypeAlias = npt.NDArray[np.int64]
_NOTHING = pa.scalar(b"")


class Strings(NamedTuple):
    """A column of byte strings."""

    bytes: pa.Array | None  # empty where there is none; None if there is none in any row
    lengths: Numbers  # -1 where there is none


def strings_of(column: pa.Array | None, rows: int) -> Strings:
    """A column of text or bytes; text as UTF-8."""
    if column is None or column.null_count == rows:
        return Strings(None, np.full(rows, -1))
    column = column.cast(pa.binary())
    lengths = numbers_of(pc.binary_length(column), -1)
    return Strings(column.fill_null(b"") if column.null_count else column, lengths)


def numbers_of(column: pa.Array, missing: int) -> Numbers:
    """A column of whole numbers, with another number where there is none."""
    filled = column.cast(pa.int64()).fill_null(missing) if column.null_count else column.cast(pa.int64())
    found: Numbers = filled.to_numpy(zero_copy_only=False)
    return found


# --- numbers
def varints(*columns: Numbers) -> pa.Array:
    """The numbers of each row, one behind the other, as zigzag varints."""
    zigzag = [_zigzag(column) for column in columns]
    sizes = [_sizes(column) for column in zigzag]
    ends = np.cumsum(np.sum(sizes, axis=0))
    bounds = np.concatenate(([0], ends)).astype(np.int32)
    out = np.empty(int(bounds[-1]), np.uint8)
    at = bounds[:-1].astype(np.int64)
    for column, size in zip(zigzag, sizes, strict=True):
        _put(out, at, column, size)
        at = at + size
    return pa.Array.from_buffers(pa.binary(), len(at), [None, pa.py_buffer(bounds), pa.py_buffer(out)])


def varint_sizes(column: Numbers) -> Numbers:
    """How many bytes each number takes."""
    return _sizes(_zigzag(column))


def _zigzag(column: Numbers) -> npt.NDArray[np.uint64]:
    return ((column << 1) ^ (column >> 63)).view(np.uint64)


def _sizes(zigzag: npt.NDArray[np.uint64]) -> Numbers:
    sizes = np.ones(len(zigzag), np.int64)
    top = int(zigzag.max()) if len(zigzag) else 0
    for bits in range(7, max(top.bit_length(), 1), 7):
        sizes += zigzag >= np.uint64(1 << bits)
    return sizes


def _put(out: npt.NDArray[np.uint8], at: Numbers, zigzag: npt.NDArray[np.uint64], sizes: Numbers) -> None:
    """Seven bits a byte, the lowest first; all but the last say that more follow."""
    for place in range(int(sizes.max()) if len(sizes) else 0):
        some = sizes > place
        rest = zigzag[some] >> np.uint64(7 * place)
        more = (sizes[some] > place + 1).astype(np.uint8) << 7
        out[at[some] + place] = (rest & np.uint64(0x7F)).astype(np.uint8) | more


# --- headers
def packed_headers(column: pa.Array) -> tuple[Numbers, pa.Array]:
    """How many headers each row has, and their bytes. A column of lists of (key, value), or of maps."""
    if pa.types.is_map(column.type):
        column = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
    counts = numbers_of(pc.list_value_length(column), 0)
    entries = column.flatten()
    names, values = strings_of(_field(entries, 0), len(entries)), strings_of(_field(entries, 1), len(entries))
    if (names.lengths < 0).any():
        raise InvalidRecord("a row has a header without a name: give it one, or take it out of the column 'headers'")
    packed = _joined([varints(names.lengths), names.bytes, varints(values.lengths), values.bytes], len(entries))
    bounds = offsets_of(packed)[np.concatenate(([0], np.cumsum(counts)))].astype(np.int32)
    data = packed.buffers()[2] if len(entries) else pa.py_buffer(b"")
    return counts, pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(bounds), data])


def _field(entries: pa.Array, place: int) -> pa.Array:
    return pc.struct_field(entries, [place])


# --- records
def packed_records(
    ages: Numbers, places: Numbers, key: Strings, value: Strings, headers: tuple[Numbers, pa.Array] | None
) -> pa.Array:
    """Records, each with its length in front, so that some that follow each other are the section of a batch.

    `ages`: timestamps, from the first one of the batch on; `places`: the numbers of the records in their batches.
    """
    rows = len(ages)
    zeros = np.zeros(rows, np.int64)
    counts, held = headers if headers is not None else (zeros, None)
    lengths = 1 + sum((varint_sizes(column) for column in (ages, places, key.lengths, value.lengths, counts)), zeros)
    lengths += np.maximum(key.lengths, 0) + np.maximum(value.lengths, 0)
    if held is not None:
        lengths += np.diff(offsets_of(held))
    front = varints(lengths, zeros, ages, places, key.lengths)
    return _joined([front, key.bytes, varints(value.lengths), value.bytes, varints(counts), held], rows)


def _joined(parts: list[pa.Array | None], rows: int) -> pa.Array:
    """Columns of byte strings into one: the bytes of each row, one behind the other."""
    if not rows:
        return pa.array([], pa.binary())
    return pc.binary_join_element_wise(*(part for part in parts if part is not None), _NOTHING)


def offsets_of(column: pa.Array) -> Numbers:
    """Where each byte string of a column begins in its buffer, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    raw = np.frombuffer(column.buffers()[1], np.int32)
    return raw[column.offset : column.offset + len(column) + 1].astype(np.int64)
