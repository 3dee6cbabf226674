"""The rows of one task as Parquet files.

Rule 1: a file holds rows of one topic and one day, in the order in which they came. That and `file_bytes` alone decide
        where a file ends: no clock, and no time in a row. What is left is written when the task's rows end.
Rule 2: rows wait in memory, `buffer_bytes` at most, until they fill a row group; so a late row for an old day costs a
        file of its own and nothing else: it does not end the file of any other.
Rule 3: no more than `OPEN_FILES_MAX` files are open. One more ends the longest of them.
Rule 4: rows with an error (`columns.ERROR`) are in files of their own: who asks for the others never opens those.
Rule 5: a task that fails leaves no file behind, unless it is killed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runnel.model.limits import MIB
from runnel.pipelines.lake.columns import ERROR, INGESTED, TIME, file_schema, measured
from runnel.pipelines.lake.place import Place

FILE_BYTES = 128 * MIB
ROW_GROUP_BYTES = 16 * MIB  # of rows in memory; a reader takes a row group at once
BUFFER_BYTES = 64 * MIB
OPEN_FILES_MAX = 32
TEXT_CHARS_MAX = 32  # of a text among the statistics: what is longer is left out
SELDOM_ALIKE = ("key", "value", "offset", "timestamp")  # a dictionary of them is as long as they are


class Shelf(NamedTuple):
    """What the rows of a file have in common."""

    topic: str
    day: date
    bad: bool

    @property
    def folder(self) -> str:
        return f"topic={self.topic}/date={self.day.isoformat()}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that was written, as the table's log will tell of it."""

    name: str
    topic: str
    day: str
    size: int
    rows: int
    stats: str  # JSON, as Delta has it
    made_ms: int


class Held(NamedTuple):
    """What a task, or a batch, has of one partition."""

    rows: int
    first: int
    last: int

    def with_(self, other: "Held") -> "Held":
        return Held(self.rows + other.rows, min(self.first, other.first), max(self.last, other.last))


Account = dict[tuple[str, int], Held]


def merged(accounts: "list[Account]") -> Account:
    """What they hold together."""
    out: Account = {}
    for account in accounts:
        for where, held in account.items():
            out[where] = held.with_(out[where]) if where in out else held
    return out


@dataclass(slots=True)
class _Open:
    """Rows of one shelf: those that wait, and the file that others went to."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    name: str = ""
    stream: Any = None
    writer: Any = None

    def written_bytes(self) -> int:
        return int(self.stream.tell()) if self.stream is not None else 0


class FileCutter:
    """Takes the rows of a task, and leaves files. `prefix` begins the names of all of them."""

    def __init__(
        self, place: Place, table: pa.Schema, prefix: str, *, file_bytes: int = FILE_BYTES, now_ms: int,
        buffer_bytes: int = BUFFER_BYTES, row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:  # fmt: skip
        self._place, self._prefix = place, prefix
        self._schema = file_schema(table)
        self._measured = measured(table)
        self._file_bytes, self._buffer_bytes, self._row_group_bytes = file_bytes, buffer_bytes, row_group_bytes
        self._now_ms = now_ms
        self._open: dict[Shelf, _Open] = {}
        self._buffered_bytes = 0
        self._names: list[str] = []
        self._done: list[DataFile] = []
        self.account: Account = {}

    # --- rows
    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._count(batch)
        for shelf, rows in shelved(batch):
            self._wait(shelf, self._as_kept(rows))
        while self._buffered_bytes > self._buffer_bytes:
            self._write(max(self._open, key=lambda each: self._open[each].waiting_bytes))

    def _count(self, batch: pa.RecordBatch) -> None:
        table = pa.table({name: batch[name] for name in ("topic", "partition", "offset")})
        sums = table.group_by(["topic", "partition"]).aggregate([("offset", f) for f in ("count", "min", "max")])
        found = {
            (row["topic"], row["partition"]): Held(row["offset_count"], row["offset_min"], row["offset_max"])
            for row in sums.to_pylist()
        }
        self.account = merged([self.account, found])

    def _as_kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a file, as the file has them."""
        moment = pa.scalar(self._now_ms * 1000, INGESTED.type)
        own = {INGESTED.name: pa.repeat(moment, rows.num_rows)}
        arrays = [own[f.name] if f.name in own else rows[f.name].cast(f.type) for f in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _wait(self, shelf: Shelf, rows: pa.RecordBatch) -> None:
        open_ = self._open.setdefault(shelf, _Open())
        open_.waiting.append(rows)
        open_.waiting_bytes += rows.nbytes
        self._buffered_bytes += rows.nbytes
        if open_.waiting_bytes >= self._row_group_bytes:
            self._write(shelf)

    # --- files
    def _write(self, shelf: Shelf) -> None:
        """Put what waits into the shelf's file, as a row group."""
        open_ = self._open[shelf]
        if open_.writer is None:
            self._begin(shelf, open_)
        open_.writer.write_table(pa.Table.from_batches(open_.waiting))
        self._buffered_bytes -= open_.waiting_bytes
        open_.waiting, open_.waiting_bytes = [], 0
        if open_.written_bytes() >= self._file_bytes:
            self._end(shelf)

    def _begin(self, shelf: Shelf, open_: _Open) -> None:
        begun = [each for each, other in self._open.items() if other.writer is not None]
        if len(begun) >= OPEN_FILES_MAX:
            self._end(max(begun, key=lambda each: self._open[each].written_bytes()))
        open_.name = f"{shelf.folder}/{self._prefix}-{len(self._names)}.parquet"
        self._names.append(open_.name)
        open_.stream = self._place.create(open_.name)
        alike = [name for name in self._schema.names if name not in SELDOM_ALIKE]
        open_.writer = pq.ParquetWriter(
            open_.stream, self._schema, compression="zstd", use_dictionary=[*alike, "headers.list.element.key"]
        )

    def _end(self, shelf: Shelf) -> None:
        """Close the shelf's file; rows that still wait will be in the next."""
        open_ = self._open[shelf]
        open_.writer.close()
        open_.stream.close()
        meta = open_.writer.writer.metadata
        size = self._place.finish(open_.name)
        stats = json.dumps(statistics(meta, self._measured))
        self._done.append(
            DataFile(open_.name, shelf.topic, shelf.day.isoformat(), size, meta.num_rows, stats, self._now_ms)
        )
        if open_.waiting:
            open_.name, open_.stream, open_.writer = "", None, None
        else:
            del self._open[shelf]

    def finish(self) -> list[DataFile]:
        """Write all that is left; every file of the task."""
        for shelf in list(self._open):
            if self._open[shelf].waiting:
                self._write(shelf)
            if shelf in self._open:
                self._end(shelf)
        return self._done

    def discard(self) -> None:
        """Remove every file of the task."""
        for open_ in self._open.values():
            with suppress(OSError, pa.ArrowException):  # a full disk, perhaps: that is why we are here
                if open_.writer is not None:
                    open_.writer.close()
                    open_.stream.close()
        self._place.remove(self._names)


# --- shelves
def shelved(batch: pa.RecordBatch) -> Iterator[tuple[Shelf, pa.RecordBatch]]:
    """The rows of a batch by shelf, in their order. Parts are copies: a few rows must not keep all the others alive."""
    bad = batch[ERROR].is_valid() if ERROR in batch.schema.names else pa.repeat(False, batch.num_rows)
    days = pc.floor_temporal(batch["timestamp"].cast(TIME), unit="day").cast(pa.date32())
    parts = [_codes(each) for each in (batch["topic"], days, bad)]
    if all(len(values) == 1 for _, values in parts):
        yield Shelf(*(values[0] for _, values in parts)), batch
        return
    sizes = tuple(len(values) for _, values in parts)
    codes = np.ravel_multi_index([codes for codes, _ in parts], sizes)
    order = np.argsort(codes, kind="stable")
    kinds, starts = np.unique(codes[order], return_index=True)
    for kind, rows in zip(kinds, np.split(order, starts[1:]), strict=True):
        chosen = [values[at] for (_, values), at in zip(parts, np.unravel_index(kind, sizes), strict=True)]
        yield Shelf(*chosen), batch.take(pa.array(rows))


def _codes(column: Any) -> tuple[Any, list[Any]]:
    coded = pc.dictionary_encode(column)
    if coded.null_count or coded.indices.null_count:
        raise ValueError("a row without a topic or a timestamp can't be kept in a lake: fill them before")
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()


# --- statistics
def statistics(meta: Any, columns: list[str]) -> dict[str, Any]:
    """What the log tells of a file, so that readers need not open it."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(meta.num_columns):
        name = meta.row_group(0).column(number).path_in_schema
        if name not in columns:
            continue
        parts = [meta.row_group(group).column(number).statistics for group in range(meta.num_row_groups)]
        nulls[name] = sum(part.null_count for part in parts)
        known = [part for part in parts if part.has_min_max]
        edges = (min(p.min for p in known), max(p.max for p in known)) if known else None
        if edges is not None and _told(edges, whole=len(known) == sum(p.num_values > 0 for p in parts)):
            low[name], high[name] = (_plain(edge) for edge in edges)
    return {"numRecords": meta.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _told(edges: tuple[Any, Any], *, whole: bool) -> bool:
    """Whether these bound all values: every row group with values told its own, and no text is cut."""
    return whole and not any(isinstance(edge, str) and len(edge) > TEXT_CHARS_MAX for edge in edges)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


def as_json(account: Mapping[tuple[str, int], Held]) -> dict[str, dict[str, list[int]]]:
    """An account for the table's log: `{"topic": {"0": [rows, first, last]}}`."""
    out: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), held in sorted(account.items()):
        out.setdefault(topic, {})[str(partition)] = list(held)
    return out
