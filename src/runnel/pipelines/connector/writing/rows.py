"""Rows of Spark, as Arrow brings them, to batches for partitions: whole columns at once, never row by row.

Rule 1: a row goes to the partition that it names; else to that of its key, which is the same as with every Kafka
        client; else with the rows around it to one partition until a batch is full, then to the next.
Rule 2: rows of one partition keep their order.
Rule 3: a batch has at most `batch_bytes` of records, as they are before compression; a larger row goes alone.
Rule 4: memory is bounded: a piece of `PIECE_BYTES` is encoded at a time.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runnel.client.line import RECORD_OVERHEAD_BYTES
from runnel.client.metadata import Topic
from runnel.model.errors import InvalidPartitions, InvalidTopicName
from runnel.model.limits import MIB
from runnel.pipelines.connector.writing.key_hash import partitions_of_keys
from runnel.pipelines.connector.writing.packing import (
    Numbers,
    numbers_of,
    offsets_of,
    packed_headers,
    packed_records,
    strings_of,
)
from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.record.batch import MAGIC, BatchHeader, assemble_writable
from runnel.record.compression import Compression, compress

PIECE_BYTES = 8 * MIB


class Encoded(NamedTuple):
    """A batch for one partition."""

    topic: str
    partition: int
    batch: bytearray


class Turn:
    """Where rows go that have neither a partition nor a key: sticky, as in `client.partitioner`."""

    def __init__(self, first: int, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._first = first
        self._turns: dict[str, tuple[int, int]] = {}  # topic -> whose turn it is, and how much it got

    def partitions(self, topic: Topic, sizes: Numbers) -> Numbers:
        """The partitions of rows of these sizes."""
        turn, filled = self._turns.get(topic.name, (self._first, 0))
        starts = _full(sizes, self._batch_bytes, filled)
        turns = np.zeros(len(sizes), np.int64)
        turns[starts] = 1
        turns = np.cumsum(turns) + turn
        if len(sizes):
            last = starts[-1] if starts else 0
            self._turns[topic.name] = int(turns[-1]), int(sizes[last:].sum()) + (0 if starts else filled)
        found: Numbers = np.asarray(topic.led)[turns % len(topic.led)]
        return found


class Encoder:
    """Encodes the rows of one task."""

    def __init__(
        self, layout: Layout, topic: str | None, *, compression: Compression, batch_bytes: int, first: int = 0
    ) -> None:
        self._layout = layout
        self._topic = topic
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._turn = Turn(first, batch_bytes)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch of Spark's in parts that are encoded at once."""
        step = max(1, len(batch) * PIECE_BYTES // max(batch.nbytes, 1))
        for low in range(0, len(batch), step):
            yield batch.slice(low, step)

    def by_topic(self, piece: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        """The rows of each topic."""
        if self._topic is not None:
            return {self._topic: piece} if len(piece) else {}
        column = self._layout.column(piece, "topic")
        assert column is not None
        if column.null_count or pc.any(pc.equal(column, "")).as_py():
            raise InvalidTopicName(
                "a row names no topic: fill its column 'topic', or give the option topic for all rows"
            )
        names = pc.unique(column).to_pylist()
        if len(names) == 1:
            return {names[0]: piece}
        return {name: piece.filter(pc.equal(column, name)) for name in names}

    def encode(self, rows: pa.RecordBatch, topic: Topic, now_ms: int) -> Iterator[Encoded]:
        """Batches of the rows of a topic, each partition's in order."""
        sizes = self._sizes(rows)
        partitions = self._partitions(rows, topic, sizes)
        if len(rows) and (partitions != partitions[0]).any():
            order = np.argsort(partitions, kind="stable")
            rows, sizes, partitions = rows.take(pa.array(order)), sizes[order], partitions[order]
        starts = _cuts(partitions, sizes, self._batch_bytes)
        yield from self._batches(rows, topic.name, partitions, starts, now_ms)

    def _batches(
        self, rows: pa.RecordBatch, topic: str, partitions: Numbers, starts: Numbers, now_ms: int
    ) -> Iterator[Encoded]:
        counts = np.diff(np.append(starts, len(rows)))
        times = self._layout.times(rows, "timestamp", now_ms)
        if times is None:
            times = np.full(len(rows), now_ms)
        packed = self._packed(rows, times - np.repeat(times[starts], counts), starts, counts)
        bounds, data = offsets_of(packed), memoryview(packed.buffers()[2]) if len(rows) else memoryview(b"")
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            section = data[bounds[start] : bounds[start + count]]
            newest = int(times[start : start + count].max())
            yield Encoded(topic, int(partitions[start]), self._batch(section, count, int(times[start]), newest))

    def _packed(self, rows: pa.RecordBatch, ages: Numbers, starts: Numbers, counts: Numbers) -> pa.Array:
        layout, count = self._layout, len(rows)
        headers = layout.column(rows, "headers")
        return packed_records(
            ages,
            np.arange(count) - np.repeat(starts, counts),
            strings_of(layout.column(rows, "key"), count),
            strings_of(layout.column(rows, "value"), count),
            packed_headers(headers) if headers is not None and headers.null_count < count else None,
        )

    def _batch(self, section: memoryview, count: int, base_time: int, newest: int) -> bytearray:
        header = BatchHeader(
            base_offset=0,
            size=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self._compression,
            last_offset_delta=count - 1,
            base_timestamp=base_time,
            max_timestamp=newest,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=count,
        )
        plain = self._compression is Compression.NONE
        return assemble_writable(header, section if plain else compress(self._compression, section))

    # --- where rows go
    def _sizes(self, rows: pa.RecordBatch) -> Numbers:
        """About what each row takes in a batch."""
        sizes = np.full(len(rows), RECORD_OVERHEAD_BYTES)
        for name in ("key", "value"):
            column = self._layout.column(rows, name)
            if column is not None:
                sizes += numbers_of(pc.binary_length(column), 0)
        headers = self._layout.column(rows, "headers")
        if headers is not None and len(rows):  # they are small, and mostly alike
            sizes += headers.nbytes // len(rows)
        return sizes

    def _partitions(self, rows: pa.RecordBatch, topic: Topic, sizes: Numbers) -> Numbers:
        count, said = len(topic.partitions), self._layout.column(rows, "partition")
        found = np.full(len(rows), -1) if said is None else numbers_of(said, -1).copy()
        open_rows = np.flatnonzero(found < 0) if said is None else np.flatnonzero(said.is_null())
        keys = self._layout.column(rows, "key")
        if keys is not None and len(open_rows):
            keyed = open_rows[keys.is_valid().to_numpy(zero_copy_only=False)[open_rows]]
            found[keyed] = partitions_of_keys(keys.take(pa.array(keyed)).cast(pa.binary()), count)
            open_rows = np.setdiff1d(open_rows, keyed, assume_unique=True)
        found[open_rows] = self._turn.partitions(topic, sizes[open_rows])
        _check(found, topic, count)
        return found


def _check(partitions: Numbers, topic: Topic, count: int) -> None:
    wrong = (partitions < 0) | (partitions >= count)
    if wrong.any():
        raise InvalidPartitions(
            f"topic {topic.name!r} has no partition {partitions[wrong][0]}: it has {count}, from 0 to {count - 1}. Set "
            "the column 'partition' to one of them, or to null for the partition of the key"
        )


def _cuts(partitions: Numbers, sizes: Numbers, batch_bytes: int) -> Numbers:
    """Where batches begin: with each partition, and before a batch would be too large."""
    if not len(partitions):
        return np.zeros(0, np.int64)
    changes = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    starts = [
        start
        for low, high in pairwise(changes)
        for start in (low, *(low + n for n in _full(sizes[low:high], batch_bytes)))
    ]
    return np.asarray(starts, np.int64)


def _full(sizes: Numbers, batch_bytes: int, filled: int = 0) -> list[int]:
    """The rows that begin a new batch, because the one before has no room for them; it has so much in it at first."""
    ends = np.cumsum(sizes)
    starts: list[int] = []
    low, before, empty = 0, -filled, not filled
    while True:
        fit = int(np.searchsorted(ends, before + batch_bytes, "right"))
        low = max(fit, low + empty)  # what is larger than a batch has one of its own
        if low >= len(sizes):
            return starts
        starts.append(low)
        before, empty = int(ends[low] - sizes[low]), True
