"""Filters that Spark hands to the source: the rows are the same, and less is fetched."""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipelines.connector.topics import Topic

from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.testing.process import BrokerProcess


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gateway]:
    yield gateway((broker.kafka,))
    close_all()


def test_filters_are_done_where_the_messages_are(spark: SparkSession, gate: Gateway, broker: BrokerProcess) -> None:
    topic = Topic(gate, "spark-pushdown", partitions=2)
    topic.send({0: 30, 1: 30})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    known = {"runnel.brokers": broker.kafka, "subscribe": topic.name}

    def chosen(table: DataFrame) -> DataFrame:
        return table.where("partition = 1 AND offset BETWEEN 7 AND 9 AND timestamp > TIMESTAMP '2020-01-01 00:00:00'")

    pushed = chosen(spark.read.format("runnel").options(**known, pushFilters="true").load())
    plain = chosen(spark.read.format("runnel").options(**known).load())
    assert sorted(pushed.collect()) == sorted(plain.collect())
    assert pushed.count() == 3
    assert pushed.rdd.getNumPartitions() == 1, "the other partition has no task"
