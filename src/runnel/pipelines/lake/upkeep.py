"""What a lake needs from time to time. No Spark: one process, beside whoever writes and reads.

Rule 1: compaction makes few files of many and changes no row; readers of earlier versions keep their files.
Rule 2: vacuum removes for good: files that no version of the last `after_h` hours names, and those that no version ever
        named. A file that a task is writing right now is younger than that: `AFTER_H_MIN` keeps it so.
"""

from dataclasses import dataclass
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


def vacuum(place: Place, *, after_h: int = AFTER_H, dry_run: bool = False) -> list[str]:
    """Remove files that nothing needs any more; their names."""
    if after_h < AFTER_H_MIN:
        raise BadOption("vacuum", f"{after_h}h", f"use {AFTER_H_MIN}h or more: tasks write files before they are named")
    return list(
        opened(place).vacuum(retention_hours=after_h, dry_run=dry_run, enforce_retention_duration=False, full=True)
    )
