"""What the client's tests share: a cluster to talk to, and a name of one's own."""

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.client.talk import OnCluster, talk

from runnel.client.cluster import Cluster
from runnel.testing.process import BrokerProcess

T = TypeVar("T")


@pytest.fixture
def on_cluster(broker: BrokerProcess) -> OnCluster:
    """Run a coroutine function on the broker that all tests share."""

    def run(work: Callable[[Cluster], Awaitable[T]]) -> T:
        return talk(broker.kafka, work)

    return run


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a topic or a group that no other test uses."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", request.node.nodeid.rpartition("/")[2])
