"""Tables and streams of Spark, written to topics of a real broker, and read by a foreign client."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as f
from tests.pipelines.reading import make_topic, read_committed, values, wait_until_written

from runnel.client.partitioner import partition_of_key
from runnel.testing.process import BrokerProcess

HEADERS = "array<struct<key:string,value:binary>>"
WAIT_S = 120


class Target:
    """A topic to write to."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.brokers, self.name = broker.kafka, name
        make_topic(self.brokers, name)

    def writer(self, table: DataFrame, **options: str) -> DataFrameWriter:
        writer = table.write.format("runnel").mode("append").option("runnel.brokers", self.brokers)
        return writer.options(topic=self.name, **options)

    def seen(self) -> list[str]:
        return values(self.brokers, self.name)


@pytest.fixture
def target(request: pytest.FixtureRequest, broker: BrokerProcess) -> Target:
    return Target(broker, re.sub(r"[^a-z0-9-]+", "-", str(request.node.name)[5:]))


def test_rows_of_a_table_arrive_whole(spark: SparkSession, target: Target) -> None:
    when = datetime.now(UTC).replace(microsecond=678_000) - timedelta(hours=1)
    rows = [("a", b"1", [("h", b"x")], when, 2), (None, b"2", None, when, None), ("b", None, [], when, None)]
    schema = f"key string, value binary, headers {HEADERS}, timestamp timestamp, partition int"
    target.writer(spark.createDataFrame(rows, schema)).save()
    found = {message.value(): message for message in read_committed(target.brokers, target.name)}
    assert set(found) == {b"1", b"2", None}
    assert (found[b"1"].key(), found[b"1"].headers(), found[b"1"].partition()) == (b"a", [("h", b"x")], 2)
    assert (found[b"2"].key(), found[b"2"].headers()) == (None, None)
    assert found[None].partition() == partition_of_key(b"b", 3)
    assert {message.timestamp()[1] for message in found.values()} == {int(when.timestamp() * 1000)}


def test_a_table_is_written_whole_or_not_at_all(spark: SparkSession, target: Target) -> None:
    """Rows of tasks that did well are not seen if one can't be written."""
    table = spark.range(0, 100, numPartitions=2).select(
        f.col("id").cast("string").alias("value"),
        f.when(f.col("id") == 99, 17).otherwise(f.lit(None).cast("int")).alias("partition"),
    )
    with pytest.raises(PySparkException, match="has no partition 17"):
        target.writer(table).save()
    assert target.seen() == []
    target.writer(table.drop("partition")).save()
    assert target.seen() == sorted(str(n) for n in range(100))


def test_a_write_that_is_named_is_done_once(spark: SparkSession, target: Target) -> None:
    table = spark.createDataFrame([("a",), ("b",)], "value string")
    for _ in range(2):
        target.writer(table, sinkId=target.name, batchId="4").save()
    assert target.seen() == ["a", "b"]
    target.writer(table).save()
    assert target.seen() == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("options", "told"),
    [({"compresion": "lz4"}, "did you mean 'compression'"), ({"batchId": "1"}, "name it with sinkId")],
)
def test_wrong_options_fail_before_any_job(
    spark: SparkSession, target: Target, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException, match=told):
        target.writer(spark.createDataFrame([("a",)], "value string"), **options).save()


def lines(folder: Path, *files: list[str]) -> Path:
    """A folder of files, each of which is a micro-batch."""
    folder.mkdir()
    for number, rows in enumerate(files):
        (folder / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))
    return folder


def run(spark: SparkSession, source: Path, target: Target, checkpoint: Path, **options: str) -> int:
    """Stream all that is there, a file at a time; returns how many batches it took."""
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).repartition(2)
    writer = stream.writeStream.format("runnel").option("runnel.brokers", target.brokers).option("topic", target.name)
    query = writer.options(**options).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def test_a_stream_arrives_once(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    source = lines(tmp_path / "in", ["a", "b"], ["c"], ["d", "e"])
    assert run(spark, source, target, tmp_path / "checkpoint") == 3
    assert target.seen() == ["a", "b", "c", "d", "e"]
    (source / "9.txt").write_text("f\n")
    assert run(spark, source, target, tmp_path / "checkpoint") == 4
    assert target.seen() == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
def test_a_batch_that_spark_runs_again(spark: SparkSession, target: Target, tmp_path: Path, semantics: str) -> None:
    """The driver died between the sink's commit and its own: it does not know that the batch is published."""
    source, checkpoint = lines(tmp_path / "in", ["a", "b"], ["c", "d"]), tmp_path / "checkpoint"
    run(spark, source, target, checkpoint, semantics=semantics)
    (checkpoint / "commits" / "1").unlink()
    run(spark, source, target, checkpoint, semantics=semantics)
    seen = target.seen()
    assert sorted(set(seen)) == ["a", "b", "c", "d"]
    assert len(seen) == (4 if semantics == "exactly-once" else 6)


def test_another_query_cannot_take_over_a_sink(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    """Its batches have the same numbers: they would be taken for published, and lost."""
    run(spark, lines(tmp_path / "one", ["a"]), target, tmp_path / "first", sinkId=target.name)
    with pytest.raises(PySparkException, match="sink"):
        run(spark, lines(tmp_path / "two", ["b"]), target, tmp_path / "second", sinkId=target.name)
    assert target.seen() == ["a"]


def test_each_batch_written_by_hand(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    """In foreachBatch a sink that is named knows the batch, and publishes it once."""
    source, checkpoint = lines(tmp_path / "in", ["a", "b"], ["c"]), tmp_path / "checkpoint"

    def write(table: DataFrame, number: int) -> None:
        target.writer(table, sinkId=target.name).save()

    def go() -> None:
        stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).writeStream.foreachBatch(write)
        query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)

    go()
    (checkpoint / "commits" / "1").unlink()
    go()
    assert target.seen() == ["a", "b", "c"]


@pytest.fixture
def failing_once(tmp_path: Path) -> Iterator[Path]:
    """A file that is there until a task has failed."""
    mark = tmp_path / "fail"
    mark.touch()
    yield mark
    assert not mark.exists(), "no task failed: nothing was tested"


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
def test_a_task_that_is_tried_again(
    spark: SparkSession, target: Target, tmp_path: Path, failing_once: Path, semantics: str
) -> None:
    """It fails when its first rows are written already."""
    mark, brokers, name = str(failing_once), target.brokers, target.name

    def failing(value: str) -> str:
        if value.startswith("00999") and Path(mark).exists():
            wait_until_written(brokers, name)
            Path(mark).unlink()
            raise OSError("this attempt fails")
        return value

    rows = [f"{n:05}" + "x" * 1_000 for n in range(1_000)]  # more than waits in buffers between Spark and its workers
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    stream = spark.readStream.text(str(lines(tmp_path / "in", rows))).select(f.udf(failing)("value").alias("value"))
    writer = stream.writeStream.format("runnel").option("runnel.brokers", target.brokers).option("topic", target.name)
    writer = writer.option("semantics", semantics).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    seen = target.seen()
    assert sorted(set(seen)) == rows
    assert (len(seen) == len(rows)) == (semantics == "exactly-once")
