"""The settings a queue can have: Runnel's names and, as aliases, Kafka's for share groups.

One table drives parsing, validation, DescribeConfigs and the reference page. They belong to the group of the queue's
name. In the name of a topic `{queue}` stands for the name of the queue.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from runnel.model.errors import InvalidConfig
from runnel.model.limits import NAME_CHARS_MAX, topic_name_problem
from runnel.model.parsing import number, truth, whole
from runnel.model.topic_config import DAY_MS, INT_MAX, LONG_MAX, Kind, Setting, field_name

LEASE_MS_MAX = DAY_MS  # a lease outlives no consumer for longer; who works longer extends it
FILTER_CHARS_MAX = 4_096  # what a filter may have; see runnel.route
QUEUE = "{queue}"
ODD = re.compile(r"[^A-Za-z0-9._-]")  # what is in no topic's name
DIGEST_BYTES = 5
URL_CHARS_MAX = 2_000
SECRET_CHARS_MAX = 256
HIDDEN = "(hidden)"  # shown instead of a secret
SECRETS = frozenset({"webhook.secret"})
BY_DURATION = "by_duration:"  # Kafka's word, and its durations: those of ISO 8601, without months and years
ISO_DURATION = re.compile(
    r"P(?:([0-9]{1,9})D)?(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
)


class Expired(Enum):
    """What becomes of a message that expired before it was delivered."""

    DROP = "drop"
    DEAD = "dead"


class Order(Enum):
    NONE = "none"
    KEY = "key"  # one message of a key at a time, in order


class Consumers(Enum):
    MANY = "many"
    SINGLE = "single"  # one at a time in each partition; the next when it goes


class Overflow(Enum):
    DROP_OLDEST = "drop-oldest"
    REFUSE = "refuse"


class Isolation(Enum):
    """What of transactions is delivered. The values are Kafka's."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


class Start(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Ago:
    """A queue begins with what is no older than this, when it begins."""

    duration_ms: int
    text: str  # as it was set

    def __str__(self) -> str:
        return self.text


def _setting(name: str, kind: Kind, default: Any, parse: Callable[[str], Any], allowed: str, doc: str) -> Any:
    return field(default=default, metadata={"setting": Setting(name, kind, doc, parse, allowed)})


def _int(name: str, default: int, low: int, high: int, doc: str) -> Any:
    return _setting(name, "int", default, whole(low, high), f"a whole number from {low} to {high}", doc)


def _long(name: str, default: int, low: int, doc: str, high: int = LONG_MAX) -> Any:
    return _setting(name, "long", default, whole(low, high), f"a whole number from {low} to {high}", doc)


def _start(text: str) -> Start | Ago:
    if not text.startswith(BY_DURATION):
        return Start(text)
    found = ISO_DURATION.fullmatch(text.removeprefix(BY_DURATION))
    if found is None or text.endswith(("P", "T")):
        raise ValueError(text)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return Ago(int(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1_000), text)


def _choice(name: str, default: Enum, doc: str) -> Any:
    kind = type(default)
    return _setting(name, "string", default, kind, " or ".join(choice.value for choice in kind), doc)


def _topic(text: str) -> str:
    if topic_name_problem(text.replace(QUEUE, "q")) is not None:
        raise ValueError(text)
    return text


def _topic_or_none(text: str) -> str:
    return _topic(text) if text else text


def _url(text: str) -> str:
    if text and (not text.startswith(("http://", "https://")) or len(text) > URL_CHARS_MAX):
        raise ValueError(text)
    return text


def _secret(text: str) -> str:
    if len(text) > SECRET_CHARS_MAX:
        raise ValueError(text)
    return text


def _filter(text: str) -> str:
    if len(text) > FILTER_CHARS_MAX:
        raise ValueError(text)
    return text


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The effective settings of one queue."""

    topic: str = _setting(
        "topic", "string", QUEUE, _topic, "the name of a topic; {queue} stands for the queue's",
        "where its messages come from",
    )  # fmt: skip
    lanes: int = _int(
        "lanes", 1, 1, 256, "partitions of the topic that serve as priorities: the message of a higher lane goes first"
    )
    lease_ms: int = _long("lease.ms", 30_000, 1, "for how long a message is leased", LEASE_MS_MAX)
    attempts_max: int = _int(
        "attempts.max", 5, 0, INT_MAX, "a message that was delivered so often in vain is dead; 0: never"
    )
    leases_max: int = _int("leases.max", 2_000, 1, 1_000_000, "messages leased at a time in each partition")
    window_max: int = _int(
        "window.max", 20_000, 1, 10_000_000, "messages in each partition that somebody has or had, and are not done"
    )
    window_wait_max_ms: int = _long(
        "window.wait.max.ms", 60_000, 0, "a message that is to wait for longer is copied to the queue's retry topic"
    )
    retry_backoff_ms: int = _long("retry.backoff.ms", 1_000, 0, "pause before the second delivery", 365 * DAY_MS)
    retry_backoff_max_ms: int = _long("retry.backoff.max.ms", 300_000, 0, "no pause is longer", 365 * DAY_MS)
    retry_backoff_multiplier: float = _setting(
        "retry.backoff.multiplier", "double", 2.0, number(1.0, 100.0), "a number from 1 to 100",
        "each pause is so much longer than the one before",
    )  # fmt: skip
    dead_letter_topic: str = _setting(
        "dead.letter.topic", "string", QUEUE + ".dead", _topic_or_none,
        "the name of a topic, {queue} stands for the queue's; or nothing: dead messages are dropped",
        "where dead messages go",
    )  # fmt: skip
    retry_topic: str = _setting(
        "retry.topic", "string", QUEUE + ".retry", _topic_or_none,
        "the name of a topic, {queue} stands for the queue's; or nothing: messages wait in place",
        "where messages go that wait for long; the queue delivers them from there",
    )  # fmt: skip
    expired: Expired = _choice("expired", Expired.DROP, "what becomes of a message that expired")
    order: Order = _choice("order", Order.NONE, "key: one message of a key at a time, in their order")
    consumers: Consumers = _choice("consumers", Consumers.MANY, "single: one consumer at a time in each partition")
    max_length: int = _long("max.length", 0, 0, "messages not settled yet in each partition; 0: no bound")
    overflow: Overflow = _choice(
        "overflow", Overflow.DROP_OLDEST, "at max.length: the oldest become dead letters, or new messages are refused"
    )
    filter: str = _setting(
        "filter", "string", "", _filter, f"at most {FILTER_CHARS_MAX} characters",
        "only messages that pass are delivered; the others are done",
    )  # fmt: skip
    webhook_url: str = _setting(
        "webhook.url", "string", "", _url, "http://... or https://..., or nothing",
        "brokers POST the messages there, instead of waiting for consumers",
    )  # fmt: skip
    webhook_secret: str = _setting(
        "webhook.secret", "string", "", _secret, "at most 256 characters", "what POSTs are signed with; it is not shown"
    )
    webhook_concurrency: int = _int("webhook.concurrency", 10, 1, 1_000, "POSTs under way at a time")
    webhook_timeout_ms: int = _long("webhook.timeout.ms", 10_000, 100, "how long an answer may take", 300_000)
    breaker_percent: int = _int(
        "breaker.percent", 0, 0, 100, "delivery pauses when so many of 100 deliveries fail; 0: never"
    )
    breaker_window_ms: int = _long("breaker.window.ms", 10_000, 100, "deliveries of that time count", DAY_MS)
    breaker_pause_ms: int = _long("breaker.pause.ms", 30_000, 1, "how long delivery pauses", DAY_MS)
    start: Start | Ago = _setting(
        "start", "string", Start.EARLIEST, _start, "earliest, latest, or by_duration:PnDTnHnMnS",
        "where a new queue begins in a topic that has messages; by_duration: with what is no older than that",
    )  # fmt: skip
    isolation: Isolation = _choice(
        "isolation", Isolation.COMMITTED, "read_uncommitted: also what is in open or aborted transactions"
    )
    share_session_timeout_ms: int = _int(
        "share.session.timeout.ms", 45_000, 1_000, INT_MAX, "a member that is silent for so long is gone"
    )
    share_heartbeat_interval_ms: int = _int(
        "share.heartbeat.interval.ms", 5_000, 100, INT_MAX, "how often members of the share group report"
    )
    share_renew_acknowledge_enable: bool = _setting(
        "share.renew.acknowledge.enable", "boolean", True, truth, "true or false",
        "whether members of the share group may renew their locks",
    )  # fmt: skip
    consumer_session_timeout_ms: int = _int(
        "consumer.session.timeout.ms", 45_000, 1_000, INT_MAX,
        "the same for members of a consumer group (KIP-848), which is none of a queue",
    )  # fmt: skip
    consumer_heartbeat_interval_ms: int = _int(
        "consumer.heartbeat.interval.ms", 5_000, 100, INT_MAX, "how often members of such a group report"
    )

    @property
    def keyed(self) -> bool:
        return self.order is Order.KEY

    def topic_of(self, queue: str) -> str:
        return self.topic.replace(QUEUE, queue)

    def dead_topic_of(self, queue: str) -> str:
        """Where dead messages go; nothing if they are dropped."""
        return named(self.dead_letter_topic, queue)

    def retry_topic_of(self, queue: str) -> str:
        """Where messages go that wait for long; nothing if they wait in place: key order needs that."""
        return "" if self.keyed else named(self.retry_topic, queue)

    def with_overrides(self, overrides: Mapping[str, str]) -> "QueueConfig":
        """These settings with others on top; raises InvalidConfig at the first that is unknown or not allowed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, text in overrides.items():
            values[field_name(canonical(name))] = parse_setting(name, text)
        return QueueConfig(**values)


def named(template: str, queue: str) -> str:
    """The topic that a template means for a queue. The name of a share group may be one that no topic can have.

    Then it is made one, with a digest of all of it: a/b, a b and a_b are three groups, and have three topics.
    """
    name = template.replace(QUEUE, queue)
    if not name or topic_name_problem(name) is None:
        return name
    digest = "-" + blake2b(queue.encode(), digest_size=DIGEST_BYTES).hexdigest()
    room = NAME_CHARS_MAX - len(template.replace(QUEUE, "")) - len(digest)
    return template.replace(QUEUE, ODD.sub("_", queue)[:room] + digest)


SETTINGS: dict[str, Setting] = {f.metadata["setting"].name: f.metadata["setting"] for f in fields(QueueConfig)}
DEFAULTS = QueueConfig()
WEBHOOK_URL = "webhook.url"
DEFINED = "topic"  # what a queue has a setting of, in any case; without it there is but a share group of the name
SHARE_DEFAULTS = replace(  # as in Kafka: members do not read a retry topic, and what is released is free at once
    DEFAULTS, start=Start.LATEST, retry_backoff_ms=0, retry_topic="", isolation=Isolation.UNCOMMITTED
)

WEBHOOK_DEFAULTS = replace(  # a subscriber may be down overnight: the last of 39 pauses ends after 7 to 15 hours
    DEFAULTS, attempts_max=40, retry_backoff_max_ms=1_800_000
)

ALIASES: dict[str, str] = {  # Kafka's names for share groups
    "share.record.lock.duration.ms": "lease.ms",
    "share.delivery.count.limit": "attempts.max",
    "share.partition.max.record.locks": "leases.max",
    "share.auto.offset.reset": "start",
    "share.isolation.level": "isolation",
}


def canonical(name: str) -> str:
    """Runnel's name of a setting that Kafka calls otherwise."""
    return ALIASES.get(name, name)


def shown_value(name: str, text: str) -> str:
    """The value of a setting as people may see it."""
    return HIDDEN if text and canonical(name) in SECRETS else text


def parse_setting(name: str, text: str) -> Any:
    """The value of one setting; the error names the key, the value and what is allowed."""
    setting = SETTINGS.get(canonical(name))
    if setting is None:
        raise InvalidConfig(f"unknown queue setting {name!r}: allowed are {', '.join(sorted(SETTINGS))}")
    try:
        return setting.parse(text)
    except ValueError:
        raise InvalidConfig(f"queue setting {name} can't be {text!r}: allowed is {setting.allowed}") from None


@lru_cache(maxsize=1_024)
def config_of(overrides: frozenset[tuple[str, str]]) -> QueueConfig:
    """The settings of a queue, or of a mere share group, that has these of its own."""
    given = dict(overrides)
    return defaults_of(given).with_overrides(given)


def defaults_of(overrides: Mapping[str, str]) -> QueueConfig:
    """The defaults of a queue, of one with a webhook, or of a mere share group."""
    if DEFINED not in overrides:
        return SHARE_DEFAULTS
    return WEBHOOK_DEFAULTS if overrides.get(WEBHOOK_URL) else DEFAULTS
