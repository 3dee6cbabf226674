"""The data pipeline on Spark: the connector, the lake, and the jobs. A client of the cluster like any other.

Rule: importing this package costs nothing: Spark does it in every process that looks for formats.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.pipelines.lake.read import read_lake

__all__ = ["read_lake"]


def __getattr__(name: str) -> Any:
    if name == "read_lake":
        from runnel.pipelines.lake.read import read_lake

        return read_lake
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
