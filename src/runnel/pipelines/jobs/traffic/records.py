"""What the traffic job tells: records of windows and of lags, as messages and as rows of tables.

Rule 1: a record's key says what it is about: the metric, the topic or the group, and the window. The newest record of a
        key is the truth: a window is told again for as long as messages of it come.
Rule 2: a number that nobody can know is left out, not made up: no share of keys without keys, no skew of nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

ALL: Final = -1  # in the place of a partition: the whole topic
TIMES: Final = {0: "create", 1: "append"}  # whose clock timestamps are of: the producer's or the broker's


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from a message's timestamp until the job saw it."""

    p50: int
    p95: int
    p99: int
    max: int


class HotKey(msgspec.Struct, frozen=True):
    key: str
    messages: int
    share: float  # of all messages of the topic in the window


class Window(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="metric", tag="traffic"):
    """What went through a topic, or one of its partitions, in a span of time."""

    topic: str
    partition: int | None = None  # None: all of them
    start: datetime
    end: datetime
    messages: int
    bytes: int  # of keys and values
    messages_per_s: float
    bytes_per_s: float
    size_mean: float
    size_max: int
    latency_ms: Latency | None = None
    timestamps: str = ""  # create, append or mixed
    partitions: int | None = None
    partitions_used: int | None = None
    skew: float | None = None  # the busiest partition against an even share: 1.0 is even
    hot_keys: list[HotKey] = []

    @property
    def key(self) -> str:
        place = self.topic if self.partition is None else f"{self.topic}/{self.partition}"
        return f"traffic/{place}/{_iso(self.start)}"


class Lag(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="lag"):
    """How far a group is behind the end of a topic."""

    group: str
    topic: str
    at: datetime
    lag: int
    lag_max: int  # of one partition
    partitions: int

    @property
    def key(self) -> str:
        return f"lag/{self.group}/{self.topic}"


def window_of(row: Mapping[str, Any], partitions: int | None) -> Window:
    """A record of one row of the aggregate; `partitions` is how many the topic has, if that is known."""
    start, end = _utc(row["start"]), _utc(row["end"])
    messages, seconds = row["messages"], (end - start).total_seconds()
    whole = row["partition"] == ALL
    used = [times for number, times in row["used"] or () if number is not None] if whole else []
    return Window(
        topic=row["topic"], partition=None if whole else row["partition"], start=start, end=end, messages=messages,
        bytes=row["bytes"], messages_per_s=round(messages / seconds, 3), bytes_per_s=round(row["bytes"] / seconds, 3),
        size_mean=round(row["bytes"] / messages, 1), size_max=row["size_max"],
        latency_ms=_latency(row["latency"], row["latency_max"]),
        timestamps=TIMES.get(row["kind_min"], "") if row["kind_min"] == row["kind_max"] else "mixed",
        partitions=partitions if whole else None, partitions_used=len(used) if whole else None,
        skew=skew(used, partitions) if whole else None,
        hot_keys=hot_keys(row["keys"] or (), messages) if whole else [],
    )  # fmt: skip


def _latency(quantiles: Sequence[int] | None, longest: int | None) -> Latency | None:
    if not quantiles or longest is None:
        return None
    p50, p95, p99 = quantiles
    return Latency(p50, p95, p99, longest)


def skew(counts: Sequence[int], partitions: int | None) -> float | None:
    """The busiest partition against an even share; partitions that got nothing count, too."""
    if not counts:
        return None
    even = sum(counts) / max(partitions or 0, len(counts))
    return round(max(counts) / even, 3)


def hot_keys(counted: Iterable[tuple[str | None, int]], messages: int) -> list[HotKey]:
    """The keys that came most often; what has no key is none."""
    return [HotKey(key, times, round(times / messages, 4)) for key, times in counted if key is not None]


def lags_of(group: str, lags: Iterable[tuple[str, int]], at: datetime) -> list[Lag]:
    """Records of a group's lags in partitions: one for each topic."""
    topics: dict[str, list[int]] = {}
    for topic, lag in lags:
        topics.setdefault(topic, []).append(lag)
    return [
        Lag(group=group, topic=topic, at=at, lag=sum(each), lag_max=max(each), partitions=len(each))
        for topic, each in sorted(topics.items())
    ]


def message_of(record: Window | Lag) -> tuple[str, str]:
    """A record as the key and the value of a message."""
    return record.key, msgspec.json.encode(record).decode()


def row_of(record: Window | Lag) -> dict[str, Any]:
    """A record as a row of a table: flat, but for the list of keys."""
    row = {name: getattr(record, name) for name in record.__struct_fields__}
    if isinstance(record, Window):
        latency = row.pop("latency_ms")
        for name in Latency.__struct_fields__:
            row[f"latency_{name}_ms"] = None if latency is None else getattr(latency, name)
        row["hot_keys"] = [msgspec.structs.asdict(each) for each in record.hot_keys]
        row["partition"] = ALL if record.partition is None else record.partition
        row["date"] = record.start.date()
    else:
        row["date"] = record.at.date()
    return row


def _utc(when: datetime) -> datetime:
    """Spark hands out times without a zone, of the session's: ours is UTC."""
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _iso(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
