"""The cluster in calls that block: what there is, where it begins and ends, and how far groups are."""

import os

from tests.pipelines.connector.topics import Topic

from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from runnel.pipelines.connector import gateway as module
from runnel.pipelines.connector.gateway import Gateway, gateway
from runnel.pipelines.connector.reading.options import Topics
from runnel.testing.process import BrokerProcess


def test_a_process_has_one_gateway_for_a_list_of_brokers(gate: Gateway, broker: BrokerProcess) -> None:
    assert gateway((broker.kafka,)) is gate


def test_a_fork_begins_without_gateways(gate: Gateway) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"%d" % len(module._gateways))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    assert module._gateways
    os.close(read)
    os.close(write)


def test_partitions_by_name_by_pattern_and_by_number(gate: Gateway, name: str) -> None:
    one, other = Topic(gate, f"{name}-1", partitions=2), Topic(gate, f"{name}-2")
    gate.commit(name, {one.at(0): 0})  # now there is an internal topic
    assert gate.partitions(Topics(names=(one.name, other.name, "nowhere"))) == [one.at(0), one.at(1), other.at(0)]
    assert gate.partitions(Topics(pattern=f"{name}-.*", exclude=".*2")) == [one.at(0), one.at(1)]
    assert not any(where.topic.startswith("__") for where in gate.partitions(Topics(pattern=".*")))
    assigned = (one.at(1), one.at(2), TopicPartition("nowhere", 0))
    assert gate.partitions(Topics(partitions=assigned)) == [one.at(1)]


def test_partitions_that_are_added_are_seen(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    assert len(gate.partitions(Topics(names=(name,)))) == 1
    topic.grow(3)
    assert len(gate.partitions(Topics(names=(name,)))) == 3


def test_bounds_and_times(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name, partitions=2, retention_ms="-1")
    topic.send({0: 20}, time_ms=1_700_000_000_000)
    topic.trim(5)
    assert gate.bounds([topic.at(0), topic.at(1)], READ_COMMITTED) == {topic.at(0): (5, 20), topic.at(1): (0, 0)}
    assert gate.starts([topic.at(0)]) == {topic.at(0): 5}
    assert gate.ends([topic.at(0)], READ_UNCOMMITTED) == {topic.at(0): 20}
    assert gate.by_time({topic.at(0): 1_700_000_000_007, topic.at(1): 0}, READ_COMMITTED) == {
        topic.at(0): 7,
        topic.at(1): -1,
    }
    assert gate.ends([], READ_COMMITTED) == {}


def test_groups_have_offsets(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name, partitions=2)
    gate.commit(name, {topic.at(0): 7})
    assert gate.committed(name, [topic.at(0), topic.at(1)]) == {topic.at(0): 7}


def test_bytes_before_offsets(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name, partitions=2)
    topic.send({0: 100}, batch=10, size=1_000)
    ((none, half, all_),) = gate.sizes({topic.at(0): [0, 50, 100]}).values()
    assert none == 0
    assert 100_000 < all_ < 110_000
    assert abs(half - all_ / 2) < 20_000
    assert gate.sizes({}) == {}
