"""The archive of Spark's classes, which all its JVMs in tests start from.

python -m tests.pipelines.spark_classes      makes it, unless it is there; `make test` does that
"""

import os
import sys
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.helpers.class_archive import ClassArchive
from tests.pipelines.small_spark import small_spark

from runnel.pipelines.session import java_command

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # the variable with what every driver's JVM gets
END_S = 240.0


@cache
def archive() -> ClassArchive:
    try:
        spark = distribution("pyspark")
    except PackageNotFoundError:
        return ClassArchive("spark", None)
    return ClassArchive("spark", java_command(), spark.version, str(spark.locate_file("pyspark")))


def java_options() -> str:
    """For every JVM of Spark's in tests."""
    return " ".join(archive().options)


def main() -> None:
    if archive().is_missing:
        print("runnel: keeping Spark's classes for quicker tests (once; half a minute, 170 MB)", flush=True)
        with archive().making() as options, tempfile.TemporaryDirectory() as folder:
            os.environ[SUBMIT_OPTIONS] = " ".join(options)
            _live(Path(folder))


def _live(folder: Path) -> None:
    """What most tests have Spark do."""
    spark = small_spark(folder)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    source = folder / "in"
    spark.range(200).selectExpr("id", "cast(id % 7 as string) value").write.json(str(source))
    rows = spark.readStream.schema("id long, value string").json(str(source))
    counts = rows.mapInPandas(lambda frames: frames, rows.schema).groupBy("value").count()
    stream = counts.writeStream.outputMode("complete").option("checkpointLocation", f"{folder}/kept")
    stream.format("noop").trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    gateway.proc.stdin.close()  # its sign to end
    if code := gateway.proc.wait(END_S):
        sys.exit(f"runnel: Spark ended with {code} when its classes were to be kept")


if __name__ == "__main__":
    main()
