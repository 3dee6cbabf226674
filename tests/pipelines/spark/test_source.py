"""Topics read by a real Spark: few tests, each of what Spark and the source do together."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from tests.pipelines.connector.topics import Topic

from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.testing.process import BrokerProcess

PATIENCE_S = 120


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gateway]:
    yield gateway((broker.kafka,))
    close_all()


@pytest.fixture
def source(spark: SparkSession, broker: BrokerProcess) -> DataStreamReader:
    return (
        spark.readStream.format("runnel").option("runnel.brokers", broker.kafka).option("startingOffsets", "earliest")
    )


def archive(stream: DataFrame, folder: Path) -> StreamingQuery:
    """Run a query until it has read all that is there, into a folder of JSON."""
    rows = stream.selectExpr("topic", "partition", "offset", "string(key) AS key", "string(value) AS value")
    query = (
        rows.writeStream.format("json")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(PATIENCE_S)
    return query


def places(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.json(str(folder / "rows")).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def test_a_topic_is_a_table_with_the_columns_of_kafkas_source(
    spark: SparkSession, gate: Gateway, broker: BrokerProcess
) -> None:
    topic = Topic(gate, "spark-table", partitions=2, retention_ms="-1")
    topic.send({0: 15, 1: 5}, time_ms=1_700_000_000_000)
    topic.transact([b"x"], commit=False)
    table = spark.read.format("runnel").options(**{"kafka.bootstrap.servers": broker.kafka, "subscribe": topic.name})
    df = table.load()
    assert df.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert df.count() == 20
    row = df.where("partition = 1 AND offset = 3").selectExpr("*", "unix_millis(timestamp) AS ms").collect()[0]
    assert (bytes(row.key), bytes(row.value), row.topic, row.ms) == (b"k3", b"3", topic.name, 1_700_000_000_003)
    narrow = table.schema("partition int, offset long").option("minPartitions", "5").load()
    assert narrow.rdd.getNumPartitions() == 5
    assert narrow.selectExpr("count(*)", "sum(offset)").first() == (20, 115)
    spark.sql(
        f"CREATE TEMPORARY VIEW t USING runnel OPTIONS (runnel.brokers '{broker.kafka}', subscribe '{topic.name}')"
    )
    assert spark.sql("SELECT count(DISTINCT key) FROM t").first() == (15,)


def test_options_are_refused_in_words(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        spark.read.format("runnel").option("subscribe", "t").option("startingOfsets", "earliest").load()
    with pytest.raises(Exception, match="'nowhere' does not exist"):
        spark.read.format("runnel").options(**{"runnel.brokers": broker.kafka, "subscribe": "nowhere"}).load().count()


def test_a_stream_in_limited_batches_shows_how_far_it_is(
    spark: SparkSession, gate: Gateway, source: DataStreamReader, tmp_path: Path
) -> None:
    topic = Topic(gate, "spark-limits", partitions=2)
    topic.send({0: 80, 1: 20})
    stream = source.option("subscribe", topic.name).option("maxOffsetsPerTrigger", "40").option("group.id", "limits")
    query = archive(stream.load(), tmp_path)
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert batches == [40, 40, 20]
    assert places(spark, tmp_path) == [(0, n) for n in range(80)] + [(1, n) for n in range(20)]
    last = query.recentProgress[-1].sources[0]
    assert str(topic.name) in (last.latestOffset or "")
    assert gate.committed("limits", [topic.at(0), topic.at(1)]) == {topic.at(0): 80, topic.at(1): 20}


def test_a_restart_repeats_the_batch_that_was_not_committed_and_finds_new_partitions(
    spark: SparkSession, gate: Gateway, source: DataStreamReader, tmp_path: Path
) -> None:
    topic = Topic(gate, "spark-restart")
    topic.send(30)
    stream = source.option("subscribe", topic.name).option("maxOffsetsPerTrigger", "20").load()
    archive(stream, tmp_path)
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    topic.send(5)
    topic.transact([b"aborted"], commit=False)
    topic.transact([b"committed"], commit=True)
    topic.grow(2)
    topic.send({1: 3})
    archive(stream, tmp_path)
    assert places(spark, tmp_path) == [(0, n) for n in range(35)] + [(0, 37)] + [(1, n) for n in range(3)]


def test_a_loss_ends_the_query_unless_it_may_go_on(
    spark: SparkSession, gate: Gateway, source: DataStreamReader, tmp_path: Path
) -> None:
    topic = Topic(gate, "spark-loss")
    topic.send(10)
    archive(source.option("subscribe", topic.name).load(), tmp_path)
    topic.send(20)
    topic.trim(15)
    with pytest.raises(StreamingQueryException, match="from 10 to 15"):
        archive(source.option("subscribe", topic.name).load(), tmp_path)
    lost = tmp_path / "lost"
    archive(source.option("failOnDataLoss", "false").option("lossLog", str(lost)).load(), tmp_path)
    assert places(spark, tmp_path) == [(0, n) for n in (*range(10), *range(15, 30))]
    assert spark.read.json(str(lost)).select("first", "end").collect() == [(10, 15)]
