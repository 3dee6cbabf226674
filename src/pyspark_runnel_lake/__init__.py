"""What Spark finds by itself: `df.writeStream.format("runnel_lake")` needs no registration, in any session (a module
`pyspark_*` with a class `DefaultSource` is looked up by name). The sink is in runnel.pipelines.lake.
"""

from runnel.pipelines.lake.sink import LakeFormat


class DefaultSource(LakeFormat):
    """A lake as a sink of streams."""
