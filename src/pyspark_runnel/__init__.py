"""What Spark finds by itself: `spark.read.format("runnel")` needs no registration (a module `pyspark_*` with a
class `DefaultSource` is looked up by name). The source is in runnel.pipelines.connector.
"""

from runnel.pipelines.connector.source import RunnelSource


class DefaultSource(RunnelSource):
    """Topics and queues of a Runnel cluster as tables and streams."""
