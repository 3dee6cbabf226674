"""Joining: epochs grow, stale registrations are replaced, a foreign one is respected."""

import pytest

from runnel.cluster.image import Broker, Controller, Endpoint
from runnel.cluster.membership import claim, register
from runnel.cluster.store import Create, Delete, Node, Set
from runnel.model.errors import BrokerIdInUse
from runnel.model.ids import BrokerId, Epoch

HERE = Broker(BrokerId(1), {"kafka": Endpoint("h", 9092)}, "r1")
VALUE = b'{"epoch":%d,"listeners":{"kafka":["h",9092]},"rack":"r1"}'


def test_the_first_life_of_a_broker() -> None:
    registered, ops = register(HERE, None, None)
    assert registered.epoch == 0
    assert ops == [Create("/broker-epochs/1", b""), Create("/brokers/1", VALUE % 0, ephemeral=True)]


def test_each_life_has_a_higher_epoch() -> None:
    registered, ops = register(HERE, Node(b"", 6), None)
    assert registered.epoch == 7
    assert ops == [Set("/broker-epochs/1", b"", 6), Create("/brokers/1", VALUE % 7, ephemeral=True)]


def test_the_registration_of_an_earlier_life_is_replaced_and_never_adopted() -> None:
    _, ops = register(HERE, Node(b"", 0), Node(VALUE % 0, 2, session=77))
    assert ops == [
        Set("/broker-epochs/1", b"", 0),
        Delete("/brokers/1", 2),
        Create("/brokers/1", VALUE % 1, ephemeral=True),
    ]


def test_an_id_in_use_elsewhere_is_refused() -> None:
    other = VALUE.replace(b"9092", b"9999") % 0
    with pytest.raises(BrokerIdInUse, match="in use by another broker \\(kafka h:9999\\)"):
        register(HERE, Node(b"", 0), Node(other, 0, session=77))


def test_a_claim_is_fenced_by_the_epoch_before_it() -> None:
    value = b'{"broker":1}'
    assert claim(Controller(BrokerId(1), Epoch(5))) == [
        Create("/controller", value, ephemeral=True),
        Set("/controller-epoch", value, 4),
    ]
