"""What a client believes about a cluster."""

from uuid import UUID

from runnel.client.metadata import TopicPartition, newer, view_of
from runnel.wire.kafka import messages as m

R = m.MetadataResponse
ID = UUID(int=5)


def answer(epochs: dict[int, int], topic_id: UUID = ID, leader: int = 1) -> m.MetadataResponse:
    partitions = [
        R.MetadataResponsePartition(partition_index=n, leader_id=leader, leader_epoch=epoch)
        for n, epoch in epochs.items()
    ]
    topic = R.MetadataResponseTopic(name="t", topic_id=topic_id, partitions=partitions)
    bad = R.MetadataResponseTopic(name="gone", error_code=3)
    return R(brokers=[R.MetadataResponseBroker(node_id=1, host="h", port=9)], topics=[topic, bad], controller_id=1)


def test_a_view_holds_topics_and_errors_apart() -> None:
    view = view_of(answer({1: 0, 0: 0}), 3.0)
    assert list(view.topics["t"].partitions) == [0, 1]
    assert view.topics["t"].led == (0, 1)
    assert view.errors == {"gone": 3}
    assert str(view.brokers[1]) == "h:9"


def test_without_any_leader_all_partitions_may_be_chosen() -> None:
    assert view_of(answer({0: 0, 1: 0}, leader=-1), 0.0).topics["t"].led == (0, 1)


def test_a_broker_that_lags_takes_no_partition_back() -> None:
    old = view_of(answer({0: 5, 1: 5}), 0.0).topics["t"]
    told = view_of(answer({0: 4, 1: 6}), 1.0).topics["t"]
    merged = newer(old, told)
    assert [p.leader_epoch for p in merged.partitions.values()] == [5, 6]
    assert merged.read_at == 1.0


def test_a_topic_that_was_made_anew_begins_anew() -> None:
    old = view_of(answer({0: 5}), 0.0).topics["t"]
    told = view_of(answer({0: 0}, UUID(int=6)), 1.0).topics["t"]
    assert newer(old, told) is told


def test_a_partition_is_written_with_a_slash() -> None:
    assert str(TopicPartition("orders", 3)) == "orders/3"
