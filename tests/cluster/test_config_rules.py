"""Settings in force: which override wins, and what the table of dynamic broker settings promises."""

from uuid import UUID

import pytest

from runnel.cluster.config_rules import (
    BROKER_SETTINGS,
    RATE_DEFAULT,
    ConfigChange,
    altered,
    copy_rate,
    is_throttled,
    topic_config,
    topic_defaults,
    topic_setting_of_broker,
)
from runnel.cluster.image import CLUSTER, Delta, Image, Overrides, Topic
from runnel.model.errors import InvalidConfig
from runnel.model.ids import BrokerId, TopicId
from runnel.model.topic_config import SETTINGS, TopicConfig

ONE, TWO = BrokerId(1), BrokerId(2)
BASE = TopicConfig().with_overrides({"retention.ms": "1000", "segment.ms": "1000", "flush.ms": "1000"})


def test_every_dynamic_broker_setting_is_the_default_of_a_topic_setting() -> None:
    assert set(BROKER_SETTINGS.values()) <= set(SETTINGS)
    assert len(set(BROKER_SETTINGS.values())) == len(BROKER_SETTINGS)


def test_topic_wins_over_broker_over_cluster_over_file() -> None:
    overrides = {
        CLUSTER: Overrides({"log.retention.ms": "2", "log.roll.ms": "2", "message.max.bytes": "2"}),
        "1": Overrides({"log.retention.ms": "3", "log.roll.ms": "3"}),
    }
    image = Image("c").apply(Delta(configs=overrides))
    topic = Topic(TopicId(UUID(int=1)), "t", (), {"retention.ms": "4"})

    def seen(config: TopicConfig) -> tuple[int, int, int, int]:
        return config.retention_ms, config.segment_ms, config.max_message_bytes, config.flush_ms

    assert seen(topic_config(image, topic, ONE, BASE)) == (4, 3, 2, 1000)
    assert seen(topic_config(image, topic, TWO, BASE)) == (4, 2, 2, 1000)
    assert seen(topic_defaults(image, ONE, BASE)) == (3, 3, 2, 1000)
    assert seen(topic_defaults(image, None, BASE)) == (2, 2, 2, 1000)


def test_without_overrides_nothing_is_copied() -> None:
    assert topic_config(Image("c"), Topic(TopicId(UUID(int=1)), "t", ()), ONE, BASE) is BASE


def test_a_setting_of_a_newer_runnel_does_not_stop_this_one() -> None:
    image = Image("c").apply(Delta(configs={CLUSTER: Overrides({"log.from.the.future": "1"})}))
    assert topic_defaults(image, ONE, BASE) is BASE


def test_a_broker_setting_that_needs_a_restart_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"'broker\.id' is unknown or needs a restart"):
        topic_setting_of_broker("broker.id")


def test_a_brokers_own_rate_wins_over_that_of_all_brokers() -> None:
    name = "follower.replication.throttled.rate"
    image = Image("c").apply(Delta(configs={CLUSTER: Overrides({name: "5"}), "1": Overrides({name: "7"})}))
    assert (copy_rate(image, ONE), copy_rate(image, TWO)) == (7, 5)
    assert copy_rate(Image("c"), ONE) == RATE_DEFAULT


def test_replicas_are_throttled_by_partition_and_broker() -> None:
    some = BASE.with_overrides({"follower.replication.throttled.replicas": "0:1, 1:2"})
    assert [is_throttled(some, n, broker) for broker in (ONE, TWO) for n in (0, 1)] == [True, False, False, True]
    assert is_throttled(BASE.with_overrides({"follower.replication.throttled.replicas": "*"}), 9, TWO)
    assert not is_throttled(BASE, 0, ONE)


@pytest.mark.parametrize("text", ["1", "1:", "a:b", "*,1:2", "1:2:3"])
def test_a_list_of_replicas_is_checked(text: str) -> None:
    with pytest.raises(InvalidConfig, match="PARTITION:BROKER"):
        BASE.with_overrides({"follower.replication.throttled.replicas": text})


def test_a_rate_is_checked_like_any_setting() -> None:
    def changed(value: str) -> dict[str, str]:
        change = ConfigChange("follower.replication.throttled.rate", value)
        return altered({}, [change], incremental=True, topic_setting=topic_setting_of_broker, effective=BASE)

    assert changed("1000") == {"follower.replication.throttled.rate": "1000"}
    with pytest.raises(InvalidConfig, match="whole number"):
        changed("fast")
