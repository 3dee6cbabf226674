"""Spark's classes as a JVM lays them out in memory, kept in a file: a Spark that has it starts in half the time.

    python -m tests.pipelines.class_archive      makes the file for this Java and this pyspark, unless there is one

`make test` does that once. Without it all works the same: a JVM leaves out a file that does not fit its jars.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.pipelines.small_spark import small_spark

from runnel.pipelines.session import java_command

FOLDER = Path(__file__).resolve().parents[2] / "build" / "classes"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life needs one compiler, and no threads for garbage
END_S = 240.0


def java_options() -> str:
    """For every JVM of Spark's in tests."""
    archive = _archive()
    return QUICK if archive is None or not archive.exists() else f"{QUICK} -XX:SharedArchiveFile={archive}"


def _archive() -> Path | None:
    """Where it is for this Java and this pyspark; None if one of them is missing."""
    java = java_command()
    try:
        spark = distribution("pyspark")
    except PackageNotFoundError:
        return None
    if java is None:
        return None
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    fits = hashlib.sha256(b"%s %s %s" % (version, spark.version.encode(), os.fsencode(spark.locate_file("pyspark"))))
    return FOLDER / f"spark-{fits.hexdigest()[:16]}.jsa"


def make() -> None:
    archive = _archive()
    if archive is None or archive.exists():
        return
    print("runnel: keeping Spark's classes for quicker tests (once; half a minute, 170 MB)", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory() as folder:
        quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={unfinished} {quiet}"
        _live(Path(folder))
    unfinished.replace(archive)


def _live(folder: Path) -> None:
    """What most tests have Spark do: what is used here is in the archive."""
    spark = small_spark(folder)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    source = folder / "in"
    spark.range(200).selectExpr("id", "cast(id % 7 as string) value").write.json(str(source))
    rows = spark.readStream.schema("id long, value string").json(str(source))
    counts = rows.mapInPandas(lambda frames: frames, rows.schema).groupBy("value").count()
    stream = counts.writeStream.outputMode("complete").trigger(availableNow=True)
    stream = stream.foreachBatch(lambda frame, _: frame.foreachPartition(list)).option(
        "checkpointLocation", f"{folder}/kept"
    )
    stream.start().awaitTermination()
    spark.stop()
    gateway.proc.stdin.close()  # its sign to end, and to write the archive
    if code := gateway.proc.wait(END_S):
        sys.exit(f"runnel: Spark ended with {code} when its classes were to be kept")


if __name__ == "__main__":
    make()
