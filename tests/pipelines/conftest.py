"""What the tests of pipelines share: one Spark for all tests of a pytest worker.

Rule 1: a test gets a session of its own (settings, views, queries); all share one JVM, as a start costs 12 s of a core.
Rule 2: no test stops Spark. The JVM ends when pytest does, whatever ends it: it reads a pipe that pytest holds open.
Rule 3: what needs Spark comes first, and so stays with one of several workers: others take work from the line's end.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TESTS = Path(__file__).parent / "spark"
JAVA = "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a stop needs a deep stack, a short life one compiler

TYPED_FUNCTIONS = "ignore:Cannot infer the eval type from type hints:UserWarning"  # pyspark asks for hints of its own


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(TYPED_FUNCTIONS))
    items.sort(key=lambda item: SPARK_TESTS not in item.path.parents)


@pytest.fixture(scope="session")
def spark_of_worker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The one Spark of this process, begun by the first test that wants it."""
    pytest.importorskip("pyspark", reason="Spark is not installed: make setup-pipelines")
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.master("local[2,3]").appName("runnel tests")  # a task may fail twice
    for name, value in settings(folder).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def settings(folder: Path) -> dict[str, str]:
    """What makes Spark small and quiet, and keeps its files in one folder."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={folder}",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # no .crc files
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@pytest.fixture
def spark(spark_of_worker: "SparkSession") -> "Iterator[SparkSession]":
    """A session of the test's own; its queries end with the test."""
    session = spark_of_worker.newSession()
    yield session
    for query in session.streams.active:
        query.stop()
