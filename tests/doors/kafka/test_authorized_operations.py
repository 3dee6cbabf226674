"""Authorized operations (KIP-430): everything, as Kafka answers without access control, and only if it is asked for."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.doors.kafka.test_share import Member, Topic
from tests.doors.kafka.test_traps import Line, new_group

from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

TOPIC, GROUP, CLUSTER = 3576, 3400, 8096
UNASKED = -(2**31)


@pytest.fixture
def line(broker: BrokerProcess) -> Iterator[Line]:
    with Line(broker.kafka) as line:
        yield line


@pytest.mark.parametrize("version", [8, 9, 10])
def test_metadata_tells_of_the_cluster_as_long_as_it_can(line: Line, version: int) -> None:
    for asked in (True, False):
        request = m.MetadataRequest(topics=[], include_cluster_authorized_operations=asked)
        answer = line.ask(Api.METADATA, version, request)
        assert answer.cluster_authorized_operations == (CLUSTER if asked else UNASKED)


@pytest.mark.parametrize("version", [8, 12, 13])
@pytest.mark.parametrize("everything", [False, True])
def test_metadata_tells_of_topics(line: Line, version: int, everything: bool) -> None:
    name, missing = Topic(line).name, f"missing-{uuid.uuid4().hex}"
    for asked, told in ((True, TOPIC), (False, UNASKED)):
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=each) for each in (name, missing)]
        request = m.MetadataRequest(
            topics=None if everything else wanted, allow_auto_topic_creation=False,
            include_topic_authorized_operations=asked,
        )  # fmt: skip
        found = {topic.name: topic for topic in line.ask(Api.METADATA, version, request).topics}
        assert found[name].topic_authorized_operations == told
        assert everything or found[missing].topic_authorized_operations == told  # kafka-python 2 fails on UNASKED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster_tells_of_the_cluster(line: Line, version: int) -> None:
    for asked, told in ((True, CLUSTER), (False, UNASKED)):
        request = m.DescribeClusterRequest(include_cluster_authorized_operations=asked)
        assert line.ask(Api.DESCRIBE_CLUSTER, version, request).cluster_authorized_operations == told


def test_describe_topic_partitions_always_tells_of_topics(line: Line) -> None:
    name = Topic(line).name
    wanted = [m.DescribeTopicPartitionsRequest.TopicRequest(name=each) for each in (name, "missing")]
    found = line.ask(Api.DESCRIBE_TOPIC_PARTITIONS, 0, m.DescribeTopicPartitionsRequest(topics=wanted)).topics
    assert {topic.name: topic.topic_authorized_operations for topic in found} == {name: TOPIC, "missing": TOPIC}


DESCRIBERS: dict[str, tuple[Api, int, Any]] = {
    "classic": (Api.DESCRIBE_GROUPS, 6, lambda group, asked: m.DescribeGroupsRequest(
        groups=[group], include_authorized_operations=asked)),
    "consumer": (Api.CONSUMER_GROUP_DESCRIBE, 1, lambda group, asked: m.ConsumerGroupDescribeRequest(
        group_ids=[group], include_authorized_operations=asked)),
    "share": (Api.SHARE_GROUP_DESCRIBE, 1, lambda group, asked: m.ShareGroupDescribeRequest(
        group_ids=[group], include_authorized_operations=asked)),
}  # fmt: skip


@pytest.mark.parametrize("kind", DESCRIBERS)
def test_descriptions_of_groups_tell_what_one_may_do_with_them(line: Line, kind: str) -> None:
    group = new_group(line)
    join(line, kind, group)
    api, version, request = DESCRIBERS[kind]
    for name, asked, told in ((group, True, GROUP), (group, False, UNASKED), ("nowhere", True, UNASKED)):
        [found] = line.ask(api, version, request(name, asked)).groups
        assert (found.error_code == 0) == (name == group), found.error_message
        assert found.authorized_operations == told


def join(line: Line, kind: str, group: str) -> None:
    """One member of a group of this kind."""
    member = Member(line, group, Topic(line))
    if kind == "classic":
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="p", metadata=b"")
        request = m.JoinGroupRequest(
            group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="consumer",
            protocols=[protocol],
        )  # fmt: skip
        answer = line.ask(Api.JOIN_GROUP, 3, request)
    elif kind == "consumer":
        answer = line.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, m.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member.id, member_epoch=0, rebalance_timeout_ms=30_000,
            subscribed_topic_names=[member.topic.name], topic_partitions=[],
        ))  # fmt: skip
    else:
        answer = line.ask(Api.SHARE_GROUP_HEARTBEAT, 1, m.ShareGroupHeartbeatRequest(
            group_id=group, member_id=member.id, member_epoch=0, subscribed_topic_names=[member.topic.name],
        ))  # fmt: skip
    assert answer.error_code == 0
