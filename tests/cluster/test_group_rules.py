"""Settings of groups: what makes a queue, what is taken, and where it lies."""

import pytest

from runnel.cluster import nodes
from runnel.cluster.config_rules import ConfigChange, ConfigOp
from runnel.cluster.group_rules import GroupResource, Purpose, alter
from runnel.cluster.image import Delta, Image, Overrides
from runnel.cluster.store import Create, Delete, Set
from runnel.model.errors import (
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    QueueAlreadyExists,
    RunnelError,
    UnknownQueue,
)

EMPTY = Image("c")
QUEUE = EMPTY.apply(Delta(configs={"group:q": Overrides({"topic": "q", "lease.ms": "5"}, 3)}))


def change(image: Image, purpose: Purpose, *changes: ConfigChange, incremental: bool = True) -> Delta:
    return alter(image, GroupResource("q", purpose), changes, incremental=incremental).delta


def test_a_queue_is_created_altered_and_deleted() -> None:
    created = change(EMPTY, Purpose.CREATE, ConfigChange("topic", "q"), ConfigChange("lanes", "2"))
    assert created.configs == {"group:q": Overrides({"topic": "q", "lanes": "2"}, 0)}
    altered = change(QUEUE, Purpose.ALTER_QUEUE, ConfigChange("lease.ms", None, ConfigOp.DELETE))
    assert altered.configs == {"group:q": Overrides({"topic": "q"}, 4)}
    assert change(QUEUE, Purpose.DELETE).configs == {"group:q": None}
    assert QUEUE.apply(change(QUEUE, Purpose.DELETE)).configs == {}


def test_a_share_group_has_settings_without_being_a_queue() -> None:
    set_ = change(EMPTY, Purpose.ALTER, ConfigChange("share.delivery.count.limit", "7"))
    assert set_.configs == {"group:q": Overrides({"attempts.max": "7"}, 0)}
    group = EMPTY.apply(set_)
    gone = change(group, Purpose.ALTER, ConfigChange("attempts.max", None, ConfigOp.DELETE))
    assert gone.configs == {"group:q": None}
    made = change(group, Purpose.CREATE, ConfigChange("topic", "t"))
    assert made.configs == {"group:q": Overrides({"attempts.max": "7", "topic": "t"}, 1)}


def test_all_settings_anew_leave_a_queue_a_queue() -> None:
    anew = change(QUEUE, Purpose.ALTER, ConfigChange("start", "latest"), incremental=False)
    assert anew.configs == {"group:q": Overrides({"topic": "q", "start": "latest"}, 4)}


def test_what_changes_nothing_writes_nothing() -> None:
    assert change(QUEUE, Purpose.ALTER, ConfigChange("lease.ms", "5")).configs == {}
    assert change(EMPTY, Purpose.ALTER, ConfigChange("who.knows", None, ConfigOp.DELETE)).configs == {}


@pytest.mark.parametrize(
    ("image", "purpose", "changes", "error"),
    [
        (QUEUE, Purpose.CREATE, [ConfigChange("topic", "q")], QueueAlreadyExists),
        (EMPTY, Purpose.DELETE, [], UnknownQueue),
        (EMPTY, Purpose.ALTER_QUEUE, [ConfigChange("lanes", "2")], UnknownQueue),
        (EMPTY, Purpose.ALTER, [ConfigChange("topic", "t")], InvalidConfig),
        (QUEUE, Purpose.ALTER, [ConfigChange("topic", None, ConfigOp.DELETE)], InvalidConfig),
        (QUEUE, Purpose.ALTER, [ConfigChange("lanes", "none")], InvalidConfig),
        (QUEUE, Purpose.ALTER, [ConfigChange("colour", "red")], InvalidConfig),
        (QUEUE, Purpose.ALTER, [ConfigChange("lanes", "2", ConfigOp.APPEND)], InvalidConfig),
        (QUEUE, Purpose.ALTER, [ConfigChange("lanes", None)], InvalidRequest),
        (
            QUEUE,
            Purpose.ALTER,
            [ConfigChange("lease.ms", "1"), ConfigChange("share.record.lock.duration.ms", "2")],
            InvalidRequest,
        ),
    ],
)
def test_what_is_refused(image: Image, purpose: Purpose, changes: list[ConfigChange], error: type[RunnelError]) -> None:
    with pytest.raises(error):
        change(image, purpose, *changes)


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128])
def test_a_name_that_no_store_takes_is_refused(name: str) -> None:
    with pytest.raises(InvalidGroupId):
        alter(EMPTY, GroupResource(name), [ConfigChange("lanes", "2")], incremental=True)


@pytest.mark.parametrize("name", ["orders", "a/b", "..", "ü%2F", "group:x", " "])
def test_a_group_of_any_name_has_a_node(name: str) -> None:
    key = GroupResource(name).key
    path = nodes.config_path(key)
    assert path.count("/") == 2
    assert path.startswith("/configs/group:")
    assert nodes.config_keys({path.rpartition("/")[2]: 1}) == {key: 1}


def test_the_operations_of_settings() -> None:
    def ops(delta: Delta) -> list[object]:
        return [op for piece in nodes.pieces(QUEUE, delta) for op in piece.ops]

    assert ops(Delta(configs={"group:n": Overrides({"lanes": "2"})})) == [Create("/configs/group:n", b'{"lanes":"2"}')]
    assert ops(Delta(configs={"group:q": Overrides({}, 4)})) == [Set("/configs/group:q", b"{}", 3)]
    assert ops(Delta(configs={"group:q": None})) == [Delete("/configs/group:q", 3)]
