"""Values that are JSON, read by a real Spark: by the user's schema, and by an option where there is none."""

from pyspark.sql import SparkSession

from runnel.client.sync import connect
from runnel.testing.process import BrokerProcess


def test_values_are_columns_and_bad_ones_say_why(spark: SparkSession, broker: BrokerProcess) -> None:
    with connect(broker.kafka) as runnel:
        for value in ('{"id": 1, "tags": ["a", "b"], "at": {"lat": 47.5}}', "nonsense", '{"id": "one"}', '{"id": 2}'):
            runnel.send("spark-json", value, partition=0)
    asked = {"runnel.brokers": broker.kafka, "subscribe": "spark-json", "valueFormat": "json"}
    table = spark.read.format("runnel").options(**asked)
    by_schema = table.schema("offset long, id long, tags array<string>, at struct<lat: double>, _error string").load()
    first, nonsense, text, last = by_schema.orderBy("offset").collect()
    assert (first.id, first.tags, first.at.lat, first._error) == (1, ["a", "b"], 47.5, None)
    assert (last.id, last.tags, last.at, last._error) == (2, None, None, None)
    assert (nonsense.id, text.id) == (None, None)
    assert "malformed" in nonsense._error
    assert "$.id" in text._error
    by_option = spark.read.format("runnel").options(**asked, valueSchema="id bigint").load()
    assert [row[0] for row in by_option.orderBy("offset").select("value.id").collect()] == [1, None, None, 2]
    assert by_option.where("_error IS NOT NULL").count() == 2
