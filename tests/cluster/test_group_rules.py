"""Settings of groups: what makes a queue, what is taken, and where it lies."""

from uuid import UUID

import pytest

from runnel.cluster import nodes
from runnel.cluster.config_rules import ConfigChange, ConfigOp
from runnel.cluster.group_rules import GroupResource, Purpose, alter, began_of, deleting_of, made_of
from runnel.cluster.image import NO_LEADER, Delta, Image, Overrides, Partition, Topic
from runnel.cluster.store import Create, Delete, Node, Set
from runnel.model.errors import (
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    QueueAlreadyExists,
    QueueBeingDeleted,
    RunnelError,
    UnknownQueue,
)
from runnel.model.ids import Epoch, TopicId

PARTITION = Partition(NO_LEADER, Epoch(0), Epoch(0), (), ())
EMPTY = Image("c")
QUEUE = EMPTY.apply(Delta(configs={"group:q": Overrides({"topic": "q", "lease.ms": "5"}, 3)}))


def change(image: Image, purpose: Purpose, *changes: ConfigChange, incremental: bool = True) -> Delta:
    return alter(image, GroupResource("q", purpose), changes, incremental=incremental).delta


def test_a_queue_is_created_altered_and_deleted() -> None:
    created = change(EMPTY, Purpose.CREATE, ConfigChange("topic", "q"), ConfigChange("lanes", "2"))
    assert created.configs == {"group:q": Overrides({"topic": "q", "lanes": "2"}, 0, {"#made": "1"})}
    altered = change(QUEUE, Purpose.ALTER_QUEUE, ConfigChange("lease.ms", None, ConfigOp.DELETE))
    assert altered.configs == {"group:q": Overrides({"topic": "q"}, 4)}
    deleting = change(QUEUE, Purpose.DELETE)
    assert deleting.configs == {"group:q": Overrides({}, 4, {"#deleting": "0"})}
    deleted = change(QUEUE.apply(deleting), Purpose.DELETED)
    assert deleted.configs == {"group:q": None}
    assert QUEUE.apply(deleting).apply(deleted).configs == {}


def test_a_share_group_has_settings_without_being_a_queue() -> None:
    set_ = change(EMPTY, Purpose.ALTER, ConfigChange("share.delivery.count.limit", "7"))
    assert set_.configs == {"group:q": Overrides({"attempts.max": "7"}, 0)}
    group = EMPTY.apply(set_)
    gone = change(group, Purpose.ALTER, ConfigChange("attempts.max", None, ConfigOp.DELETE))
    assert gone.configs == {"group:q": None}
    made = change(group, Purpose.CREATE, ConfigChange("topic", "t"))
    assert made.configs == {"group:q": Overrides({"attempts.max": "7", "topic": "t"}, 1, {"#made": "2"})}


def test_all_settings_anew_leave_a_queue_a_queue() -> None:
    anew = change(QUEUE, Purpose.ALTER, ConfigChange("start", "latest"), incremental=False)
    assert anew.configs == {"group:q": Overrides({"topic": "q", "start": "latest"}, 4)}


def test_no_two_queues_have_one_number() -> None:
    image, numbers = EMPTY, []
    for _ in range(3):
        image = image.apply(change(image, Purpose.CREATE, ConfigChange("topic", "q")))
        numbers.append(made_of(image.group_notes("q")))
        image = image.apply(change(image, Purpose.ALTER, ConfigChange("lanes", "2")))
        assert made_of(image.group_notes("q")) == numbers[-1]
        image = image.apply(change(image, Purpose.DELETE))
        assert deleting_of(image.group_notes("q")) == (numbers[-1], ())
        image = image.apply(change(image, Purpose.DELETED))
    assert len(set(numbers)) == 3


@pytest.mark.parametrize("purpose", [Purpose.CREATE, Purpose.ALTER])
def test_a_name_is_nobodys_until_all_is_gone_that_was_kept_under_it(purpose: Purpose) -> None:
    one, other = TopicId(UUID(int=1)), TopicId(UUID(int=2))
    deleting = QUEUE.apply(alter(QUEUE, GroupResource("q", Purpose.DELETE, (one, other)), [], incremental=True).delta)
    assert deleting.group_settings("q") == {}
    assert deleting_of(deleting.group_notes("q")) == (0, (one, other))
    with pytest.raises(QueueBeingDeleted):
        change(deleting, purpose, ConfigChange("topic", "q"))
    free = deleting.apply(change(deleting, Purpose.DELETED))
    assert change(free, Purpose.DELETED).configs == {}, "it was done already"
    assert change(free, Purpose.CREATE, ConfigChange("topic", "q")).configs


def test_it_is_noted_with_how_many_partitions_a_queue_got_its_topic() -> None:
    topics = [Topic(TopicId(UUID(int=number)), name, (PARTITION,) * number) for number, name in enumerate("?ab")]
    image = EMPTY.apply(Delta(topics={topic.id: topic for topic in topics[1:]}))
    image = image.apply(change(image, Purpose.CREATE, ConfigChange("topic", "a")))
    assert began_of(image.group_notes("q")) == (topics[1].id, 1)
    grown = Topic(topics[1].id, "a", (PARTITION,) * 5)
    image = image.apply(Delta(topics={grown.id: grown}))
    image = image.apply(change(image, Purpose.ALTER_QUEUE, ConfigChange("lease.ms", "7")))
    assert began_of(image.group_notes("q")) == (topics[1].id, 1)
    image = image.apply(change(image, Purpose.ALTER_QUEUE, ConfigChange("topic", "b")))
    assert began_of(image.group_notes("q")) == (topics[2].id, 2)


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


def test_notes_lie_among_the_settings_and_are_none() -> None:
    noted = Overrides({"topic": "q"}, 0, {"#made": "7"})
    [piece] = nodes.pieces(EMPTY, Delta(configs={"group:q": noted}))
    [op] = piece.ops
    assert isinstance(op, Create)
    assert nodes.read_overrides(op.path, Node(op.value, 0)) == noted
