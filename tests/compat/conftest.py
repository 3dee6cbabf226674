"""Real clients against a real broker.

pytest tests/compat                              starts one Runnel for the whole run
pytest tests/compat --bootstrap HOST:PORT        uses the broker that listens there: the tests hold for Kafka too
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import pytest
from tests.compat.stage import Stage

from runnel.testing.process import BrokerProcess

PARALLEL = 8  # tests at once: they mostly wait


def pytest_addoption(parser: pytest.Parser) -> None:
    """The broker to use instead of a Runnel of our own."""
    parser.addoption("--bootstrap", metavar="HOST:PORT", help="test the broker at this address, start none")


def pytest_configure(config: pytest.Config) -> None:
    """The marker of tests that may run at the same time."""
    config.addinivalue_line("markers", "side_by_side: runs at once with its kind; takes the stage and its parameters")


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The broker and the agents, for the whole run."""
    folder = tmp_path_factory.mktemp("compat")
    if given := request.config.getoption("--bootstrap", default=None):
        stage = Stage(given, folder)
        yield stage
        stage.close()
        return
    with BrokerProcess(folder / "data") as broker:
        stage = Stage(broker.kafka, folder)
        yield stage
        stage.close()
        assert broker.stop() == 0, f"the broker ended on its own:\n{broker.errors()[-4000:]}"


@pytest.fixture(scope="session", autouse=True)
def side_by_side() -> Iterator[None]:
    """The pool for tests that mostly wait (for timeouts of groups, for instance)."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        _running.pool = pool
        yield


class _Running:
    pool: ThreadPoolExecutor
    tests: ClassVar[dict[str, Future[None]]] = {}


_running = _Running()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Start all tests of a module marked `side_by_side` when its first one comes; each answers for itself."""
    if pyfuncitem.get_closest_marker("side_by_side") is None:
        return None
    if pyfuncitem.nodeid not in _running.tests:
        for item in pyfuncitem.session.items:
            assert isinstance(item, pytest.Function)
            if item.path == pyfuncitem.path and item.get_closest_marker("side_by_side"):
                work = partial(item.obj, stage=pyfuncitem.funcargs["stage"], **item.callspec.params)
                _running.tests[item.nodeid] = _running.pool.submit(work)
    _running.tests[pyfuncitem.nodeid].result()
    return True
