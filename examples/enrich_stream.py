"""Orders get the name and the country of their customer: a stream joined with a table, with Spark.

    make run                                     in one terminal
    .venv/bin/python examples/enrich_stream.py   in another; needs `make setup-pipelines`

The table of customers is small, so every task gets all of it (`broadcast`), and no order moves between machines: those
of one customer stay in order. A table of files is read anew by each micro-batch; this one is made by hand. An order
whose customer nobody knows goes to a topic of its own, in the same transaction as the others.
"""

import os
import tempfile
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from runnel.client.sync import Runnel, connect
from runnel.pipelines.conf import SessionConf
from runnel.pipelines.session import session

BROKER = os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")
CUSTOMERS = [(1, "Ada", "GB"), (2, "Grace", "US"), (3, "Emmy", "DE")]
ORDERS = 20  # of customers 1 to 4: nobody knows the fourth


def send(runnel: Runnel, topic: str) -> None:
    for number in range(ORDERS):
        customer = 1 + number % 4
        runnel.send(topic, {"id": number, "customer": customer, "amount": 10 * number}, key=str(customer))


def enriched(orders: DataFrame, customers: DataFrame, target: str, unknown: str) -> DataFrame:
    """Orders with what is known of their customers, and the topic that each belongs to."""
    order = f.from_json(f.col("value").cast("string"), "id long, customer long, amount double")
    read = orders.select("key", order.alias("order")).select("key", "order.*")
    joined = read.join(f.broadcast(customers), "customer", "left")
    return joined.select(
        "key",
        f.when(f.col("name").isNull(), unknown).otherwise(target).alias("topic"),
        f.to_json(f.struct("id", "customer", "name", "country", "amount")).alias("value"),
    )


def run(spark: SparkSession, orders: str, target: str, unknown: str, checkpoint: str, broker: str) -> None:
    customers = spark.createDataFrame(CUSTOMERS, "customer long, name string, country string")
    stream = (
        spark.readStream.format("runnel")
        .option("runnel.brokers", broker)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        enriched(stream, customers, target, unknown)
        .writeStream.format("runnel")
        .option("runnel.brokers", broker)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # what is there; trigger(processingTime="1 second") goes on for ever
        .start()
    )
    query.awaitTermination()


def show(spark: SparkSession, topic: str, broker: str) -> None:
    found = spark.read.format("runnel").option("runnel.brokers", broker).option("subscribe", topic).load()
    values = [row[0] for row in found.orderBy("partition", "offset").select(f.col("value").cast("string")).collect()]
    print(f"{topic.partition('-')[0]}: {len(values)} orders, the first: {values[0]}")


def main(spark: SparkSession, broker: str = BROKER) -> None:
    orders, target, unknown = (f"{name}-{time.time_ns()}" for name in ("orders", "enriched", "unknown"))
    with connect(broker) as runnel, tempfile.TemporaryDirectory() as checkpoint:
        send(runnel, orders)
        run(spark, orders, target, unknown, checkpoint, broker)
        for topic in (target, unknown):
            show(spark, topic, broker)


if __name__ == "__main__":
    with session(SessionConf("enrich_stream")) as spark:
        main(spark)
