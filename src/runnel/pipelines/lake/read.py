"""A lake as a DataFrame, read by Spark's own Parquet reader.

Rule 1: one version of the table is looked up once: what is written, compacted or added meanwhile changes nothing.
Rule 2: files are skipped by what the log tells of them; every row is judged by Spark. Both see the same condition.
Rule 3: types are the table's, never guessed: a topic that is called 0123 stays a text.
"""

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from runnel.pipelines.lake.columns import measured
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.predicate import Column, skippers
from runnel.pipelines.lake.table import arrow_schema, opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z")


def read_lake(
    spark: "SparkSession",
    path: str,
    version: int | None = None,
    where: str | None = None,
    *,
    storage: "Mapping[str, str] | None" = None,
) -> "DataFrame":
    """The rows of a lake, of its newest version or an earlier one, for which the SQL condition holds."""
    table = opened(Place.of(path, storage), version)
    utc = str(spark.conf.get("spark.sql.session.timeZone")) in UTC_NAMES
    rows = rows_of(spark, path_of(table), spark_schema(table), chosen_files(table, where, utc=utc))
    return rows if where is None else rows.where(where)


def rows_of(spark: "SparkSession", base: str, schema: "StructType", files: list[str]) -> "DataFrame":
    """The rows of some files of a table."""
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", base).parquet(*files).select(*schema.fieldNames())


def chosen_files(table: "DeltaTable", where: str | None, *, utc: bool = True) -> list[str]:
    """The files that may hold a row of interest, by the bounds in the log."""
    conditions = skippers(where, columns_of(table), utc=utc) if where else []
    if not conditions:
        return sorted(table.file_uris())
    found = [set(table.file_uris(file_pruning_predicate=each)) for each in conditions]
    return sorted(set.intersection(*found))


def columns_of(table: "DeltaTable") -> list[Column]:
    """The columns whose bounds the log tells."""
    schema = arrow_schema(table)
    names = ["topic", "date", *measured(schema)]
    return [Column(name, _kind(schema.field(name).type)) for name in names]


def _kind(type_: Any) -> str:
    if pa.types.is_string(type_):
        return "text"
    if pa.types.is_timestamp(type_):
        return "time"
    return "day" if pa.types.is_date(type_) else "number"


def spark_schema(table: "DeltaTable") -> "StructType":
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def path_of(table: "DeltaTable") -> str:
    """The table's address, as the addresses of its files begin."""
    return str(table.table_uri).removeprefix("file://").rstrip("/")
