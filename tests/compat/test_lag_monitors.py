"""Monitors that read `__consumer_offsets` see how far groups are, whichever client committed."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.compat.lag_monitor import LagMonitor
from tests.compat.stage import Stage, clients, clients_but, texts
from tests.compat.transactional import Transactional
from tests.compat.waiting import wait_until

KAFKAS_TYPES = {3, 5, 6, 7, 8}  # of a KIP-848 group


@pytest.fixture
def monitor(stage: Stage) -> Iterator[LagMonitor]:
    with closing(LagMonitor(stage.address)) as monitor:
        yield monitor


@clients_but("kcat")
def test_the_lag_of_a_group(client: str, stage: Stage, monitor: LagMonitor) -> None:
    topic, group = stage.topic("lag"), stage.name("lag")
    stage.agent("confluent").produce(topic, texts("a", 10, partitions=1))
    member = stage.member(client, group, topic)
    member.wait(lambda: len(member.records) == 10, "the ten")
    member.call("commit")
    assert monitor.lag(group, topic, 0) == 0
    seen = monitor.look()
    assert set(seen.owners[group]) == {(topic, 0)}
    assert seen.committed_ms[group, topic, 0] > 1_600_000_000_000
    member.leave()
    stage.agent("confluent").produce(topic, texts("b", 5, partitions=1))
    assert monitor.lag(group, topic, 0) == 5
    wait_until(lambda: monitor.look().owners[group] == {}, "the group without members")


@clients("confluent", "java-4.3")
def test_the_lag_of_a_group_whose_assignment_the_broker_makes(client: str, stage: Stage, monitor: LagMonitor) -> None:
    topic, group = stage.topic("lag-new"), stage.name("lag-new")
    stage.agent("confluent").produce(topic, texts("a", 10, partitions=1))
    member = stage.member(client, group, topic, protocol="consumer")
    member.wait(lambda: len(member.records) == 10, "the ten")
    member.call("commit")
    assert monitor.look().skipped >= KAFKAS_TYPES
    member.leave()
    stage.agent("confluent").produce(topic, texts("b", 5, partitions=1))
    assert monitor.lag(group, topic, 0) == 5


def test_offsets_of_an_open_transaction_are_not_among_them(stage: Stage, monitor: LagMonitor) -> None:
    topic, group = stage.topic("lag-txn"), stage.name("lag-txn")
    stage.agent("confluent").produce(topic, texts("a", 10, partitions=1))
    producer = Transactional(stage.agent("confluent"), stage.name("lag-txn"))
    producer.begin().send_offsets(group, [(topic, 0, 4)])
    assert monitor.lag(group, topic, 0) is None
    producer.abort()
    assert monitor.lag(group, topic, 0) is None
    producer.begin().send_offsets(group, [(topic, 0, 7)]).commit()
    wait_until(lambda: monitor.lag(group, topic, 0) == 3, "the committed offset")
    producer.close()


def test_a_topic_that_is_created_again_takes_the_offsets_of_the_former_with_it(
    stage: Stage, monitor: LagMonitor
) -> None:
    topic, group = stage.topic("lag-again", partitions=2), stage.name("lag-again")
    agent = stage.agent("confluent")
    agent.produce(topic, texts("a", 10, partitions=2))
    member = stage.member("confluent", group, topic)
    member.wait(lambda: len(member.records) == 10, "the ten")
    member.call("commit")
    member.leave()
    assert monitor.lag(group, topic, 0) == 0
    agent.call("delete_topic", topic=topic)
    wait_until(lambda: (group, topic, 0) not in monitor.look().offsets, "tombstones for the offsets")
