"""Each payment once, however often its sender repeats it: from topic to topic with Spark, exactly once.

    make run                                    in one terminal
    .venv/bin/python examples/dedup_stream.py   in another; needs `make setup-pipelines`

A sender that hears nothing sends again, so the topic has payments twice and three times. The stream drops every repeat
that comes within an hour of the first, by the payment's id; Spark's state remembers the ids that long, and no longer.
What is left goes to another topic, each batch published once: also if the stream ends and is started again, as here.
"""

import os
import tempfile
import time
from collections import Counter

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from runnel.client.sync import Runnel, connect
from runnel.pipelines.conf import SessionConf
from runnel.pipelines.session import session

BROKER = os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")
PAYMENTS = 50


def send(runnel: Runnel, topic: str, times: int) -> int:
    """Send payment 0 once, 1 twice, 2 `times` times and so on; how many messages that were."""
    sent = 0
    for number in range(PAYMENTS):
        for _ in range(1 + number % times):
            runnel.send(topic, {"payment": f"p-{number}", "amount": number}, key=f"account-{number % 7}")
            sent += 1
    return sent


def unique(payments: DataFrame) -> DataFrame:
    """The first of each payment, as it came."""
    named = payments.withColumn("payment", f.get_json_object(f.col("value").cast("string"), "$.payment"))
    return named.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["payment"])


def run(spark: SparkSession, source: str, target: str, checkpoint: str, broker: str) -> None:
    """Bring what is new in the source into the target, and end. Without `trigger` it would go on for ever."""
    payments = (
        spark.readStream.format("runnel")
        .option("runnel.brokers", broker)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        unique(payments)
        .select("key", "value", "headers")
        .writeStream.format("runnel")
        .option("runnel.brokers", broker)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)  # how far it is, and which ids it knows
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def kept(spark: SparkSession, topic: str, broker: str) -> Counter[str]:
    """How often each payment is in a topic."""
    found = spark.read.format("runnel").option("runnel.brokers", broker).option("subscribe", topic).load()
    rows = found.select(f.get_json_object(f.col("value").cast("string"), "$.payment")).collect()
    return Counter(row[0] for row in rows)


def main(spark: SparkSession, broker: str = BROKER) -> None:
    source, target = f"payments-{time.time_ns()}", f"unique-{time.time_ns()}"
    with connect(broker) as runnel, tempfile.TemporaryDirectory() as checkpoint:
        runnel.send(target, {"payment": "none"})  # makes the topic
        for round_ in (1, 2):
            sent = send(runnel, source, times=3)
            run(spark, source, target, checkpoint, broker)
            payments = kept(spark, target, broker)
            del payments["none"]
            once = set(payments.values()) == {1}
            print(f"round {round_}: {sent} messages sent, {payments.total()} payments kept, each once: {once}")


if __name__ == "__main__":
    with session(SessionConf("dedup_stream")) as spark:
        main(spark)
