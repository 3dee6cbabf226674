"""Joining: epochs grow, stale registrations are replaced, a foreign one is respected."""

import pytest

from runnel.cluster.image import Broker, Controller, Endpoint
from runnel.cluster.membership import claim, is_free, register
from runnel.cluster.store import Create, Delete, Node, Set
from runnel.model.errors import BrokerIdInUse
from runnel.model.ids import BrokerId, Epoch

HERE = Broker(BrokerId(1), {"kafka": Endpoint("h", 9092)}, "r1")
VALUE = b'{"epoch":%d,"listeners":{"kafka":["h",9092]},"rack":"r1","fenced":true}'


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
    mine = Controller(BrokerId(1), Epoch(5))
    ops = [Create("/controller", value, ephemeral=True), Set("/controller-epoch", value, 4)]
    assert claim(mine, None) == ops
    assert claim(mine, Node(value, 3, session=77)) == [Delete("/controller", 3), *ops]


def test_the_place_of_the_controller_is_free_for_its_next_life_and_for_nobody_else() -> None:
    held = Node(b'{"broker":1}', 0, session=77)
    assert is_free(None, BrokerId(2), 78)
    assert not is_free(held, BrokerId(2), 78)
    assert not is_free(held, BrokerId(1), 77)
    assert is_free(held, BrokerId(1), 78)
