"""Share groups while brokers are killed: what was accepted stays so, what was not comes again, and is counted."""

import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka.admin import AdminClient
from tests.conftest import cluster_broker
from tests.doors.kafka.test_share import ACCEPT, LONG_MS, Member, Topic, configure
from tests.doors.kafka.test_traps import Line

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 90.0
preview: Any = confluent_kafka  # its share consumer is not typed
kinds: Any = confluent_kafka.admin  # nor are its names exported


def test_a_broker_that_was_killed_knows_what_was_accepted_and_how_often_the_rest_was_delivered(tmp_path: Path) -> None:
    group = f"group-{uuid.uuid4().hex}"
    with BrokerProcess(tmp_path / "data") as broker:
        with Line(broker.kafka) as line:
            configure(line, group, share_auto_offset_reset="earliest", share_record_lock_duration_ms="3600000")
            topic = Topic(line)
            topic.produce(line, 4)
            member = Member(line, group, topic)
            assert member.take(0) == [(0, 3, 1)]
            assert member.settle(1, 1, ACCEPT) == 0
        broker.kill()
        broker.start()
        with Line(broker.kafka) as line:
            member = Member(line, group, topic)
            assert member.take(0, max_wait_ms=LONG_MS) == [(0, 0, 2), (2, 3, 2)]
            assert member.settle(0, 0, ACCEPT) == 0


def test_the_next_leader_goes_on_where_the_last_one_was(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """With a real client, which finds the new leader and the new coordinator by itself."""
    with ExitStack() as stack:
        brokers = {number: stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)}
        servers = ",".join(broker.kafka for broker in brokers.values())
        admin = AdminClient({"bootstrap.servers": servers})
        topic, group = f"topic-{uuid.uuid4().hex}", f"group-{uuid.uuid4().hex}"
        admin.create_topics([kinds.NewTopic(topic, 2, 3)])[topic].result(LIMIT_S)
        with Line(brokers[1].kafka) as line:
            configure(line, group, share_auto_offset_reset="earliest")
        settled = consume_through_a_death(servers, admin, topic, group, brokers)
        assert settled == {b"%d" % number for number in range(600)}


def consume_through_a_death(
    servers: str, admin: AdminClient, topic: str, group: str, brokers: dict[int, BrokerProcess]
) -> set[bytes]:
    """Accept 600 messages; a broker dies when some are accepted, and others held. Nothing accepted comes again."""
    produce(servers, topic, range(300))
    settings = {"bootstrap.servers": servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = preview.ShareConsumer({**settings, "max.poll.records": 50})
    consumer.subscribe([topic])
    settled: set[bytes] = set()
    unclear: set[bytes] = set()  # nobody could say whether that was kept
    killed = False
    end = time.monotonic() + LIMIT_S
    while len(settled | unclear) < 600:
        assert time.monotonic() < end, f"{len(settled)} messages were accepted"
        got = [message for message in consumer.poll(timeout=0.5) if message.error() is None]
        assert settled.isdisjoint(message.value() for message in got), "an accepted message came again"
        dies = len(settled) >= 100 and not killed
        if dies:
            killed = True
            brokers.pop(leader_of(admin, topic)).kill()
            produce(servers, topic, range(300, 600))
        for message in got:  # what is held when the broker dies is not accepted, and has to come again
            how = preview.AcknowledgeType.RELEASE if dies else preview.AcknowledgeType.ACCEPT
            consumer.acknowledge(message, how)
        said = {(place.topic, place.partition): error for place, error in consumer.commit_sync(timeout=60).items()}
        for message in [] if dies else got:
            kept = said.get((message.topic(), message.partition()), "?") is None
            (settled if kept else unclear).add(message.value())
    consumer.close()
    return settled | unclear


def leader_of(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions[0].leader)


def produce(servers: str, topic: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in numbers:
        producer.produce(topic, b"%d" % number)
    assert producer.flush(LIMIT_S) == 0
