"""The tables of the traffic job, for those who look back further than its topic does.

Rule 1: a batch is in a table once: (query, batch) is the application's transaction of its commit, looked at before, and
        the log refuses a second commit of the same query that comes in between.
Rule 2: a window has one row; a later record of the same window takes its place. Samples of lag are added.
Rule 3: files that no version of the last day needs are removed now and then, since every merge leaves some.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

TIME: Final = pa.timestamp("us", "UTC")
HOT_KEY: Final = pa.struct([("key", pa.string()), ("messages", pa.int64()), ("share", pa.float64())])
WINDOWS: Final = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("start", TIME), ("end", TIME), ("messages", pa.int64()),
        ("bytes", pa.int64()), ("messages_per_s", pa.float64()), ("bytes_per_s", pa.float64()),
        ("size_mean", pa.float64()), ("size_max", pa.int64()), ("latency_p50_ms", pa.int64()),
        ("latency_p95_ms", pa.int64()), ("latency_p99_ms", pa.int64()), ("latency_max_ms", pa.int64()),
        ("timestamps", pa.string()), ("partitions", pa.int32()), ("partitions_used", pa.int32()),
        ("skew", pa.float64()), ("hot_keys", pa.list_(HOT_KEY)), ("date", pa.date32()),
    ]
)  # fmt: skip
LAGS: Final = pa.schema(
    [
        ("group", pa.string()), ("topic", pa.string()), ("at", TIME), ("lag", pa.int64()), ("lag_max", pa.int64()),
        ("partitions", pa.int32()), ("date", pa.date32()),
    ]
)  # fmt: skip
SAME_WINDOW: Final = "t.date = s.date AND t.topic = s.topic AND t.partition = s.partition AND t.start = s.start"
DAY: Final = ["date"]
TRIES: Final = 10  # others may come first that often
CLEAN_EVERY: Final = 100  # batches
KEPT_HOURS: Final = 24

Change = Callable[[DeltaTable, CommitProperties], None]


def merge_windows(path: str, query: str, batch: int, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Put the windows of a batch into the table; False if the batch was in it."""
    table = DeltaTable.create(path, WINDOWS, mode="ignore", partition_by=DAY)
    source = pa.Table.from_pylist(list(rows), schema=WINDOWS)

    def merge(table: DeltaTable, properties: CommitProperties) -> None:
        merging = table.merge(source, SAME_WINDOW, source_alias="s", target_alias="t", commit_properties=properties)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return _once(table, query, batch, merge)


def add_lags(path: str, query: str, batch: int, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Add the samples of a batch to the table; False if the batch was in it."""
    table = DeltaTable.create(path, LAGS, mode="ignore", partition_by=DAY)
    source = pa.Table.from_pylist(list(rows), schema=LAGS)

    def append(table: DeltaTable, properties: CommitProperties) -> None:
        write_deltalake(table, source, mode="append", commit_properties=properties)

    return _once(table, query, batch, append)


def _once(table: DeltaTable, query: str, batch: int, change: Change) -> bool:
    if not query:  # a sample of no query: nobody tries it again
        change(table, CommitProperties())
        return True
    for _ in range(TRIES):
        table.update_incremental()
        last = table.transaction_version(query)
        if last is not None and batch <= last:
            return False
        try:
            change(table, CommitProperties(app_transactions=[Transaction(query, batch)]))
        except CommitFailedError:
            continue  # somebody was faster: look at what it was
        _clean(table, batch)
        return True
    raise CommitFailedError(f"{table.table_uri} was changed by others {TRIES} times while batch {batch} waited")


def _clean(table: DeltaTable, batch: int) -> None:
    if batch % CLEAN_EVERY == CLEAN_EVERY - 1:
        table.optimize.compact()
        table.vacuum(KEPT_HOURS, dry_run=False, enforce_retention_duration=False)
