"""`runnel pipeline replay`: a slice of the lake, back into topics.

Rule 1: messages of one partition come in its order, whichever partition of the target they go to: one task writes all
        of them, and no batch begins before the one before it is published.
Rule 2: each is written once, however often the replay is stopped and started again: batches have the numbers of a plan
        that is kept, and the sink publishes a number once.
Rule 3: a message keeps its key, value, headers and time, and says in headers where it was (`origin`).
Rule 4: a message goes to the partition it was in, if the target has as many; else to that of its key. Without a key it
        goes where its partition's number leads: never in turn, which would lose its order.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runnel.pipelines.conf import DEFAULT_BROKERS, home_of
from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.connector.reading.options import Topics
from runnel.pipelines.errors import BadOption, DataLoss, NothingThere
from runnel.pipelines.jobs.audit.judge import Scope
from runnel.pipelines.jobs.audit.sides import within
from runnel.pipelines.jobs.origin import with_origin
from runnel.pipelines.jobs.replay_plan import Batch, Granule, Plan, PlanFile, cut, granule_bits, id_of
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import read_lake
from runnel.pipelines.lake.table import TOPIC, named, opened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_ROWS = 500_000
PACE_S = 5  # with a rate, a batch is what it allows in that time
BY = ("auto", "partition", "key")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReplayConf:
    """Which slice goes where, and how fast."""

    lake: str
    target: str | None = None  # for all topics that `targets` does not name
    targets: Mapping[str, str] = field(default_factory=dict)  # topic -> topic
    brokers: str = DEFAULT_BROKERS
    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None  # without it
    key: str | None = None
    where: str | None = None
    version: int | None = None  # of the lake; None: the newest when the replay is first begun
    by: str = "auto"
    rate: int | None = None  # messages a second
    batch_rows: int = BATCH_ROWS
    id: str = ""  # of the replay; empty: by what is asked for
    state: str = ""  # folder of its plan; empty: the job's home
    dry_run: bool = False

    def asked(self) -> dict[str, Any]:
        """What makes it this replay and no other."""
        told = asdict(self)
        return {name: told[name] for name in told if name not in ("brokers", "rate", "id", "state", "dry_run")}


@dataclass(frozen=True, slots=True)
class Slice:
    """What is replayed of one partition."""

    topic: str
    partition: int
    target: str
    rows: int
    first: int
    last: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did, or would do."""

    id: str
    version: int
    by: str
    rows: int
    batches: int
    batches_before: int  # that earlier runs wrote
    slices: tuple[Slice, ...]  # of a dry run
    dry_run: bool


def run(spark: "SparkSession", conf: ReplayConf, tell: Tell = lambda _: None) -> Replayed:
    """Replay, or say what would be."""
    check(conf)
    counts = target_counts(conf)
    by = chosen_by(conf, counts)
    if conf.dry_run:
        return _looked_at(spark, conf, by)
    id_ = conf.id or id_of(conf.asked())
    kept = PlanFile(conf.state or home_of("replay", id_))
    plan = kept.load(conf.asked(), id_)
    if plan is None:
        plan = planned(spark, conf, id_)
        kept.save(plan)
    check_files(conf, plan)
    before = kept.done
    pace = Pace(conf.rate)
    for number in range(before, len(plan.batches)):
        batch = plan.batches[number]
        pace.wait()
        write(spark, conf, plan, number, messages_by(conf, by, counts))
        kept.note(number + 1)
        pace.passed(batch.rows)
        tell(f"batch {number + 1} of {len(plan.batches)}: {batch.rows:,} messages")
    rows = sum(batch.rows for batch in plan.batches[before:])
    return Replayed(id_, plan.version, by, rows, len(plan.batches) - before, before, (), False)


def check(conf: ReplayConf) -> None:
    """Refuse what can't be meant."""
    if conf.by not in BY:
        raise BadOption("by", conf.by, f"use one of {', '.join(BY)}")
    if not conf.target and not conf.targets:
        raise BadOption("to", "", "name the topic that messages go to")
    for name in (*conf.topics, *conf.targets, *conf.targets.values(), *((conf.target,) if conf.target else ())):
        if not TOPIC.fullmatch(name):
            raise BadOption("topic", name, "topics have letters, digits, dots, underscores and hyphens")
    for option, number in (("rate", conf.rate), ("batch", conf.batch_rows)):
        if number is not None and number < 1:
            raise BadOption(option, number, "use a whole number from 1 on")


class Pace:
    """When the next batch may begin: so that no more messages are written than the rate allows."""

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic, sleep: Any = time.sleep) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._due: float | None = None

    def wait(self) -> None:
        if self._rate is None:
            return
        now = self._clock()
        self._due = now if self._due is None else max(now, self._due)
        if self._due > now:
            self._sleep(self._due - now)
        self._due = max(self._due, self._clock())

    def passed(self, rows: int) -> None:
        if self._rate is not None and self._due is not None:
            self._due += rows / self._rate


# --- what
def condition(conf: ReplayConf) -> str | None:
    """The slice, as SQL."""
    parts = []
    if conf.topics:
        parts.append(f"topic IN ({_quoted(conf.topics)})")
    if conf.partitions:
        parts.append(f"partition IN ({', '.join(map(str, conf.partitions))})")
    if conf.since_ms is not None:
        parts.append(f"timestamp >= '{_iso(conf.since_ms)}'")
    if conf.until_ms is not None:
        parts.append(f"timestamp < '{_iso(conf.until_ms)}'")
    if conf.key is not None:
        parts.append(f"key = X'{conf.key.encode().hex()}'")
    if conf.where is not None:
        parts.append(f"({conf.where})")
    return " AND ".join(parts) or None


def _quoted(topics: Iterable[str]) -> str:
    return ", ".join(f"'{topic}'" for topic in sorted(topics))


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def planned(spark: "SparkSession", conf: ReplayConf, id_: str) -> Plan:
    """Cut the slice into batches, of the lake as it is now."""
    from pyspark.sql import functions as F

    table = opened(Place.of(conf.lake), conf.version)
    version = table.version()
    batch_rows = conf.batch_rows if conf.rate is None else min(conf.batch_rows, max(1, conf.rate * PACE_S))
    bits = granule_bits(table.count(), batch_rows)
    rows = read_lake(spark, conf.lake, version, condition(conf))
    sums = rows.groupBy("topic", "partition", F.shiftright("offset", bits)).agg(
        F.count("*"), F.min(F.unix_millis("timestamp"))
    )
    granules = [Granule(*row) for row in sums.collect()]
    for topic in {granule.topic for granule in granules}:
        target_of(conf, topic)
    batches = cut(granules, bits, batch_rows)
    return Plan(id_, conf.asked(), version, tuple(batches))


def _looked_at(spark: "SparkSession", conf: ReplayConf, by: str) -> Replayed:
    from pyspark.sql import functions as F

    version = opened(Place.of(conf.lake), conf.version).version()
    rows = read_lake(spark, conf.lake, version, condition(conf))
    at = F.unix_millis("timestamp")
    sums = rows.groupBy("topic", "partition").agg(
        F.count("*"), F.min("offset"), F.max("offset"), F.min(at), F.max(at)
    )  # fmt: skip
    found = [(t, p, target_of(conf, t), *rest) for t, p, *rest in sums.orderBy("topic", "partition").collect()]
    slices = tuple(Slice(*each) for each in found)
    total = sum(each.rows for each in slices)
    return Replayed(conf.id or id_of(conf.asked()), version, by, total, 0, 0, slices, True)


def check_files(conf: ReplayConf, plan: Plan) -> None:
    """Refuse to go on with a version whose files were removed."""
    place = Place.of(conf.lake)
    gone = place.lacking(named(opened(place, plan.version)))
    if gone:
        raise DataLoss(
            f"version {plan.version} of {conf.lake} lacks {len(gone)} files ({gone[0]}): if a vacuum removed them, "
            "begin anew with another id; else audit the lake"
        )


# --- where to
def target_of(conf: ReplayConf, topic: str) -> str:
    target = conf.targets.get(topic, conf.target)
    if target is None:
        raise BadOption("map", topic, "nothing says where messages of this topic go: add TOPIC=TOPIC, or a default")
    return target


def target_counts(conf: ReplayConf) -> dict[str, int]:
    """How many partitions each target has; all must exist."""
    targets = tuple(sorted({*conf.targets.values(), *((conf.target,) if conf.target else ())}))
    counts = dict.fromkeys(targets, 0)
    for where in gateway(tuple(conf.brokers.split(","))).partitions(Topics(names=targets)):
        counts[where.topic] += 1
    for target, count in counts.items():
        if not count:
            raise NothingThere(f"the topic {target!r} does not exist: create it with as many partitions as you want")
    return counts


def chosen_by(conf: ReplayConf, counts: Mapping[str, int]) -> str:
    """How partitions are chosen."""
    highest = _highest_partition(conf)
    fits = min(counts.values()) > highest
    if conf.by == "partition" and not fits:
        raise BadOption("by", "partition", f"the slice may have partition {highest}, and a target has fewer: use key")
    return conf.by if conf.by != "auto" else ("partition" if fits else "key")


def _highest_partition(conf: ReplayConf) -> int:
    """The highest partition that the lake's log tells of."""
    import pyarrow as pa

    if conf.partitions:
        return max(conf.partitions)
    told = pa.table(opened(Place.of(conf.lake), conf.version).get_add_actions(flatten=True))
    chosen = [
        high
        for topic, high in zip(told["partition.topic"].to_pylist(), told["max.partition"].to_pylist(), strict=True)
        if not conf.topics or topic in conf.topics
    ]
    return max(chosen, default=-1)


# --- writing
Messages = Callable[["DataFrame"], "DataFrame"]


def write(spark: "SparkSession", conf: ReplayConf, plan: Plan, number: int, as_messages: Messages) -> None:
    """Publish one batch of a plan."""
    batch = plan.batches[number]
    rows = slice_of(spark, conf, plan, batch)
    tasks = min(len(batch.pieces), spark.sparkContext.defaultParallelism)
    ordered = rows.repartition(tasks, "topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    out = as_messages(ordered).write.format("runnel").mode("append")
    out.options(**{"runnel.brokers": conf.brokers, "sinkId": plan.sink, "batchId": str(number)}).save()


def slice_of(spark: "SparkSession", conf: ReplayConf, plan: Plan, batch: Batch) -> "DataFrame":
    """The rows of one batch."""
    low, high = min(piece.first for piece in batch.pieces), max(piece.end for piece in batch.pieces)
    topics = _quoted({piece.topic for piece in batch.pieces})
    here = f"topic IN ({topics}) AND offset >= {low} AND offset < {high}"
    slice_ = condition(conf)
    rows = read_lake(spark, conf.lake, plan.version, here if slice_ is None else f"{here} AND {slice_}")
    return within(rows, [Scope(*piece) for piece in batch.pieces])


def messages_by(conf: ReplayConf, by: str, counts: Mapping[str, int]) -> Messages:
    """How rows of the lake become messages of their targets."""

    def messages(rows: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as F

        target = _case(rows["topic"], conf.targets, F.lit(conf.target))
        keyless = F.when(rows["key"].isNull(), F.pmod(rows["partition"], _case(target, counts, F.lit(None))))
        place = rows["partition"] if by == "partition" else keyless
        return rows.select(
            target.alias("topic"), place.cast("int").alias("partition"), "key", "value", "timestamp",
            with_origin(rows).alias("headers"),
        )  # fmt: skip

    return messages


def _case(value: "Column", table: Mapping[str, Any], otherwise: "Column") -> "Column":
    from pyspark.sql import functions as F

    for given, meant in table.items():
        otherwise = F.when(value == given, F.lit(meant)).otherwise(otherwise)
    return otherwise
