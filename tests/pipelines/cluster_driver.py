"""The driver of the test of real clusters, as a process of its own: `archive` and `fleet` in one session.

python -m tests.pipelines.cluster_driver MASTER BROKERS FOLDER forever|once

It prints a line of JSON for each step. `once` ends with the audit of log and lake.
"""

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from threading import Event

from pyspark.sql import SparkSession
from tests.pipelines.small_spark import INTERPRETED
from tests.pipelines.spark_classes import java_options

from runnel.pipelines.conf import SessionConf, StreamConf
from runnel.pipelines.jobs import archive
from runnel.pipelines.jobs.audit import job as audit
from runnel.pipelines.jobs.fleet import job as fleet
from runnel.pipelines.jobs.fleet.topics import Topics
from runnel.pipelines.progress import Step, follow
from runnel.pipelines.session import session

TOPICS = Topics("cars", "fleet")
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": java_options(),
    "spark.executor.memory": "700m",
    "spark.sql.shuffle.partitions": "2",
    "spark.network.timeout": "240s",
    **INTERPRETED,
}


def tell(step: Step) -> None:
    print(json.dumps(asdict(step)), flush=True)


def jobs(spark: SparkSession, brokers: str, folder: Path, once: bool) -> None:
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def stream(name: str) -> StreamConf:
        return StreamConf(str(folder / name), brokers, once, 500)

    lake = archive.ArchiveConf(stream("archive"), str(folder / "lake"), (TOPICS.source,))
    cars = fleet.FleetConf(stream("fleet"), TOPICS, late_ms=600_000, buckets=4)
    follow([archive.run(spark, lake), *fleet.run(spark, cars)], tell, stop)


def main(master: str, brokers: str, folder: Path, once: bool) -> None:
    conf = SessionConf("cluster test", master, SETTINGS, log=str(folder / f"spark-{once}.log"))
    with session(conf) as spark:
        jobs(spark, brokers, folder, once)
        if once:
            against = audit.AuditConf(brokers, (TOPICS.source,), str(folder / "lake"))
            print(json.dumps({"audit": audit.run(spark, against).as_json()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "once")
