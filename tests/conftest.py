"""What all tests share."""

import gc
import json
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper, missing

# Done by one worker from first to last, as all of it shares what starts slowly: a Spark, or brokers and clients.
TOGETHER = ("tests/pipelines/spark/", "tests/compat/")
APART = ("tests/simulation/", "tests/pipelines/spark/test_cluster.py", "tests/faults/")  # each test may go elsewhere
SERVE_S = 60.0  # until all brokers of a cluster have heard of each other
LONGEST_FIRST = (
    "tests/pipelines/spark/",
    "tests/compat/",
    "tests/faults/",
    "tests/bench/test_main.py",
    "tests/test_exactly_once.py",
    "tests/simulation/",
)


# An example may take as long as a busy machine takes for it.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Ctrl-C works in what tests start, also where a shell started the tests in the background and so ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def no_garbage_is_looked_for() -> Iterator[None]:
    """Python 3.11 can't parse while it parses: what is collected meanwhile may log a traceback, which is parsed too."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins early, or all wait for it in the end."""
    items.sort(key=lambda item: _place_in_line(item.nodeid))


def _place_in_line(test: str) -> int:
    return next((place for place, long in enumerate(LONGEST_FIRST) if test.startswith(long)), len(LONGEST_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Several workers take the tests module by module: a worker starts what a module needs once."""
    config.option.loadscopereorder = False  # the line is in order
    return ByModule(config, log)


class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out modules, and what is TOGETHER or APART as such, to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(APART):
            return nodeid
        together = (folder for folder in TOGETHER if nodeid.startswith(folder))
        return next(together, nodeid.split("::")[0])


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
        # Nobody ends here: so sessions are long, and a machine that stands still for a moment ends none.
        patient = {"RUNNEL_SESSION_MS": "30000"}
        brokers = [stack.enter_context(cluster_broker(zookeeper, folder, number, **patient)) for number in (1, 2, 3)]
        wait_until_all_serve(brokers)
        yield brokers


def wait_until_all_serve(brokers: Sequence[BrokerProcess]) -> None:
    """Return when each broker tells its clients of all of them: a broker that is ready may not have heard of others."""
    end = time.monotonic() + SERVE_S
    while not all(_told_of(broker) == len(brokers) for broker in brokers):
        assert time.monotonic() < end, [_told_of(broker) for broker in brokers]
        time.sleep(0.05)


def _told_of(broker: BrokerProcess) -> int:
    """The number of serving brokers, as one of them sees it."""
    with urlopen(f"http://{broker.http}/v1/cluster", timeout=SERVE_S) as answer:
        return sum(each["state"] == "serving" for each in json.load(answer)["brokers"])


def cluster_broker(zookeeper: ZooKeeper, folder: Path, number: int, **more: str) -> BrokerProcess:
    """A broker of the cluster whose metadata lie below the path of a folder; `more` goes into its environment."""
    environment = {"RUNNEL_SESSION_MS": "2000", "RUNNEL_STORE": f"zookeeper://{zookeeper.address}{folder}"}
    return BrokerProcess(folder / str(number), "--broker-id", str(number), environment=environment | more)
