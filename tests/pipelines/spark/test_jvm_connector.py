"""Spark's own Kafka connector, unmodified, against Runnel: it reads what ours reads, and ours reads what it writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipelines.connector.topics import Topic

from bench import spark_connector
from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.testing.process import BrokerProcess

PATIENCE_S = 120
COUNTS = {0: 25, 1: 5}


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gateway]:
    yield gateway((broker.kafka,))
    close_all()


@pytest.fixture
def jvm(spark: SparkSession) -> SparkSession:
    """A session that knows `format("kafka")`."""
    if problem := spark_connector.missing():
        pytest.skip(f"Spark's Kafka connector can't be had: {problem}")
    for jar in spark_connector.jars():
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def topic(gate: Gateway) -> Topic:
    """With committed messages, and some of a transaction that was aborted."""
    made = Topic(gate, "jvm-connector", partitions=2)
    made.send(COUNTS)
    made.transact([b"never", b"happened"], commit=False)
    made.transact([b"did"], commit=True)
    return made


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.drop("headers").collect()), key=repr)


def test_sparks_own_connector_reads_and_writes_what_ours_does(
    jvm: SparkSession, topic: Topic, broker: BrokerProcess, tmp_path: Path
) -> None:
    known = {"kafka.bootstrap.servers": broker.kafka, "startingOffsets": "earliest", "includeHeaders": "true"}
    committed = {**known, "kafka.isolation.level": "read_committed", "subscribe": topic.name}
    ours = jvm.read.format("runnel").options(**committed).load()
    theirs = jvm.read.format("kafka").options(**committed).load()
    assert theirs.schema == ours.schema
    assert len(rows(ours)) == sum(COUNTS.values()) + 1
    assert rows(theirs) == rows(ours)

    copied = Topic(topic.gate, "jvm-connector-copy", partitions=2)
    stream = jvm.readStream.format("kafka").options(**committed).load().select("key", "value", "partition")
    query = (
        stream.writeStream.format("kafka")
        .options(topic=copied.name, checkpointLocation=str(tmp_path), **{"kafka.bootstrap.servers": broker.kafka})
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    found = jvm.read.format("runnel").options(**known, subscribe=copied.name).load()
    same = ("partition", "key", "value")
    assert rows(found.select(*same)) == rows(ours.select(*same))
