"""What all tests share."""

import gc
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper, missing

HERE = Path(__file__).parent
SPARK = frozenset({HERE / "pipelines" / "spark"})
LONG = frozenset(
    HERE / name for name in ("faults", "bench/test_main.py", "test_exactly_once.py", "pipelines/spark/test_cluster.py")
)


@contextmanager
def no_garbage_is_looked_for() -> Iterator[None]:
    """Python 3.11 can't parse while it parses: what is collected meanwhile may log a traceback, which is parsed too."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long begins early, or all wait for it in the end.

    Each of several workers gets an equal part of the line, and takes from the ends of others' when it has done its own:
    so Spark's tests stay with the first, which has one Spark for them all, and the second begins with other long ones.
    """
    long = [item for item in items if _is_among(item, LONG)]
    spark = [item for item in items if _is_among(item, SPARK) and not _is_among(item, LONG)]
    others = [item for item in items if not _is_among(item, SPARK | LONG)]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    with_spark = max(0, len(items) // workers - len(spark))
    items[:] = [*spark, *others[:with_spark], *long, *others[with_spark:]]


def _is_among(item: pytest.Item, paths: frozenset[Path]) -> bool:
    return not paths.isdisjoint((item.path, *item.path.parents))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """No garbage is looked for among the tests themselves and their modules: simulations do that with each seed."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    with no_garbage_is_looked_for():  # a failure is shown with its source, which is parsed
        return (yield)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One real broker for all tests that only need some broker; they use topics of their own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def need_zookeeper() -> None:
    """Skip a test that needs a ZooKeeper where none can be had; on the way to a merge that is a failure."""
    if problem := missing():
        if os.environ.get("CI"):
            pytest.fail(f"a real ZooKeeper is needed: {problem}")
        pytest.skip(f"no ZooKeeper: {problem}")


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One real ZooKeeper for all tests that only need some; they use paths of their own."""
    need_zookeeper()
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="session")
def trio(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    """Brokers 1, 2 and 3 of one cluster, for all tests that do them no harm; they use topics of their own."""
    folder = tmp_path_factory.mktemp("trio")
    with ExitStack() as stack:
        yield [stack.enter_context(cluster_broker(zookeeper, folder, number)) for number in (1, 2, 3)]


def cluster_broker(zookeeper: ZooKeeper, folder: Path, number: int, **more: str) -> BrokerProcess:
    """A broker of the cluster whose metadata lie below the path of a folder; `more` goes into its environment."""
    environment = {"RUNNEL_SESSION_MS": "2000", "RUNNEL_STORE": f"zookeeper://{zookeeper.address}{folder}"}
    return BrokerProcess(folder / str(number), "--broker-id", str(number), environment=environment | more)
