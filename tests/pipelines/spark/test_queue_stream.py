"""Queues read by a real Spark: each message makes one row, over a crash too, and is accepted in the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from runnel.client.sync import Queue, connect
from runnel.testing.process import BrokerProcess

PATIENCE_S = 120
MESSAGES = 50


@pytest.fixture
def queue(broker: BrokerProcess) -> Iterator[Queue]:
    with connect(broker.kafka) as runnel:
        made = runnel.queue("spark-stream")
        made.create(partitions=2)
        for number in range(MESSAGES):
            made.send({"number": number}, key=f"k{number}")
        yield made


def take(spark: SparkSession, broker: BrokerProcess, queue: Queue, folder: Path) -> None:
    """Run a query until it has taken what is there, into a folder of Parquet files."""
    stream = (
        spark.readStream.format("runnel")
        .options(**{"runnel.brokers": broker.kafka, "queues": queue.name, "maxOffsetsPerTrigger": "30"})
        .option("valueFormat", "json")
        .schema("partition int, offset long, number long, _error string")
        .load()
    )
    sink = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    assert sink.trigger(availableNow=True).start(str(folder / "rows")).awaitTermination(PATIENCE_S)


def numbers(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.number for row in spark.read.parquet(str(folder / "rows")).collect())


def test_each_message_makes_one_row_over_a_crash_too(
    spark: SparkSession, broker: BrokerProcess, queue: Queue, tmp_path: Path
) -> None:
    take(spark, broker, queue, tmp_path)
    assert numbers(spark, tmp_path) == list(range(MESSAGES))
    assert sum(partition.accepted for partition in queue.describe().partitions) == MESSAGES

    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()  # as if Spark had been killed before it wrote that the last batch is done
    queue.send({"number": MESSAGES})
    take(spark, broker, queue, tmp_path)
    assert numbers(spark, tmp_path) == list(range(MESSAGES + 1))
    assert sum(partition.accepted for partition in queue.describe().partitions) == MESSAGES + 1
