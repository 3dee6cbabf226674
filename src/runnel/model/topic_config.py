"""The settings a topic can have: Kafka's names, types, bounds and defaults, plus Runnel's own `flush.mode`.

One table drives parsing, validation, DescribeConfigs and the reference page.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from runnel.model.errors import InvalidConfig
from runnel.model.limits import BATCH_BYTES_MAX, GIB, KIB, MIB
from runnel.model.parsing import number, one_of, truth, whole, whole_or

DAY_MS = 24 * 60 * 60 * 1000
PRODUCER = "producer"  # of compression.type: as the producer compressed it
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
THROTTLED_ALLOWED = "* for all replicas, or a list of PARTITION:BROKER"

Kind: TypeAlias = Literal["boolean", "string", "int", "long", "double", "list"]


class FlushMode(Enum):
    """When acks=all is answered, and how far consumers may read."""

    COMMIT = "commit"  # after fdatasync; several appends share one
    INTERVAL = "interval"  # when written; synced every flush.ms or flush.messages
    OS = "os"  # when written; the operating system syncs when it likes (Kafka's way)


class TimestampType(Enum):
    CREATE = "CreateTime"
    APPEND = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is written, and what is allowed."""

    name: str
    kind: Kind
    doc: str
    parse: Callable[[str], Any]
    allowed: str


def _policies(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policies or not policies <= {"delete", "compact"}:
        raise ValueError(text)
    return policies


def _throttled(text: str) -> frozenset[str]:
    """Replicas as `partition:broker`, or `*` for all of them."""
    replicas = frozenset(part.strip() for part in text.split(",") if part.strip())
    if replicas != {"*"} and not all(_is_replica(replica) for replica in replicas):
        raise ValueError(text)
    return replicas


def _is_replica(text: str) -> bool:
    partition, colon, broker = text.partition(":")
    return bool(colon) and partition.isdecimal() and broker.isdecimal()


def _setting(name: str, kind: Kind, default: Any, parse: Callable[[str], Any], allowed: str, doc: str) -> Any:
    return field(default=default, metadata={"setting": Setting(name, kind, doc, parse, allowed)})


def _int(name: str, default: int, low: int, doc: str) -> Any:
    return _setting(name, "int", default, whole(low, INT_MAX), f"a whole number from {low} to {INT_MAX}", doc)


def _long(name: str, default: int, low: int, doc: str) -> Any:
    return _setting(name, "long", default, whole(low, LONG_MAX), f"a whole number from {low} to {LONG_MAX}", doc)


def _bool(name: str, default: bool, doc: str) -> Any:
    return _setting(name, "boolean", default, truth, "true or false", doc)


def _text(name: str, doc: str) -> Any:
    return _setting(name, "string", "", str, "a text", doc)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of one topic."""

    cleanup_policy: frozenset[str] = _setting(
        "cleanup.policy", "list", frozenset({"delete"}), _policies, "delete, compact, or both with a comma",
        "delete: remove old segments by retention; compact: keep the last record of each key",
    )  # fmt: skip
    compression_type: str = _setting(
        "compression.type", "string", PRODUCER, one_of(PRODUCER, "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer, uncompressed, gzip, snappy, lz4 or zstd",
        "producer: batches are kept as they come; else the broker compresses others anew: 1 to 3 ms of CPU a MB",
    )  # fmt: skip
    compression_gzip_level: int = _setting(
        "compression.gzip.level", "int", -1, whole_or(-1, 1, 9), "-1, or a whole number from 1 to 9",
        "how hard to compress where compression.type is gzip; -1: fast, about as 1",
    )  # fmt: skip
    compression_lz4_level: int = _setting(
        "compression.lz4.level", "int", 9, whole(1, 17), "a whole number from 1 to 17",
        "how hard to compress where compression.type is lz4; 9, the default: fast, as in Kafka; others: thorough",
    )  # fmt: skip
    compression_zstd_level: int = _setting(
        "compression.zstd.level", "int", 3, whole(-131_072, 22), "a whole number from -131072 to 22",
        "how hard to compress where compression.type is zstd",
    )  # fmt: skip
    dedup_window_ms: int = _long(
        "dedup.window.ms", 0, 0, "a message whose runnel-message-id came within so long is not kept again; 0: it is"
    )
    delay_enable: bool = _bool(
        "delay.enable", False, "messages with runnel-deliver-at or runnel-delay-ms are held back until they are due"
    )
    delete_retention_ms: int = _long("delete.retention.ms", DAY_MS, 0, "how long compaction keeps a tombstone")
    file_delete_delay_ms: int = _long(
        "file.delete.delay.ms", 60_000, 0, "accepted for Kafka's tools; who reads a removed segment may finish"
    )
    flush_mode: FlushMode = _setting(
        "flush.mode", "string", FlushMode.COMMIT, FlushMode, "commit, interval or os",
        "commit: acks=all waits for fdatasync; interval: a sync every flush.ms or flush.messages; os: the kernel syncs",
    )  # fmt: skip
    flush_messages: int = _long("flush.messages", LONG_MAX, 1, "interval mode: sync after so many messages")
    flush_ms: int = _long("flush.ms", 1_000, 1, "interval mode: sync after so many milliseconds")
    follower_replication_throttled_replicas: frozenset[str] = _setting(
        "follower.replication.throttled.replicas", "list", frozenset(), _throttled, THROTTLED_ALLOWED,
        "replicas that are copied no faster than the broker's follower.replication.throttled.rate",
    )  # fmt: skip
    index_interval_bytes: int = _int("index.interval.bytes", 4 * KIB, 0, "bytes of log for one index entry")
    leader_replication_throttled_replicas: frozenset[str] = _setting(
        "leader.replication.throttled.replicas", "list", frozenset(), _throttled, THROTTLED_ALLOWED,
        "accepted for Kafka's tools; it is the follower that is held back",
    )  # fmt: skip
    max_compaction_lag_ms: int = _long("max.compaction.lag.ms", LONG_MAX, 1, "compact at the latest after so long")
    max_message_bytes: int = _int("max.message.bytes", BATCH_BYTES_MAX, 0, "largest batch, after compression")
    message_timestamp_type: TimestampType = _setting(
        "message.timestamp.type", "string", TimestampType.CREATE, TimestampType, "CreateTime or LogAppendTime",
        "whose clock stamps messages: the producer's or the broker's",
    )  # fmt: skip
    message_timestamp_before_max_ms: int = _long(
        "message.timestamp.before.max.ms", LONG_MAX, 0, "how far a timestamp may lie in the past"
    )
    message_timestamp_after_max_ms: int = _long(
        "message.timestamp.after.max.ms", 3_600_000, 0, "how far a timestamp may lie in the future"
    )
    min_cleanable_dirty_ratio: float = _setting(
        "min.cleanable.dirty.ratio", "double", 0.5, number(0.0, 1.0), "a number from 0 to 1",
        "compact when this share of the log is not compacted yet",
    )  # fmt: skip
    min_compaction_lag_ms: int = _long("min.compaction.lag.ms", 0, 0, "a record stays uncompacted at least so long")
    min_insync_replicas: int = _int("min.insync.replicas", 1, 1, "acks=all needs so many replicas in sync")
    preallocate: bool = _bool("preallocate", False, "accepted for Kafka's tools; segments are never preallocated")
    retention_bytes: int = _long("retention.bytes", -1, -1, "keep at most so many bytes a partition; -1: no bound")
    retention_ms: int = _long("retention.ms", 7 * DAY_MS, -1, "keep messages so long; -1: for ever")
    segment_bytes: int = _int("segment.bytes", GIB, 1 * MIB, "roll a segment at this size")
    segment_index_bytes: int = _int("segment.index.bytes", 10 * MIB, 4, "roll a segment when an index has this size")
    segment_jitter_ms: int = _long("segment.jitter.ms", 0, 0, "roll by age up to so much earlier, at random")
    segment_ms: int = _long("segment.ms", 7 * DAY_MS, 1, "roll a segment at this age")
    unclean_leader_election_enable: bool = _bool(
        "unclean.leader.election.enable", False, "let a replica lead that may lack acknowledged messages"
    )
    view_filter: str = _text("view.filter", "a condition: which messages of the source the view shows")
    view_of: str = _text("view.of", "makes the topic a view: it shows messages of this other topic, and has none")
    view_of_id: str = _text("view.of.id", "the id of that other topic; Runnel sets it, nobody else can")

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def looks_inside(self) -> bool:
        """Whether a batch may have to be another before it is appended: with fewer records, or compressed otherwise."""
        return self.takes_records_out or self.compression_type != PRODUCER

    @property
    def takes_records_out(self) -> bool:
        """Whether records of a batch may have to be taken out of it before it is appended."""
        return self.delay_enable or self.dedup_window_ms > 0

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    def with_overrides(self, overrides: Mapping[str, str]) -> "TopicConfig":
        """These settings with others on top; raises InvalidConfig at the first that is unknown or not allowed."""
        return _overridden(self, tuple(overrides.items()))


@lru_cache(maxsize=1_000)  # topics by the thousand have the same few settings, and so share them
def _overridden(config: TopicConfig, overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    for name, text in overrides:
        values[field_name(name)] = parse_setting(name, text)
    return TopicConfig(**values)


SETTINGS: dict[str, Setting] = {f.metadata["setting"].name: f.metadata["setting"] for f in fields(TopicConfig)}


def field_name(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def parse_setting(name: str, text: str) -> Any:
    """The value of one setting; the error names the key, the value and what is allowed."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(f"unknown topic setting {name!r}: allowed are {', '.join(sorted(SETTINGS))}")
    try:
        return setting.parse(text)
    except ValueError:
        raise InvalidConfig(f"topic setting {name} can't be {text!r}: allowed is {setting.allowed}") from None


def shown(value: Any) -> str:
    """A value as Kafka's tools print it."""
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return str(value.value)
        case frozenset():
            return ",".join(sorted(value))
    return str(value)
