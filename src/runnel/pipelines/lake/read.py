"""A lake as a DataFrame, read by Spark's own Parquet reader.

Rule 1: one version of the table is looked up once: what is written, compacted or added meanwhile changes nothing.
Rule 2: files are skipped by what the log tells of them; every row is judged by Spark. Both see the same condition.
Rule 3: types are the table's, never guessed: a topic that is called 0123 stays a text.
"""

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from runnel.pipelines.lake.columns import measured
from runnel.pipelines.lake.place import LOCAL, Place
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
    addresses = [spark_address(file) for file in files]
    rows = spark.read.schema(schema).option("basePath", spark_address(base)).parquet(*addresses)
    return rows.select(*schema.fieldNames())


def spark_address(uri: str) -> str:
    """An address as Hadoop's file systems know it: their S3 is s3a, and nothing in it is encoded."""
    if uri.startswith("s3://"):
        return f"s3a{uri[2:]}"
    return uri if "://" in uri else f"file://{uri}"


def chosen_files(table: "DeltaTable", where: str | None, *, utc: bool = True) -> list[str]:
    """The files that may hold a row of interest, by the bounds in the log."""
    conditions: list[str | None] = [*skippers(where, columns_of(table), utc=utc)] if where else []
    found = [set(table.file_uris(file_pruning_predicate=each)) for each in conditions or [None]]
    return sorted(_plain(table, uri) for uri in set.intersection(*found))


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
    return _plain(table, str(table.table_uri).rstrip("/"))


def _plain(table: "DeltaTable", uri: str) -> str:
    """An address of deltalake as a path, if the table is in a folder: it encodes what is unusual in names."""
    return unquote(uri.removeprefix(LOCAL)) if str(table.table_uri).startswith(LOCAL) else uri
