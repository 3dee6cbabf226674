"""What the tests of the HTTP door share."""

import pytest

from runnel.testing.process import BrokerProcess

from .api import Api


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    """The HTTP door of the one real broker."""
    return Api(broker.http)
