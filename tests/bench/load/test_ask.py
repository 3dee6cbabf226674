"""Questions about a cluster: what is understood of the answers, and that a real broker gives them."""

from pathlib import Path

import pytest

from bench.load import Refused, ask, librdkafka
from bench.load.ask import NOBODY, Asker, View, view_of
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m

Partition = m.MetadataResponse.MetadataResponsePartition


def answer(*partitions: Partition) -> m.MetadataResponse:
    broker = m.MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=9)
    topic = m.MetadataResponse.MetadataResponseTopic(name="t", partitions=list(partitions))
    return m.MetadataResponse(brokers=[broker], controller_id=2, topics=[topic])


def test_a_view_names_leaders_and_counts_replicas_that_are_behind() -> None:
    view = view_of(
        answer(
            Partition(partition_index=0, leader_id=2, replica_nodes=[1, 2, 3], isr_nodes=[2]),
            Partition(partition_index=1, leader_id=-1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]),
        )
    )
    assert view == View({2: "127.0.0.1:9"}, 2, {("t", 0): 2, ("t", 1): NOBODY}, {"t": 2})
    assert view.led_by(2) == [("t", 0)]


def test_a_topic_is_led_when_none_of_its_partitions_is_without_or_with_one_that_is_gone() -> None:
    leaders = {("a", 0): 1, ("a", 1): 2, ("b", 0): 3, ("c", 0): NOBODY, ("c", 1): 1}
    view = View({}, 1, leaders, {})
    assert ask.led(view, NOBODY) == {"a", "b"}
    assert ask.led(view, gone=2) == {"b"}


def test_a_topic_is_in_sync_when_no_replica_of_it_is_behind() -> None:
    assert ask.in_sync(View({}, 1, {}, {"a": 0, "b": 2})) == {"a"}


def test_a_real_broker_is_asked(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        ask.await_brokers(broker.kafka, 1)
        librdkafka.create_topics(broker.kafka, ["one", "two"], 2, 1, {})
        places = [(topic, number) for topic in ("one", "two") for number in (0, 1)]
        first, last = ask.await_acks(broker.kafka, places)
        assert 0 < first <= last
        assert ask.await_leaders(broker.kafka, ["one", "two"]) >= last
        assert ask.await_in_sync(broker.kafka) >= last
        assert ask.leader_address(broker.kafka, "two", 1) == broker.kafka
        with Asker(broker.kafka) as asker:
            assert sorted(asker.look().leaders) == places
            assert asker.look(["one"]).behind == {"one": 0}
            batch = b"\0" * 61
            assert asker.produce([("one", 0)], batch) == [("one", 0)]  # refused: it is no batch
        with pytest.raises(Refused, match="no leader"):
            ask.leader_address(broker.kafka, "three", 0)
