"""Settings of groups, as Kafka's admin clients set and read them."""

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.client.talk import talk
from tests.doors.kafka.test_share import LONG_MS, Topic
from tests.doors.kafka.test_traps import Line, new_group

from runnel.client.cluster import Cluster
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

GROUP = 32
Alter, Describe = m.IncrementalAlterConfigsRequest, m.DescribeConfigsRequest


def alter(broker: BrokerProcess, name: str, settings: dict[str, str | None]) -> tuple[int, str | None]:
    """None takes a setting back."""
    changes = [
        Alter.AlterableConfig(name=key, config_operation=0 if value is not None else 1, value=value)
        for key, value in settings.items()
    ]
    resource = Alter.AlterConfigsResource(resource_type=GROUP, resource_name=name, configs=changes)

    async def work(cluster: Cluster) -> m.IncrementalAlterConfigsResponse:
        request = Alter(resources=[resource])
        return await cluster.ask_any(Api.INCREMENTAL_ALTER_CONFIGS, request, m.IncrementalAlterConfigsResponse)

    [answer] = talk(broker.kafka, work).responses
    return answer.error_code, answer.error_message


def describe(broker: BrokerProcess, name: str, keys: list[str] | None = None) -> dict[str, tuple[str | None, int]]:
    """The value and the source of each setting."""
    resource = Describe.DescribeConfigsResource(resource_type=GROUP, resource_name=name, configuration_keys=keys)

    async def work(cluster: Cluster) -> m.DescribeConfigsResponse:
        return await cluster.ask_any(Api.DESCRIBE_CONFIGS, Describe(resources=[resource]), m.DescribeConfigsResponse)

    [answer] = talk(broker.kafka, work).results
    assert answer.error_code == 0
    return {each.name: (each.value, each.config_source) for each in answer.configs}


def test_settings_of_a_group_are_set_by_kafkas_names_and_read_by_both(broker: BrokerProcess) -> None:
    name = f"g/{uuid4()}"
    assert describe(broker, name)["share.delivery.count.limit"] == ("5", 5)
    assert alter(broker, name, {"share.delivery.count.limit": "7", "share.auto.offset.reset": "earliest"}) == (0, None)
    found = describe(broker, name)
    assert found["share.delivery.count.limit"] == found["attempts.max"] == ("7", 8)
    assert found["start"] == ("earliest", 8)
    assert describe(broker, name, ["share.auto.offset.reset"]) == {"share.auto.offset.reset": ("earliest", 8)}
    assert alter(broker, name, {"attempts.max": None, "start": None}) == (0, None)
    assert describe(broker, name)["attempts.max"] == ("5", 5)


def test_groups_that_have_settings_are_listed(broker: BrokerProcess) -> None:
    name = str(uuid4())
    alter(broker, name, {"attempts.max": "7"})

    def names(*kinds: int, version: int = 1) -> list[tuple[int, str]]:
        async def work(cluster: Cluster) -> m.ListConfigResourcesResponse:
            await cluster.view()
            request, reply = m.ListConfigResourcesRequest(resource_types=list(kinds)), m.ListConfigResourcesResponse
            node = await cluster.any_node()
            return await node.ask(Api.LIST_CONFIG_RESOURCES, request, reply, version_max=version)

        answer = talk(broker.kafka, work)
        assert answer.error_code == (ErrorCode.UNSUPPORTED_VERSION if 99 in kinds else 0)
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    assert (GROUP, name) in names(GROUP)
    assert {kind for kind, _ in names(GROUP)} == {GROUP}
    assert (GROUP, name) in names()
    assert (4, "1") in names(4)
    assert names(16) == names(version=0) == names(99) == []
    alter(broker, name, {"attempts.max": None})
    assert (GROUP, name) not in names(GROUP)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"share.delivery.count.limit": "often"}, ErrorCode.INVALID_CONFIG),
        ({"colour": "red"}, ErrorCode.INVALID_CONFIG),
        ({"filter": "a ="}, ErrorCode.INVALID_CONFIG),
        ({"topic": "t"}, ErrorCode.INVALID_CONFIG),
        ({"share.auto.offset.reset": "by_duration:P"}, ErrorCode.INVALID_CONFIG),
        ({"share.auto.offset.reset": "by_duration:-PT1H"}, ErrorCode.INVALID_CONFIG),
        ({"share.auto.offset.reset": "by_duration:P1M"}, ErrorCode.INVALID_CONFIG),
        ({"share.renew.acknowledge.enable": "perhaps"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_can_not_be_set_is_refused(broker: BrokerProcess, settings: dict[str, str | None], code: int) -> None:
    assert alter(broker, str(uuid4()), settings)[0] == code
    assert alter(broker, "", {"lanes": "2"})[0] == ErrorCode.INVALID_GROUP_ID


def beat(line: Line, kind: str, group: str, member: str, epoch: int, topic: str = "") -> Any:
    """A heartbeat of a member of a consumer group, or of a share group; it joins with epoch 0."""
    names = [topic] if topic else None
    if kind == "share":
        request: Any = m.ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=names
        )
        return line.ask(Api.SHARE_GROUP_HEARTBEAT, 1, request)
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=names,
        rebalance_timeout_ms=LONG_MS if topic else -1, topic_partitions=[] if topic else None,
    )  # fmt: skip
    return line.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, request)


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_group_says_how_often_its_members_report_and_how_long_they_may_be_silent(
    broker: BrokerProcess, kind: str
) -> None:
    with Line(broker.kafka) as line:
        group, topic = new_group(line), Topic(line).name
        settings = {f"{kind}.session.timeout.ms": "1000", f"{kind}.heartbeat.interval.ms": "300"}
        assert alter(broker, group, dict(settings)) == (0, None)
        assert {name: value for name, (value, _) in describe(broker, group, list(settings)).items()} == settings
        joined = beat(line, kind, group, "m", 0, topic)
        assert (joined.error_code, joined.heartbeat_interval_ms) == (0, 300)
        end = time.monotonic() + LONG_MS / 1000  # the broker's own timeout is longer
        while members(line, kind, group):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert beat(line, kind, group, "m", joined.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def members(line: Line, kind: str, group: str) -> list[str]:
    if kind == "share":
        asked: Any = m.ShareGroupDescribeRequest(group_ids=[group])
        [found] = line.ask(Api.SHARE_GROUP_DESCRIBE, 1, asked).groups
    else:
        asked = m.ConsumerGroupDescribeRequest(group_ids=[group])
        [found] = line.ask(Api.CONSUMER_GROUP_DESCRIBE, 1, asked).groups
    return [member.member_id for member in found.members]


def test_the_session_of_a_member_is_as_long_as_it_was_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Line(broker.kafka) as line:
            group, topic = new_group(line), Topic(line).name
            short: dict[str, str | None] = {"consumer.session.timeout.ms": "1500"}
            assert alter(broker, group, short) == (0, None)
            assert beat(line, "consumer", group, "m", 0, topic).error_code == 0
        broker.kill()
        broker.start()
        end = time.monotonic() + LONG_MS / 1000
        with Line(broker.kafka) as line:
            while not is_known_to_be_empty(line, group):
                assert time.monotonic() < end
                time.sleep(0.05)


def is_known_to_be_empty(line: Line, group: str) -> bool:
    asked = m.ConsumerGroupDescribeRequest(group_ids=[group])
    [found] = line.ask(Api.CONSUMER_GROUP_DESCRIBE, 1, asked).groups
    return found.error_code == 0 and not found.members


def test_secrets_are_told_to_be_there_and_not_what_they_are(broker: BrokerProcess) -> None:
    name = str(uuid4())
    assert alter(broker, name, {"webhook.secret": "hush-hush"}) == (0, None)
    resource = Describe.DescribeConfigsResource(resource_type=GROUP, resource_name=name, configuration_keys=None)

    async def work(cluster: Cluster) -> m.DescribeConfigsResponse:
        request = Describe(resources=[resource], include_synonyms=True, include_documentation=True)
        return await cluster.ask_any(Api.DESCRIBE_CONFIGS, request, m.DescribeConfigsResponse)

    answer = talk(broker.kafka, work)
    [secret] = [each for each in answer.results[0].configs if each.is_sensitive]
    assert (secret.name, secret.value, secret.config_source, secret.synonyms) == ("webhook.secret", None, 8, [])
    assert "hush-hush" not in str(answer)
