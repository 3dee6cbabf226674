"""Share groups while brokers are killed: what was accepted stays so, what was not comes again, and is counted."""

import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka.admin import AdminClient
from tests.client.talk import talk
from tests.client.test_group_admin import beat
from tests.conftest import cluster_broker
from tests.doors.kafka.test_share import ACCEPT, LONG_MS, Member, Topic, configure
from tests.doors.kafka.test_traps import Line

from runnel.client.admin import Admin
from runnel.client.admin import NewTopic as Wanted
from runnel.client.cluster import Cluster
from runnel.client.group_admin import GroupAdmin
from runnel.client.metadata import TopicPartition
from runnel.client.positions import From, Position
from runnel.client.producer import Producer
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper
from runnel.wire.kafka.error_codes import ErrorCode

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


def test_offsets_are_seen_and_moved_whoever_leads(trio: list[BrokerProcess]) -> None:
    """The coordinator is one broker, the leaders are all three."""
    name = f"share-{uuid.uuid4().hex}"

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([Wanted(name, partitions=6, replicas=1)])
        places = [TopicPartition(name, number) for number in range(6)]
        async with Producer(cluster) as producer:
            for number in range(60):
                await producer.send(name, b"x", partition=number % 6)
        await cluster.persist(lambda: beat(cluster, name, 0, [name]))
        admin = GroupAdmin(cluster)
        assert await admin.positions(name) == dict.fromkeys(places, 10)
        await cluster.persist(lambda: beat(cluster, name, -1))
        await admin.seek(name, await admin.plan_seek(name, dict.fromkeys(places, Position(From.OFFSET, 4))))
        assert await admin.positions(name) == dict.fromkeys(places, 4)
        assert [lag.lag for lag in await admin.lags(await admin.describe(name))] == [6] * 6
        await admin.delete(name)
        await cluster.persist(lambda: beat(cluster, name, 0, [name]))
        assert await admin.positions(name) == dict.fromkeys(places, 10), "nothing was left of the group of that name"

    talk(trio[0].kafka, work)


def test_who_asks_the_wrong_broker_is_told_the_right_one(trio: list[BrokerProcess]) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(broker.kafka)) for broker in trio]
        topic = Topic(lines[0])
        group = f"group-{uuid.uuid4().hex}"
        end = time.monotonic() + LIMIT_S
        while not known_everywhere(answers := [Member(line, group, topic).fetch(0) for line in lines]):
            assert time.monotonic() < end
        [leader] = [number for number, answer in enumerate(answers, 1) if not answer.responses]  # nothing to tell
        for answer in answers[: leader - 1] + answers[leader:]:
            [partition] = answer.responses[0].partitions
            assert partition.current_leader.leader_id == leader
            [there] = answer.node_endpoints
            assert (there.node_id, f"{there.host}:{there.port}") == (leader, trio[leader - 1].kafka)


def known_everywhere(answers: list[Any]) -> bool:
    """Whether one broker leads, and the others say that they do not: each follows the cluster at its own pace."""
    codes = [[each.error_code for topic in answer.responses for each in topic.partitions] for answer in answers]
    return sorted(codes) == [[], [ErrorCode.NOT_LEADER_OR_FOLLOWER], [ErrorCode.NOT_LEADER_OR_FOLLOWER]]
