"""Nodes: the bytes in the store, and how a large change is cut into multis."""

from uuid import UUID

import pytest

from runnel.cluster import nodes
from runnel.cluster.image import DeletedTopic, Delta, Image, Overrides, Partition, Topic
from runnel.cluster.nodes import Fence, Recent
from runnel.cluster.store import Check, Create, Delete, Node, Set, StoreDamaged
from runnel.model.errors import InvalidPartitions
from runnel.model.ids import BrokerId, Epoch, TopicId

ONE, TWO = BrokerId(1), BrokerId(2)
ID = TopicId(UUID("2c3cf967-18f4-49f1-8c12-7900ad000544"))
PARTITION = Partition(ONE, Epoch(3), Epoch(4), (ONE, TWO), (ONE,), elr=(TWO,))
VALUE = b'{"name":"orders","partitions":[[1,3,4,[1,2],[1],[2],[],[]]],"config":{"retention.ms":"5"}}'
ORDERS = Topic(ID, "orders", (PARTITION,), {"retention.ms": "5"})


def test_a_topic_as_it_lies_in_the_store() -> None:
    path = nodes.topic_path(ID)
    assert path == "/topics/2c3cf967-18f4-49f1-8c12-7900ad000544"
    assert nodes.topic_value(ORDERS) == VALUE
    read = nodes.read_topic(path, Node(VALUE, 9))
    assert (read.id, read.name, read.partitions, read.config, read.version) == (
        ID,
        "orders",
        (PARTITION,),
        ORDERS.config,
        9,
    )


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"name":1}', VALUE[:-5], b"\xff\xfe"])
def test_a_value_that_can_not_be_read_is_damage(value: bytes) -> None:
    with pytest.raises(StoreDamaged, match=r"/topics/2c3c.* can't be read"):
        nodes.read_topic(nodes.topic_path(ID), Node(value, 0))


def test_a_topic_node_that_is_not_named_by_an_id_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="not named by a topic id"):
        nodes.read_topic("/topics/orders", Node(VALUE, 0))


def test_a_value_with_fields_of_a_newer_runnel_can_be_read() -> None:
    value = VALUE[:-1] + b',"later":true}'
    assert nodes.read_topic(nodes.topic_path(ID), Node(value, 0)) == ORDERS


def test_a_topic_larger_than_any_store_takes_is_refused() -> None:
    wide = Partition(ONE, Epoch(0), Epoch(0), tuple(map(BrokerId, range(1000, 1020))), (ONE,))
    with pytest.raises(InvalidPartitions, match="use fewer partitions or replicas"):
        nodes.topic_value(Topic(ID, "t", (wide,) * 10_000))


def test_the_operations_of_a_delta() -> None:
    other, proof = TopicId(UUID(int=1)), TopicId(UUID(int=2))
    image = Image("c").apply(
        Delta(
            topics={other: Topic(other, "o", (), version=3)},
            deleted={proof: DeletedTopic(proof, "p", (ONE,), version=2)},
        )
    )
    delta = Delta(
        topics={ID: ORDERS, other: None},
        deleted={other: DeletedTopic(other, "o", (ONE,)), proof: None},
        configs={"cluster": Overrides({"a": "b"}), "1": Overrides({}, version=4)},
    )
    topics, configs = nodes.pieces(image, delta)
    assert topics.ops == [
        Create(nodes.topic_path(ID), VALUE),
        Delete(nodes.topic_path(other), 3),
        Create(nodes.deleted_path(other), b'{"name":"o","holders":[1]}'),
        Delete(nodes.deleted_path(proof), 2),
    ]
    assert configs.ops == [Create("/configs/cluster", b'{"a":"b"}'), Set("/configs/1", b"{}", 3)]
    assert image.apply(topics.delta).apply(configs.delta).topics == {ID: ORDERS}


@pytest.mark.parametrize("partitions", [1, 10, 2000])
def test_many_topics_are_cut_into_multis_that_fit(partitions: int) -> None:
    topics = [Topic(TopicId(UUID(int=n)), f"t{n}", (PARTITION,) * partitions) for n in range(10_000 // partitions)]
    image, delta = Image("c"), Delta(topics={topic.id: topic for topic in topics})
    for piece in nodes.pieces(image, delta):
        assert len(piece.ops) <= nodes.MULTI_OPS_MAX
        assert sum(len(op.value) for op in piece.ops if isinstance(op, Create)) <= nodes.MULTI_BYTES_MAX
        assert len(piece.delta.topics) == len(piece.ops)
        image = image.apply(piece.delta)
    assert image.topics == delta.topics


def test_a_fence_checks_the_controller_and_keeps_the_last_changes() -> None:
    recent = tuple(Recent(version, ("/x",)) for version in range(nodes.RECENT_CHANGES_MAX))
    fence = Fence(nodes.RECENT_CHANGES_MAX - 1, recent, Epoch(7))
    check, change = fence.ops(["/topics/a"])
    assert check == Check("/controller-epoch", 7)
    assert isinstance(change, Set)
    assert (change.path, change.version) == ("/changes", nodes.RECENT_CHANGES_MAX - 1)
    after = fence.after(["/topics/a"])
    assert len(after) == nodes.RECENT_CHANGES_MAX
    assert after[-1] == Recent(nodes.RECENT_CHANGES_MAX, ("/topics/a",))
    assert fence.after(["/x"] * (nodes.RECENT_NODES_MAX + 1))[-1].nodes is None


def test_the_last_changes_name_so_many_nodes_together_and_no_more() -> None:
    some = ("/topics/a",) * (nodes.RECENT_NODES_MAX // 4)
    fence = Fence(4, tuple(Recent(version, some) for version in range(1, 5)), None)
    assert [change.version for change in fence.after(some)] == [2, 3, 4, 5]
    assert [change.version for change in fence.after((*some, "/topics/b"))] == [3, 4, 5]
    assert [change.version for change in fence.after(["/topics/b"] * nodes.RECENT_NODES_MAX)] == [5]
