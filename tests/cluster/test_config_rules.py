"""Settings in force: which override wins, and what the table of dynamic broker settings promises."""

from uuid import UUID

import pytest

from runnel.cluster.config_rules import BROKER_SETTINGS, topic_config, topic_defaults, topic_setting_of_broker
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
