"""A small Spark for tests: little memory, a quick start, few words, and all its files in one folder."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STACK = "-Xss8m"  # a stop needs a deep one
INTERPRETED = {  # to compile a plan costs more than to interpret it for the few rows of a test
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def small_spark(folder: Path) -> "SparkSession":
    """A session of this process, in which a task may fail twice."""
    from pyspark.sql import SparkSession

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.master("local[2,3]").appName("runnel tests")
    for name, value in settings(folder).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def settings(folder: Path) -> dict[str, str]:
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{STACK} -Djava.io.tmpdir={folder}",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # no .crc files
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **INTERPRETED,
    }
