"""What a lake needs from time to time. No Spark: one process, beside whoever writes and reads.

Rule 1: compaction makes few files of many and changes no row; readers of earlier versions keep their files.
Rule 2: vacuum removes for good: files that no version of the last `after_h` hours names, and those that no version ever
        named. A file that a task is writing right now is younger than that: `AFTER_H_MIN` keeps it so.
"""

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import WriterProperties

from runnel.pipelines.errors import BadOption
from runnel.pipelines.lake.files import FILE_BYTES
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.table import opened

AFTER_H = 7 * 24
AFTER_H_MIN = 1  # longer than any task writes at a file


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    files_before: int
    files_after: int
    bytes_after: int


def compact(place: Place, *, file_bytes: int = FILE_BYTES, topic: str | None = None) -> Compacted:
    """Write small files together, up to `file_bytes` each."""
    told: dict[str, Any] = opened(place).optimize.compact(
        partition_filters=[("topic", "=", topic)] if topic else None,
        target_size=file_bytes,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
    )
    sizes = pa.table(opened(place).get_add_actions())["size_bytes"]
    after = len(sizes)
    before = after - int(told["numFilesAdded"]) + int(told["numFilesRemoved"])
    return Compacted(before, after, sum(sizes.to_pylist()))


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """What a lake has of one topic."""

    topic: str
    rows: int
    files: int
    size: int
    first_day: str
    last_day: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a lake has, as its log tells: no file is opened."""

    version: int
    topics: tuple[TopicSummary, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summary(place: Place) -> Summary:
    """What is in a lake now."""
    table = opened(place)
    grouped = pa.table(table.get_add_actions(flatten=True)).group_by("partition.topic")
    sums = grouped.aggregate(
        [("num_records", "sum"), ("path", "count"), ("size_bytes", "sum")]
        + [("partition.date", edge) for edge in ("min", "max")]
    )
    found = [
        TopicSummary(
            row["partition.topic"], row["num_records_sum"], row["path_count"], row["size_bytes_sum"],
            row["partition.date_min"].isoformat(), row["partition.date_max"].isoformat(),
        )
        for row in sums.to_pylist()
    ]  # fmt: skip
    return Summary(table.version(), tuple(sorted(found, key=lambda each: each.topic)))


def vacuum(place: Place, *, after_h: int = AFTER_H, dry_run: bool = False) -> list[str]:
    """Remove files that nothing needs any more; their names."""
    if after_h < AFTER_H_MIN:
        raise BadOption("vacuum", f"{after_h}h", f"use {AFTER_H_MIN}h or more: tasks write files before they are named")
    return list(
        opened(place).vacuum(retention_hours=after_h, dry_run=dry_run, enforce_retention_duration=False, full=True)
    )
