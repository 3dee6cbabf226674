"""What tasks do with dead letters: Arrow batches in, rows out.

Rule 1: an account and the message that it tells of are rows of one task, and so of one transaction.
Rule 2: which letters lie elsewhere is asked once for each batch of Arrow, and what a topic takes once for each task.
Rule 3: rows out are bounded by the batch in: a letter becomes two rows at most.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.jobs.deadletters.cluster import away, target_of
from runnel.pipelines.jobs.deadletters.letter import Letter, Pairs, letter_of
from runnel.pipelines.jobs.deadletters.repair import (
    Judge,
    Judged,
    Out,
    Repair,
    Rules,
    Target,
    account_message,
    account_of,
)

HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
WRITTEN: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
WRITTEN_DDL: Final = (
    "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
)
TOLD: Final = pa.schema(
    [
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("topic", pa.string()),
        ("age", pa.string()),
        ("why", pa.string()),
        ("died_ms", pa.int64()),
        ("place", pa.string()),
    ]
)
TOLD_DDL: Final = (
    "outcome string, reason string, error string, topic string, age string, why string, died_ms long, place string"
)
DEAD: Final = "dead"  # the outcome of a letter that nothing was done to
VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d+(?:\.\d+)?")
TEXT_MAX: Final = 200  # characters of a reason: reports are for people
AGES: Final = ((60_000, "< 1m"), (3_600_000, "< 1h"), (86_400_000, "< 1d"), (7 * 86_400_000, "< 7d"))


class Found(NamedTuple):
    """A letter of the queue, with its headers as they lie, and whether it went back before."""

    letter: Letter
    pairs: Pairs
    gone: bool


class Pace:
    """No more messages in a second than this, counted from the first on. 0: no bound."""

    def __init__(self, rate_max: int) -> None:
        self._rate_max = rate_max
        self._begun_s = time.monotonic()
        self._count = 0

    def wait(self, messages: int) -> None:
        self._count += messages
        if self._rate_max:
            time.sleep(max(0.0, self._begun_s + self._count / self._rate_max - time.monotonic()))


@dataclass(frozen=True)
class Reading:
    """Letters of one queue, as tasks get them. It travels to the executors."""

    brokers: tuple[str, ...]
    queue: str

    def letters(self, batch: pa.RecordBatch) -> Iterator[Found]:
        """The letters of this queue among some records: several may share one topic for them."""
        columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "key", "value")]
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        headers = batch.column("headers").to_pylist()
        gone = self._gone(columns[1], columns[2])
        for topic, partition, offset, key, value, time_us, told in zip(*columns, times, headers, strict=True):
            pairs = [(each["key"], each["value"]) for each in told or ()]
            letter = letter_of(topic, partition, offset, time_us // 1000, key, value, pairs)
            if letter.queue in ("", self.queue):
                yield Found(letter, pairs, offset in gone[partition])

    def _gone(self, partitions: list[int], offsets: list[int]) -> dict[int, set[int]]:
        spans: dict[int, tuple[int, int]] = {}
        for partition, offset in zip(partitions, offsets, strict=True):
            low, high = spans.get(partition, (offset, offset))
            spans[partition] = (min(low, offset), max(high, offset))
        cluster = gateway(self.brokers)
        return {
            partition: cluster.run(away(cluster.cluster, self.queue, partition, *span))
            for partition, span in spans.items()
        }


@dataclass(frozen=True)
class Repairing:
    """Letters in, messages and accounts out."""

    reading: Reading
    rules: Rules
    repair: Repair
    accounts: str
    rate_max: int = 0

    def judge(self) -> Judge:
        return Judge(self.rules, self.repair, _Targets(self.reading.brokers))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judge, pace = self.judge(), Pace(self.rate_max)
        for batch in batches:
            rows: list[Out] = []
            for letter, pairs, gone in self.reading.letters(batch):
                judged = judge.judge(letter, pairs, gone=gone)
                pace.wait(judged.out is not None)
                rows += self._rows(letter, judged)
            yield written(rows)

    def _rows(self, letter: Letter, judged: Judged) -> Iterator[Out]:
        account = account_of(self.rules.queue, letter, judged, time.time_ns() // 1_000_000)
        yield account_message(self.accounts, account)
        if judged.out is not None:
            yield judged.out


@dataclass(frozen=True)
class Telling:
    """Letters in, a row about each out; with a repair function, what it would make of them."""

    reading: Reading
    now_ms: int
    error_header: str
    repairing: Repairing | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judge = None if self.repairing is None else self.repairing.judge()
        for batch in batches:
            rows = []
            for letter, pairs, gone in self.reading.letters(batch):
                judged = None if judge is None else judge.judge(letter, pairs, gone=gone)
                if judged is not None:
                    rows.append(self._row(letter, judged.outcome, judged.why))
                elif not gone:
                    rows.append(self._row(letter, DEAD, ""))
            yield pa.RecordBatch.from_pylist(rows, schema=TOLD)

    def _row(self, letter: Letter, outcome: str, why: str) -> dict[str, Any]:
        error = letter.headers.get(self.error_header) or b""
        return {
            "outcome": str(outcome),
            "reason": alike(letter.reason),
            "error": alike(str(error, "utf-8", "replace")),
            "topic": letter.origin_topic,
            "age": age(self.now_ms - letter.died_ms),
            "why": alike(why),
            "died_ms": letter.died_ms,
            "place": f"{letter.partition}/{letter.offset}",
        }


@dataclass
class _Targets:
    """What topics take, asked once for each."""

    brokers: tuple[str, ...]
    known: dict[str, Target | None] = field(default_factory=dict)

    def __call__(self, topic: str) -> Target | None:
        if topic not in self.known:
            cluster = gateway(self.brokers)
            self.known[topic] = cluster.run(target_of(cluster.cluster, topic))
        return self.known[topic]


def written(rows: list[Out]) -> pa.RecordBatch:
    """Messages as the columns that are written."""
    headers = [[{"key": name, "value": value} for name, value in row.headers] for row in rows]
    columns = [
        [row.topic for row in rows],
        [row.partition for row in rows],
        [row.key for row in rows],
        [row.value for row in rows],
        headers,
    ]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, WRITTEN, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN)


def alike(text: str) -> str:
    """Without numbers and ids, which differ from letter to letter where the trouble is the same."""
    return VARYING.sub("#", text)[:TEXT_MAX]


def age(span_ms: int) -> str:
    return next((name for limit, name in AGES if span_ms < limit), ">= 7d")
