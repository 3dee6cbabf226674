"""The Delta table of a lake: what it holds is what its log names.

Rule 1: a batch of a query is in the table once or not at all. (query, batch) is the application's transaction of the
        commit: it is looked at before, and the log refuses a commit when another of the same query came in between.
Rule 2: one commit for each batch, whatever the number of files, tasks and topics.
Rule 3: what the log names, nobody removes here. A file is removed only when its batch is decided and the log does not
        name it, so that no commit that is still to come can name it either.
Rule 4: tables stay at protocol reader 1 / writer 2: no deletion vectors, no mapped columns. Others are refused.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from runnel.pipelines.errors import BadOption, NothingThere
from runnel.pipelines.lake.columns import PARTITIONED_BY, added, measured
from runnel.pipelines.lake.files import DataFile
from runnel.pipelines.lake.place import Place

COMMITS_MAX = 20  # others may come first that often: then something is wrong
READER, WRITER = 1, 2
STATS = "delta.dataSkippingStatsColumns"
ACCOUNT = "runnel"  # what our commits tell beyond Delta's own, in their commitInfo
LOG, LOG_FILE = "_delta_log", re.compile(r"\d{20}\.json")
TOPIC = re.compile(r"[a-zA-Z0-9._-]+")  # what brokers allow; nothing of it means anything in a path


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Which batch of which query."""

    query: str
    batch: int

    @property
    def prefix(self) -> str:
        """How the names of its files begin."""
        return f"{self.query}-{self.batch:08d}-"


def opened(place: Place, version: int | None = None) -> DeltaTable:
    """The table, now or as it was; NothingThere if there is none."""
    try:
        table = DeltaTable(place.path, version=version, storage_options=dict(place.storage) or None)
    except TableNotFoundError:
        raise NothingThere(f"there is no lake at {place.path}: the job 'archive' makes one") from None
    protocol = table.protocol()
    if protocol.min_reader_version > READER:
        raise BadOption(
            "path", place.path, f"this table needs a reader of protocol {protocol.min_reader_version}, ours is {READER}"
        )
    return table


def ready(place: Place, schema: pa.Schema) -> DeltaTable:
    """The table, made if there is none, with at least these columns."""
    try:
        table = opened(place)
    except NothingThere:
        return DeltaTable.create(
            place.path, schema, mode="ignore", partition_by=list(PARTITIONED_BY),
            configuration={STATS: ",".join(measured(schema))}, storage_options=dict(place.storage) or None,
        )  # fmt: skip
    there = arrow_schema(table)
    if list(table.metadata().partition_columns) != list(PARTITIONED_BY):
        raise BadOption("path", place.path, f"the table there is not partitioned by {', '.join(PARTITIONED_BY)}")
    lacking = added(there, schema)
    if lacking:
        table.alter.add_columns([_delta_field(each) for each in lacking])
        whole = pa.schema([*there, *lacking])
        table.alter.set_table_properties({STATS: ",".join(measured(whole))})
    return table


def _delta_field(field: pa.Field) -> Field:
    return Schema.from_arrow(pa.schema([field])).fields[0]


def arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def commit(
    place: Place, key: BatchKey, schema: pa.Schema, files: Sequence[DataFile], account: Mapping[str, Any] | None = None
) -> bool:
    """Put the files into the table, as the batch; False if the batch was in it before, with other files."""
    _check_topics(files)
    for _ in range(COMMITS_MAX):
        table = ready(place, schema)
        if is_decided(table, key):
            return not _strange(table, files)
        try:
            _commit(table, key, files, account or {})
            return True
        except CommitFailedError:
            continue  # somebody was faster: look at what it was
    raise CommitFailedError(f"{place.path} was changed by others {COMMITS_MAX} times while batch {key.batch} waited")


def is_decided(table: DeltaTable, key: BatchKey) -> bool:
    last = table.transaction_version(key.query)
    return last is not None and key.batch <= last


def _commit(table: DeltaTable, key: BatchKey, files: Sequence[DataFile], account: Mapping[str, Any]) -> None:
    table.create_write_transaction(
        [_add(file) for file in files],
        "append",
        table.schema(),
        partition_by=list(PARTITIONED_BY),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(key.query, key.batch)],
            custom_metadata={ACCOUNT: {"query": key.query, "batch": key.batch, "held": account}},
        ),
    )


def _add(file: DataFile) -> AddAction:
    values = {"topic": file.topic, "date": file.day}
    return AddAction(file.name, file.size, values, file.made_ms, True, file.stats)


def _check_topics(files: Iterable[DataFile]) -> None:
    for file in files:
        if not TOPIC.fullmatch(file.topic):
            raise BadOption("topic", file.topic, "topics have letters, digits, dots, underscores and hyphens")


def _strange(table: DeltaTable, files: Sequence[DataFile]) -> bool:
    """Whether the log does not know these files: a commit may be made although its answer was lost."""
    known = named(table)
    return not any(file.name in known for file in files)


def named(table: DeltaTable) -> set[str]:
    """The files that the table consists of."""
    return set(pa.table(table.get_add_actions())["path"].to_pylist())


def told(place: Place, version: int) -> Iterator[dict[str, Any]]:
    """What our commits up to a version say that they put in, as far as the log still has them.

    Read from the log itself: deltalake's history of an earlier version has the commits after it, too.
    """
    for name in sorted(place.names(LOG)):
        if LOG_FILE.fullmatch(name) and int(name.partition(".")[0]) <= version:
            for line in place.text(f"{LOG}/{name}").splitlines():
                info = json.loads(line).get("commitInfo", {}) if ACCOUNT in line else {}
                if ACCOUNT in info:
                    yield info[ACCOUNT]


def sweep(place: Place, key: BatchKey, kept: Sequence[DataFile]) -> list[str]:
    """Remove what other tries of a decided batch left in the folders of its files; their names.

    In folders only: to list an object store for each batch costs more than what lies there until the next vacuum.
    """
    if not place.local:
        return []
    names = {file.name for file in kept}
    folders = {name.rpartition("/")[0] for name in names}
    found = [f"{folder}/{name}" for folder in sorted(folders) for name in place.names(folder)]
    stray = [name for name in found if name.rpartition("/")[2].startswith(key.prefix) and name not in names]
    place.remove(stray)
    return stray
