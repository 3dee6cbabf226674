"""Settings of internal topics: those that decide what is kept are the broker's own, clients may change a few."""

from uuid import UUID

import pytest

from runnel.broker.internal import GROUPS, INTERNAL, QUEUES, REQUESTS, settings_of
from runnel.broker.internal_settings import ALTERABLE, MINIMUM, check_settings
from runnel.cluster.config_rules import ConfigChange, ConfigOp
from runnel.cluster.image import VIEW_FILTER, VIEW_OF, Partition, Topic
from runnel.model.errors import InvalidConfig
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.model.topic_config import SETTINGS

THREE = (BrokerId(1), BrokerId(2), BrokerId(3))
PLACED = Partition(BrokerId(1), Epoch(0), Epoch(0), THREE, THREE)
SET, DELETE, APPEND, SUBTRACT = ConfigOp


def topic_of(name: str = QUEUES, **more: str) -> Topic:
    """As the broker makes it, and somebody altered it before."""
    config = {**settings_of(name), **{key.replace("_", "."): value for key, value in more.items()}}
    return Topic(TopicId(UUID(int=1)), name, (PLACED,), config)


def check(topic: Topic, *changes: ConfigChange, incremental: bool = True) -> None:
    check_settings(topic, changes, incremental=incremental)


@pytest.mark.parametrize("name", sorted(INTERNAL))
@pytest.mark.parametrize("setting", sorted({*SETTINGS, VIEW_OF, VIEW_FILTER} - ALTERABLE))
def test_what_decides_what_is_kept_can_not_be_set(name: str, setting: str) -> None:
    with pytest.raises(InvalidConfig, match="stays as it is"):
        check(topic_of(name), ConfigChange(setting, "7"))
    with pytest.raises(InvalidConfig, match="stays as it is"):
        check(topic_of(name), *(ConfigChange(key, text) for key, text in settings_of(name).items() if key != setting),
              ConfigChange(setting, "7"), incremental=False)  # fmt: skip


@pytest.mark.parametrize("name", sorted(INTERNAL))
@pytest.mark.parametrize("op", [DELETE, APPEND, SUBTRACT])
def test_what_the_broker_set_can_not_be_taken_away(name: str, op: ConfigOp) -> None:
    for setting, value in settings_of(name).items():
        with pytest.raises(InvalidConfig, match="stays as it is"):
            check(topic_of(name), ConfigChange(setting, value if op is not DELETE else None, op))
    with pytest.raises(InvalidConfig, match="stays as it is"):
        check(topic_of(name), incremental=False)  # everything back to its default


@pytest.mark.parametrize("setting", sorted(ALTERABLE))
def test_how_copying_and_compaction_are_done_can_be_set(setting: str) -> None:
    check(topic_of(), ConfigChange(setting, "2"))
    check(topic_of(), ConfigChange(setting, None, DELETE))
    unchanged = [ConfigChange(key, text) for key, text in settings_of(QUEUES).items()]
    check(topic_of(), *unchanged, ConfigChange(setting, "2"), incremental=False)


def test_replicas_that_are_copied_slowly_can_be_added_and_taken_out() -> None:
    """As Kafka's tools do when they move partitions."""
    for op in (APPEND, SUBTRACT):
        check(topic_of(GROUPS), ConfigChange("leader.replication.throttled.replicas", "0:1", op))


@pytest.mark.parametrize("value", ["4", "many", ""])
def test_no_more_replicas_have_to_have_a_decision_than_there_are(value: str) -> None:
    check(topic_of(), ConfigChange(MINIMUM, "3"))
    with pytest.raises(InvalidConfig, match="it has 3 replicas"):
        check(topic_of(), ConfigChange(MINIMUM, value))


def test_what_was_altered_before_can_be_repaired() -> None:
    was = topic_of(REQUESTS, retention_ms="1", flush_mode="os")
    check(was, ConfigChange("retention.ms", settings_of(REQUESTS)["retention.ms"]))
    check(was, ConfigChange("flush.mode", None, DELETE))
    check(was, ConfigChange("flush.mode", "os"))  # that is no change
    check(was, *(ConfigChange(key, text) for key, text in settings_of(REQUESTS).items()), incremental=False)
    with pytest.raises(InvalidConfig):
        check(was, ConfigChange("retention.ms", "2"))


def test_topics_of_users_are_theirs() -> None:
    check(topic_of("orders"), ConfigChange("retention.ms", "1"), ConfigChange("cleanup.policy", None, DELETE))
