"""What the tests of pipelines share: one Spark for all tests of a pytest worker.

Rule 1: a test gets a session of its own (settings, views, queries); all share one JVM, as a start costs 12 s of a core.
Rule 2: no test stops Spark. The JVM ends when pytest does, whatever ends it: it reads a pipe that pytest holds open.
Rule 3: every driver has what makes a JVM start quickly, also one that is a process of its own.
Rule 4: what needs Spark stays with one of several workers (tests/conftest.py).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipelines.small_spark import small_spark
from tests.pipelines.spark_classes import SUBMIT_OPTIONS, java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TESTS = Path(__file__).parent / "spark"
os.environ[SUBMIT_OPTIONS] = java_options()
TYPED_FUNCTIONS = "ignore:Cannot infer the eval type from type hints:UserWarning"  # pyspark asks for hints of its own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(TYPED_FUNCTIONS))


@pytest.fixture(scope="session")
def spark_of_worker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The one Spark of this process, begun by the first test that wants it."""
    pytest.importorskip("pyspark", reason="Spark is not installed: make setup-pipelines")
    session = small_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark(spark_of_worker: "SparkSession") -> "Iterator[SparkSession]":
    """A session of the test's own; its queries end with the test."""
    session = spark_of_worker.newSession()
    yield session
    for query in session.streams.active:
        query.stop()
