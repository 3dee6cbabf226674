"""The headers of records as a column: a list of (key, value) for each record, null for one without, as Spark has it.

Rule 1: names that are not UTF-8 get replacement characters, as in Kafka's client.
Rule 2: all first headers are found together, then all second ones, and so on; records with many are read one by one, so
        that a single one can't make the others wait.
"""

from itertools import chain

import numpy as np
import pyarrow as pa

from runnel.model.errors import InvalidRecord
from runnel.model.seams import Buffer
from runnel.pipelines.connector.arrow.scan import Numbers, Scan, Span, varints
from runnel.pipelines.connector.arrow.strings import strings

MANY = 32  # headers of one record: a turn for all records costs as much as reading about so many of one


def header_column(scan: Scan, values: Span, kind: pa.DataType) -> pa.Array:
    """The headers of these records; `kind` is list<struct<key, value>>."""
    counts, at = scan.header_counts(values)
    bare = counts == 0
    if bare.all():
        return pa.nulls(len(scan), kind)
    names, contents = _places(scan, counts, at)
    data = pa.py_buffer(scan.data)
    columns = [_text(strings(data, names)), strings(data, contents)]
    items = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=pa.array(bare) if bare.any() else None)


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _places(scan: Scan, counts: Numbers, at: Numbers) -> tuple[Span, Span]:
    """Where the names and the values of all headers lie, record by record."""
    few = np.flatnonzero((counts > 0) & (counts <= MANY))
    many = np.flatnonzero(counts > MANY).tolist()
    turns = _in_turns(scan, few, counts[few], at[few]) + [_one(scan, r, int(counts[r]), int(at[r])) for r in many]
    order = np.argsort(np.concatenate([rows for rows, _, _ in turns]), kind="stable")
    return _sorted([names for _, names, _ in turns], order), _sorted([values for _, _, values in turns], order)


def _sorted(spans: list[Span], order: Numbers) -> Span:
    return Span(
        np.concatenate([span.at for span in spans])[order], np.concatenate([span.size for span in spans])[order]
    )


_Turn = tuple[Numbers, Span, Span]  # the records, and their next names and values


def _in_turns(scan: Scan, rows: Numbers, left: Numbers, at: Numbers) -> list[_Turn]:
    """One header of each record in each turn, until none has any left."""
    out: list[_Turn] = []
    while len(rows):
        ends = scan.ends[rows]
        names = _next(scan, at, ends, least=0)
        values = _next(scan, names.ends(), ends, least=-1)
        out.append((rows, names, values))
        at, left = values.ends(), left - 1
        if (at[left == 0] != ends[left == 0]).any():
            raise _torn()
        rows, at, left = rows[left > 0], at[left > 0], left[left > 0]
    return out


def _one(scan: Scan, row: int, count: int, at: int) -> _Turn:
    """All headers of one record."""
    end, data = int(scan.ends[row]), scan.data
    lengths: list[tuple[int, int]] = []
    for least in chain.from_iterable((0, -1) for _ in range(count)):
        size, at = _number(data, at)
        if size < least or at + max(size, 0) > end:
            raise _torn()
        lengths.append((at, size))
        at += max(size, 0)
    if at != end:
        raise _torn()
    places = np.array(lengths, np.int64)
    rows = np.full(count, row, np.int64)
    return rows, Span(places[0::2, 0], places[0::2, 1]), Span(places[1::2, 0], places[1::2, 1])


def _next(scan: Scan, at: Numbers, ends: Numbers, *, least: int) -> Span:
    size, at = varints(scan.raw, at)
    span = Span(at, size)
    if (size < least).any() or (span.ends() > ends).any():
        raise _torn()
    return span


def _number(data: Buffer, at: int) -> tuple[int, int]:
    """One length, and where it ends. No length has more than five bytes."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise _torn()


def _torn() -> InvalidRecord:
    return InvalidRecord("the headers of a record do not end where it does")
