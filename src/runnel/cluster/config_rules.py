"""Which settings can be changed while running, and how a change is worked out.

Topics have the settings of model.topic_config. The dynamic settings of a broker are the defaults of its topics: one
table says which broker setting stands behind which topic setting. A topic's own override wins over the broker's, the
broker's over the cluster's, the cluster's over the configuration file. A few more settings are a broker's own.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from runnel.cluster.image import CLUSTER, ConfigKey, Image, Overrides, Topic
from runnel.model.errors import InvalidConfig, InvalidRequest
from runnel.model.ids import BrokerId
from runnel.model.parsing import whole
from runnel.model.topic_config import LONG_MAX, SETTINGS, Setting, TopicConfig, field_name, shown

BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.flush.mode": "flush.mode",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}

RATE_DEFAULT: Final = LONG_MAX  # not held back at all
_RATE_ALLOWED: Final = f"a whole number from 0 to {LONG_MAX}"
OWN_SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting(
            "follower.replication.throttled.rate",
            "long",
            "bytes a second that throttled replicas are copied with",
            whole(0, LONG_MAX),
            _RATE_ALLOWED,
        ),
        Setting(
            "leader.replication.throttled.rate",
            "long",
            "accepted for Kafka's tools; it is the follower that is held back",
            whole(0, LONG_MAX),
            _RATE_ALLOWED,
        ),
    )
}

# The leader and the controller must mean the same by these, whoever they are: so no broker has its own.
OF_THE_CLUSTER: Final = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})


class ConfigOp(IntEnum):
    """Kafka's numbers for what an incremental change does."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    name: str
    value: str | None
    op: ConfigOp = ConfigOp.SET


class TopicResource(NamedTuple):
    name: str


class BrokerResource(NamedTuple):
    """One broker, or all of them for None."""

    id: BrokerId | None

    @property
    def key(self) -> ConfigKey:
        return CLUSTER if self.id is None else str(self.id)


def altered(
    present: Mapping[str, str],
    changes: Sequence[ConfigChange],
    *,
    incremental: bool,
    topic_setting: Callable[[str], str],
    effective: TopicConfig,
) -> dict[str, str]:
    """The overrides after a change; `effective` is what APPEND and SUBTRACT start from where nothing is overridden."""
    refuse_twice([change.name for change in changes])
    values = dict(present) if incremental else {}
    for change in changes:
        if change.op is ConfigOp.DELETE:  # also of what is unknown: then there is nothing to do, as in Kafka
            values.pop(change.name, None)
            continue
        setting = topic_setting(change.name)
        values[change.name] = _changed(change, setting, present, effective)
        _check(change.name, setting, values[change.name])
    return values


def sorted_out(
    resource: object, changes: Sequence[ConfigChange]
) -> tuple[Sequence[ConfigChange], InvalidConfig | None]:
    """The changes that can be made, and the refusal of those of broker settings that there are not.

    Kafka's tools set dynamic settings of Kafka's brokers in one request with those that are here as well.
    """
    if not isinstance(resource, BrokerResource):
        return changes, None
    unknown = [each.name for each in changes if each.op is not ConfigOp.DELETE and not _is_of_brokers(each.name)]
    if not unknown:
        return changes, None
    allowed = ", ".join([*BROKER_SETTINGS, *OWN_SETTINGS])
    return [each for each in changes if each.name not in unknown], InvalidConfig(
        f"not set: {', '.join(unknown)}. A broker has no such setting, or it needs a restart; the others that were"
        f" named are set. While running, change {allowed}"
    )


def _is_of_brokers(name: str) -> bool:
    return name in BROKER_SETTINGS or name in OWN_SETTINGS


def refuse_twice(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidRequest(f"settings {', '.join(twice)} are named twice in one request: name each once")


def _changed(change: ConfigChange, setting: str, present: Mapping[str, str], effective: TopicConfig) -> str:
    if change.value is None:
        raise InvalidRequest(f"setting {change.name} has no value: give one, or delete the setting")
    if change.op is ConfigOp.SET:
        return change.value
    if _known(setting).kind != "list":
        raise InvalidConfig(
            f"setting {change.name} is not a list: it can be set or deleted, not added to or taken from"
        )
    now = present.get(change.name, shown(getattr(effective, field_name(setting))))
    return _spliced(now, change.value, add=change.op is ConfigOp.APPEND)


def _spliced(now: str, part: str, *, add: bool) -> str:
    items, parts = ([item.strip() for item in text.split(",") if item.strip()] for text in (now, part))
    if add:
        return ",".join([*items, *(item for item in parts if item not in items)])
    return ",".join(item for item in items if item not in parts)


def _check(name: str, setting: str, value: str) -> None:
    try:
        _known(setting).parse(value)
    except ValueError:
        raise InvalidConfig(f"setting {name} can't be {value!r}: allowed is {_known(setting).allowed}") from None


def _known(name: str) -> Setting:
    return OWN_SETTINGS.get(name) or SETTINGS[name]


def topic_setting_of_topic(name: str) -> str:
    if name not in SETTINGS:
        raise InvalidConfig(f"unknown topic setting {name!r}: allowed are {', '.join(sorted(SETTINGS))}")
    return name


def topic_setting_of_broker(name: str) -> str:
    """The topic setting that a broker's setting is the default of, or the setting itself if it is the broker's own."""
    if name in OWN_SETTINGS:
        return name
    if name not in BROKER_SETTINGS:
        allowed = ", ".join([*BROKER_SETTINGS, *OWN_SETTINGS])
        raise InvalidConfig(f"broker setting {name!r} is unknown or needs a restart: while running, change {allowed}")
    return BROKER_SETTINGS[name]


def topic_setting_of_one_broker(name: str) -> str:
    if name in OF_THE_CLUSTER:
        raise InvalidConfig(f"setting {name} holds for all brokers alike: set it for all of them, or for a topic")
    return topic_setting_of_broker(name)


def topic_defaults(image: Image, broker: BrokerId | None, base: TopicConfig) -> TopicConfig:
    """What holds for a topic without overrides, on one broker (None: on any)."""
    overrides: dict[str, str] = {}
    for key in (CLUSTER,) if broker is None else (CLUSTER, str(broker)):
        values = image.configs.get(key, Overrides()).values
        overrides |= {BROKER_SETTINGS[name]: value for name, value in values.items() if name in BROKER_SETTINGS}
    return base.with_overrides(overrides) if overrides else base


def topic_config(image: Image, topic: Topic, broker: BrokerId | None, base: TopicConfig) -> TopicConfig:
    """The settings in force for a topic on a broker."""
    defaults = topic_defaults(image, broker, base)
    return defaults.with_overrides(topic.config) if topic.config else defaults


# --- how fast replicas may be copied
def copy_rate(image: Image, broker: BrokerId) -> int:
    """Bytes a second with which a broker copies throttled replicas: its own word, or that for all brokers."""
    name = "follower.replication.throttled.rate"
    for key in (str(broker), CLUSTER):
        if (value := image.configs.get(key, Overrides()).values.get(name)) is not None:
            return int(value)
    return RATE_DEFAULT


def is_throttled(config: TopicConfig, partition: int, broker: BrokerId) -> bool:
    """Whether a broker copies this partition of a topic no faster than its rate."""
    replicas = config.follower_replication_throttled_replicas
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker}" in replicas)
