"""Delta tables that keep what topics held: written by Spark's tasks, committed once for each batch, read by anybody."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.pipelines.lake.read import read_lake

__all__ = ["read_lake"]


def __getattr__(name: str) -> Any:
    if name == "read_lake":  # not before it is asked for: Spark imports this package to look for formats
        from runnel.pipelines.lake.read import read_lake

        return read_lake
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
