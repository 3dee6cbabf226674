"""A driver that is about to be killed: it archives a topic, and its second task never ends.

    held_archive.py BROKERS TOPIC LAKE CHECKPOINT FOLDER

Files of the first task are written; nothing is committed.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.pipelines.small_spark import small_spark

from runnel.pipelines.conf import StreamConf
from runnel.pipelines.jobs.archive import ArchiveConf, archived, sink_options


def hold(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    while context is not None and context.partitionId() == 1:
        time.sleep(0.1)


def main(brokers: str, topic: str, lake: str, checkpoint: str, folder: str) -> None:
    spark = small_spark(Path(folder))
    conf = ArchiveConf(StreamConf(checkpoint, brokers, once=True), lake, (topic,))
    rows = archived(spark, conf)
    held = rows.mapInArrow(hold, rows.schema).writeStream.format("runnel_lake").options(**sink_options(conf))
    held.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
