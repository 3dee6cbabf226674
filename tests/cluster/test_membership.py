"""Joining: epochs grow, stale registrations are replaced, a foreign one is respected, a folder is known by its id."""

from uuid import UUID

import pytest

from runnel.cluster.image import Broker, BrokerState, Controller, Endpoint
from runnel.cluster.membership import DAMAGED_MAX, Identity, Past, claim, declare, is_free, register
from runnel.cluster.store import Create, Delete, Node, Set
from runnel.model.errors import BrokerIdInUse
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId

HERE = Broker(BrokerId(1), {"kafka": Endpoint("h", 9092)}, "r1")
FOLDER = Identity("c", BrokerId(1), "d1")
KNOWN = Node(b'{"directory":"d1"}', 0)
VALUE = (
    b'{"epoch":%d,"listeners":{"kafka":["h",9092]},"rack":"r1","state":"starting","clean":%s,'
    b'"directory":"d1","directory_version":%d,"new_disk":false,"damaged":[]}'
)


def value(epoch: int, clean: bool = False, directory_version: int = 0) -> bytes:
    return VALUE % (epoch, b"true" if clean else b"false", directory_version)


def test_the_first_life_of_a_broker() -> None:
    registered, ops = register(HERE, FOLDER, Past(None, None, None))
    assert (registered.epoch, registered.state) == (0, BrokerState.STARTING)
    assert ops == [Create("/broker-epochs/1", b""), Create("/brokers/1", value(0, clean=True), ephemeral=True)]


def test_each_life_has_a_higher_epoch() -> None:
    registered, ops = register(HERE, FOLDER, Past(Node(b"", 6), KNOWN, None))
    assert registered.epoch == 7
    expected = value(7, directory_version=1)
    assert ops == [Set("/broker-epochs/1", b"", 6), Create("/brokers/1", expected, ephemeral=True)]


def test_the_registration_of_an_earlier_life_is_replaced_and_never_adopted() -> None:
    _, ops = register(HERE, FOLDER, Past(Node(b"", 0), None, Node(value(0), 2, session=77)))
    assert ops == [
        Set("/broker-epochs/1", b"", 0),
        Delete("/brokers/1", 2),
        Create("/brokers/1", value(1), ephemeral=True),
    ]


def test_an_id_in_use_elsewhere_is_refused() -> None:
    other = value(0).replace(b"9092", b"9999")
    with pytest.raises(BrokerIdInUse, match="in use by another broker \\(kafka h:9999\\)"):
        register(HERE, FOLDER, Past(Node(b"", 0), KNOWN, Node(other, 0, session=77)))


@pytest.mark.parametrize(
    ("clean_epoch", "last", "clean"),
    [
        (None, None, True),  # there was no life that could have ended badly
        (None, 4, False),
        (4, 4, True),
        (3, 4, False),  # the folder slept through a life: say it was restored from a copy
        (5, 4, False),
    ],
)
def test_only_the_mark_of_the_very_last_life_counts(clean_epoch: int | None, last: int | None, clean: bool) -> None:
    folder = Identity("c", BrokerId(1), "d1", None if clean_epoch is None else Epoch(clean_epoch))
    past = Past(None if last is None else Node(b"", last), KNOWN, None)
    assert register(HERE, folder, past)[0].clean is clean


@pytest.mark.parametrize(
    ("known", "new_disk", "version"), [(None, False, 0), (KNOWN, False, 1), (Node(b'{"directory":"d0"}', 6), True, 7)]
)
def test_another_folder_is_told_from_the_known_one(known: Node | None, new_disk: bool, version: int) -> None:
    registered, ops = register(HERE, FOLDER, Past(Node(b"", 3), known, None))
    assert (registered.new_disk, registered.directory_version) == (new_disk, version)
    assert all("directory" not in op.path for op in ops)  # it is noted with the admission, not before


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


LOST = PartitionKey(TopicId(UUID(int=1)), 0)
ALSO_LOST = PartitionKey(TopicId(UUID(int=1)), 1)


def test_what_a_broker_says_of_itself_adds_up() -> None:
    ready = declare(HERE, BrokerState.READY, [LOST])
    assert (ready.state, ready.damaged, ready.version) == (BrokerState.READY, (LOST,), HERE.version + 1)
    more = declare(ready, None, [ALSO_LOST, LOST])
    assert (more.state, more.damaged, more.version) == (BrokerState.READY, (LOST, ALSO_LOST), HERE.version + 2)


def test_what_was_said_before_is_not_written_again() -> None:
    said = declare(HERE, BrokerState.READY, [LOST])
    assert declare(said, BrokerState.READY, [LOST]) is said
    assert declare(said, None, []) is said


def test_with_too_many_copies_lost_the_whole_disk_is() -> None:
    lost = [PartitionKey(LOST.topic_id, number) for number in range(DAMAGED_MAX + 1)]
    assert declare(HERE, BrokerState.READY, lost[:-1]).damaged == tuple(lost[:-1])
    everything = declare(HERE, BrokerState.READY, lost)
    assert (everything.damaged, everything.new_disk) == ((), True)
