"""What all tests share."""

from collections.abc import Iterator

import pytest

from runnel.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One real broker for all tests that only need some broker; they use topics of their own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process
