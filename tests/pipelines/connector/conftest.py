"""What tests of the connector share: a gateway to the broker that all tests share, and names of their own."""

import re
from collections.abc import Iterator

import pytest

from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def gateways() -> Iterator[None]:
    """At the end of all tests no gateway is left open."""
    yield
    close_all()


@pytest.fixture
def gate(broker: BrokerProcess, gateways: None) -> Gateway:
    return gateway((broker.kafka,))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a topic or a group that no other test uses."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", request.node.nodeid.rpartition("/")[2])
