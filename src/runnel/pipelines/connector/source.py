"""Runnel as a format of Spark: says which class does what, and nothing else.

Rule 1: this module and what it imports at its top are cheap: Spark imports them in every process to look for formats.
Rule 2: options are read by the classes that use them, when they are made; a wrong one fails before any job starts.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class RunnelSource(DataSource):
    """Topics and queues of a Runnel cluster as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "runnel"

    def schema(self) -> "StructType | str":
        from runnel.pipelines.connector.arrow.columns import default_schema, json_schema
        from runnel.pipelines.connector.reading.options import Shape

        shape = Shape.of(self.options)
        if shape.value_schema:
            return json_schema(shape.value_schema, headers=shape.headers)
        return default_schema(headers=shape.headers)

    def reader(self, schema: "StructType") -> DataSourceReader:
        from runnel.pipelines.connector.reading.options import ReadOptions
        from runnel.pipelines.connector.reading.reader import RunnelReader

        options = ReadOptions.batch(self.options)
        if not options.push_filters:
            return RunnelReader(options, schema)
        from runnel.pipelines.connector.reading.pushdown import FilteringReader

        return FilteringReader(options, schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from runnel.pipelines.connector.given import is_given

        if is_given(self.options, "queues"):
            from runnel.pipelines.connector.leasing.queue_stream import queue_stream

            return queue_stream(self.options, schema)
        from runnel.pipelines.connector.reading.options import ReadOptions
        from runnel.pipelines.connector.reading.stream import RunnelStream

        return RunnelStream(ReadOptions.streaming(self.options), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from runnel.pipelines.connector.writing.writer import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        from runnel.pipelines.connector.writing.stream_writer import stream_writer

        return stream_writer(self.options, schema, overwrite)
