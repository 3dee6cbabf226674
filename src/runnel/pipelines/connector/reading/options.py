"""What `spark.read` and `spark.readStream` of topics are told, as values.

Rule 1: options are read once, in the driver, before any job: tasks get this value.
Rule 2: what can't mean anything is refused: limits of triggers without triggers, a group's offsets without a group.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from runnel.client.positions import END, START, From
from runnel.pipelines.connector.given import Given
from runnel.pipelines.connector.reading.edges import Edge, offsets_edge, partitions_of, time_edge, times_edge
from runnel.pipelines.errors import BadOption

TOPICS = ("subscribe", "subscribePattern", "assign")
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STRATEGY = "startingOffsetsByTimestampStrategy"
TRIGGER = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
SPLIT = ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition")
SHAPE = ("includeHeaders", "valueFormat", "valueSchema")
OTHER = ("excludePattern", "failOnDataLoss", "lossLog", "isolation", "group.id", "pushFilters", "queues")
NAMES = (*TOPICS, *STARTS, *ENDS, STRATEGY, *TRIGGER, *SPLIT, *SHAPE, *OTHER)
QUEUE_NAMES = (
    "queues", "lease", "filter", "maxOffsetsPerTrigger", "maxBytesPerTrigger", *SHAPE, "failOnDataLoss", "lossLog"
)  # fmt: skip

ISOLATIONS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
GROUP_CHARS_MAX = 100  # of the name that a query gets which was given none


@dataclass(frozen=True)
class Topics:
    """What is read: topics, those whose names match, or partitions. One of the three is given."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    exclude: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, given: Given) -> Self:
        if "queues" in given:
            raise BadOption("queues", given.text("queues"), "queues are read as streams, by themselves: use readStream")
        named = [name for name in TOPICS if name in given]
        if len(named) != 1:
            shown = ", ".join(named) or "nothing"
            raise BadOption("subscribe", shown, "say what to read, by one of subscribe, subscribePattern and assign")
        if "excludePattern" in given and named != ["subscribePattern"]:
            raise BadOption("excludePattern", given.text("excludePattern"), "it goes with subscribePattern")
        if named == ["assign"]:
            return cls(partitions=partitions_of("assign", given.text("assign")))
        if named == ["subscribePattern"]:
            return cls(pattern=_regex(given, "subscribePattern"), exclude=_regex(given, "excludePattern"))
        names = tuple(sorted({part.strip() for part in given.text("subscribe").split(",") if part.strip()}))
        if not names:
            raise BadOption("subscribe", given.text("subscribe"), "name topics, with commas between")
        return cls(names=names)

    def include(self, where: TopicPartition) -> bool:
        return where in self.partitions or where.topic in self.names or self.matches(where.topic)

    def matches(self, topic: str) -> bool:
        """Whether a topic is one of a pattern's."""
        wanted = self.pattern is not None and re.fullmatch(self.pattern, topic) is not None
        return wanted and (self.exclude is None or re.fullmatch(self.exclude, topic) is None)

    def __str__(self) -> str:
        if self.pattern is not None:
            return self.pattern
        return ",".join(self.names or sorted({where.topic for where in self.partitions}))


def _regex(given: Given, name: str) -> str | None:
    if name not in given:
        return None
    try:
        re.compile(given.text(name))
    except re.error as problem:
        raise BadOption(name, given.text(name), f"it is no regular expression: {problem}") from None
    return given.text(name)


@dataclass(frozen=True)
class Limits:
    """How much one micro-batch takes. None: no such limit."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None  # wait for as many, but not longer than `delay_ms_max`
    delay_ms_max: int = 0

    @classmethod
    def of(cls, given: Given) -> Self:
        most, least = given.count("maxOffsetsPerTrigger"), given.count("minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise BadOption("minOffsetsPerTrigger", least, f"it is more than maxOffsetsPerTrigger={most}")
        if "maxTriggerDelay" in given and least is None:
            raise BadOption("maxTriggerDelay", given.text("maxTriggerDelay"), "it goes with minOffsetsPerTrigger")
        return cls(most, given.size("maxBytesPerTrigger"), least, given.span_ms("maxTriggerDelay", "15m"))


@dataclass(frozen=True)
class Splitting:
    """Into how many tasks what is read is cut. None: a task for each partition of a topic."""

    tasks_min: int | None = None
    rows_max: int | None = None
    bytes_max: int | None = None

    @classmethod
    def of(cls, given: Given) -> Self:
        return cls(
            given.count("minPartitions"), given.count("maxRecordsPerPartition"), given.size("maxBytesPerPartition")
        )


@dataclass(frozen=True)
class Shape:
    """What decides which columns there are when the user names none."""

    headers: bool = True
    value_format: str = "raw"
    value_schema: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        return cls.given(Given(options, (*NAMES, *QUEUE_NAMES)))

    @classmethod
    def given(cls, given: Given) -> Self:
        value_format = given.one_of("valueFormat", ("raw", "json"))
        value_schema = given.text("valueSchema")
        if value_schema and value_format != "json":
            raise BadOption("valueSchema", value_schema, "it goes with valueFormat=json")
        return cls(given.flag("includeHeaders", True), value_format, value_schema)


@dataclass(frozen=True)
class ReadOptions:
    """All that a reader of topics is told."""

    brokers: tuple[str, ...]
    topics: Topics
    start: Edge
    end: Edge | None  # None: what is there when it is looked at
    limits: Limits
    splitting: Splitting
    shape: Shape
    isolation: int
    group: str  # empty: none
    fail_on_data_loss: bool
    loss_log: str
    push_filters: bool

    @classmethod
    def batch(cls, options: Mapping[str, str]) -> Self:
        given = Given(options, NAMES)
        for name in TRIGGER:
            if name in given:
                raise BadOption(name, given.text(name), "it limits triggers, and a batch has none: use endingOffsets")
        start = _start(given, "earliest")
        if start.uses(From.END) and END in (start.every, *start.each.values()):
            raise BadOption(start.option, given.text(start.option), "a batch that begins at the end reads nothing")
        return cls._of(given, start, default_group="")

    @classmethod
    def streaming(cls, options: Mapping[str, str]) -> Self:
        given = Given(options, NAMES)
        if "pushFilters" in given:
            raise BadOption(
                "pushFilters", given.text("pushFilters"), "Spark hands filters to batches only: leave it out"
            )
        return cls._of(given, _start(given, "latest"), default_group=_group_of(Topics.of(given)))

    @classmethod
    def _of(cls, given: Given, start: Edge, default_group: str) -> Self:
        if start.uses(From.STORED) and not given.text("group.id"):
            raise BadOption(start.option, "committed", "say whose offsets: give group.id")
        return cls(
            brokers=given.brokers(),
            topics=Topics.of(given),
            start=start,
            end=_end(given),
            limits=Limits.of(given),
            splitting=Splitting.of(given),
            shape=Shape.given(given),
            isolation=ISOLATIONS[given.one_of("isolation", tuple(ISOLATIONS))],
            group=given.text("group.id", default_group),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            loss_log=given.text("lossLog"),
            push_filters=given.flag("pushFilters", False),
        )


def _start(given: Given, default: str) -> Edge:
    strict = given.one_of(STRATEGY, ("error", "latest")) == "error"
    return _edge(given, STARTS, strict=strict) or offsets_edge("startingOffsets", default)


def _end(given: Given) -> Edge | None:
    end = _edge(given, ENDS, strict=False)
    if end is not None and (end.uses(From.STORED) or START in (end.each.values() if end.each else (end.every,))):
        raise BadOption(end.option, given.text(end.option), "reading ends at latest, at -N, at an offset or at a time")
    return end


def _edge(given: Given, names: tuple[str, str, str], *, strict: bool) -> Edge | None:
    said = [name for name in names if name in given]
    if not said:
        return None
    if len(said) > 1:
        raise BadOption(said[1], given.text(said[1]), f"{said[0]} is given too: give one of them")
    name = said[0]
    text = given.text(name)
    if name == names[0]:
        return offsets_edge(name, text)
    return (time_edge if name == names[1] else times_edge)(name, text, strict=strict)


def _group_of(topics: Topics) -> str:
    """The group under which a query's progress is seen if it was given none."""
    return f"spark-{topics}"[:GROUP_CHARS_MAX]
