r"""`runnel pipeline deadletters`: what a queue gave up, grouped by reason, repaired, and sent back.

    queue --gives up--> QUEUE.dead --this job--> repair(letter) --> origin topic and partition
                                                                \-> QUEUE.parked   (too many rounds, or Park)
                                                                \-> QUEUE.repairs  (an account of each letter)

Rule 1: what a batch of letters becomes, the repaired, the parked and the accounts of all, is published in one
        transaction, once, whoever dies meanwhile.
Rule 2: a letter that lies elsewhere is marked as such before the next batch, and before anything else after a crash; no
        marked letter is repaired. So a job may be begun again from the first letter, with a better repair function:
        only what is still dead is looked at.
Rule 3: a report and a dry run read, and change nothing.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from runnel.client.admin import NewTopic
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import Gateway, gateway
from runnel.pipelines.errors import BadOption
from runnel.pipelines.jobs.deadletters.cluster import Marker, dead_topic, make_topics, settled
from runnel.pipelines.jobs.deadletters.function import repair_function
from runnel.pipelines.jobs.deadletters.repair import Rules
from runnel.pipelines.jobs.deadletters.tasks import TOLD_DDL, WRITTEN_DDL, Reading, Repairing, Telling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "deadletters"
ROUNDS_MAX: Final = 3
GROUPS_MAX: Final = 1_000  # rows of a report
BATCH_MAX: Final = 5_000  # letters: what becomes of them is one transaction, which must not take longer than it may
PACED_S: Final = 5  # a batch of a job with a pace holds what this many seconds allow
QUEUE_CHARS_MAX: Final = 120  # in the name of a sink, which has room for 200
ERROR_HEADER: Final = "error"


@dataclass(frozen=True, slots=True)
class DeadLettersConf:
    """What is done with the dead letters of a queue."""

    stream: StreamConf
    queue: str
    repair: str = ""  # module:function, or file.py:function; nothing: there is only a report
    rounds_max: int = ROUNDS_MAX  # repairs of one message, after which it is parked
    parking: str | None = None  # the topic; None: QUEUE.parked; "": what would be parked is left
    accounts: str | None = None  # the topic; None: QUEUE.repairs
    rate_max: int = 0  # messages a second; 0: no bound
    batch_max: int = BATCH_MAX  # letters that are repaired together
    error_header: str = ERROR_HEADER  # where the user's consumers tell of errors, for the report

    def __post_init__(self) -> None:
        if self.rounds_max < 1:
            raise BadOption("rounds", self.rounds_max, "a message is repaired once at least")
        if self.batch_max < 1:
            raise BadOption("batch", self.batch_max, "a batch has one letter at least")
        if self.rate_max < 0:
            raise BadOption("rate", self.rate_max, "use messages a second, or 0 for no bound")
        if self.accounts == "":
            raise BadOption("accounts", "", "accounts are how a letter is known to be repaired: name a topic")

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.stream.brokers.split(",") if part.strip())

    @property
    def accounts_topic(self) -> str:
        return self.accounts or f"{self.queue}.repairs"

    @property
    def rules(self) -> Rules:
        parking = f"{self.queue}.parked" if self.parking is None else self.parking
        return Rules(self.queue, self.rounds_max, parking)

    @property
    def sink_prefix(self) -> str:
        """How the names of sinks begin that send this queue's letters back: one for each checkpoint."""
        return f"{NAME}-{self.queue[:QUEUE_CHARS_MAX]}-"

    def check(self) -> None:
        """Raise what is wrong, before Spark is started."""
        if self.repair:
            repair_function(self.repair)
        cluster = gateway(self.brokers)
        cluster.run(dead_topic(cluster.cluster, self.queue))

    def repairing(self) -> Repairing:
        reading = Reading(self.brokers, self.queue)
        return Repairing(reading, self.rules, repair_function(self.repair), self.accounts_topic, self.rate_max)


# --- repairing
def run(spark: "SparkSession", conf: DeadLettersConf, told: Counter[str] | None = None) -> "StreamingQuery":
    """Repair the letters that are there, and with `once` no others. Outcomes are counted in `told` as they come."""
    repairing, cluster = conf.repairing(), gateway(conf.brokers)
    letters = cluster.run(dead_topic(cluster.cluster, conf.queue))
    cluster.run(make_topics(cluster.cluster, _topics(conf, letters)))
    cluster.run(settled(cluster.cluster, conf.sink_prefix))
    marker = Marker(cluster.cluster, conf.queue, letters, conf.accounts_topic)
    cluster.run(marker.catch_up())
    job = _Job(conf, repairing, cluster, marker, Counter() if told is None else told)
    return (
        _letters(spark, conf, letters)
        .writeStream.queryName(NAME)
        .option("checkpointLocation", conf.stream.checkpoint)
        .trigger(**conf.stream.trigger)
        .foreachBatch(job.step)
        .start()
    )


def _topics(conf: DeadLettersConf, letters: str) -> list[NewTopic]:
    """What the job needs; the topic of letters as the queue would make it, so that a stream can wait for the first."""
    parking = [NewTopic(conf.rules.parking)] if conf.rules.parking else []
    return [NewTopic(letters, 1), NewTopic(conf.accounts_topic), *parking]


def _letters(spark: "SparkSession", conf: DeadLettersConf, topic: str) -> "DataFrame":
    letters_max = min(conf.batch_max, PACED_S * conf.rate_max or conf.batch_max)
    return (
        spark.readStream.format("runnel")
        .option("runnel.brokers", conf.stream.brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")  # what retention took is beyond repair, and no reason to stop
        .option("group.id", f"{NAME}-{conf.queue}")
        .option("maxOffsetsPerTrigger", str(letters_max))
        .load()
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """A query's steps, in the driver."""

    conf: DeadLettersConf
    repairing: Repairing
    cluster: Gateway
    marker: Marker
    told: Counter[str]

    def step(self, letters: "DataFrame", batch: int) -> None:
        """Publish what a batch of letters becomes, and mark those that lie elsewhere then."""
        tasks = letters.coalesce(1) if self.conf.rate_max else letters  # one task keeps the pace
        query = letters.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        (
            tasks.mapInArrow(self.repairing, WRITTEN_DDL)
            .write.format("runnel")
            .mode("append")
            .option("runnel.brokers", self.conf.stream.brokers)
            .option("sinkId", f"{self.conf.sink_prefix}{query}")
            .option("batchId", str(batch))
            .save()
        )
        self.told.update(self.cluster.run(self.marker.catch_up()))


# --- looking
class Group(NamedTuple):
    """Dead letters that have the same trouble."""

    outcome: str  # dead; in a dry run, what the repair function would make of them
    reason: str
    error: str
    topic: str  # where they came from
    age: str
    why: str
    letters: int
    oldest_ms: int
    newest_ms: int
    example: str  # PARTITION/OFFSET of one of them, for `runnel dlq show`


def report(spark: "SparkSession", conf: DeadLettersConf) -> list[Group]:
    """What is dead, the largest group first; with a repair function, what it would make of them."""
    from pyspark.sql import functions as f

    cluster = gateway(conf.brokers)
    topic = cluster.run(dead_topic(cluster.cluster, conf.queue))
    if topic not in cluster.run(cluster.cluster.view([topic])).topics:
        return []  # nothing ever died
    source = spark.read.format("runnel").option("runnel.brokers", conf.stream.brokers).option("subscribe", topic)
    repairing = conf.repairing() if conf.repair else None
    telling = Telling(Reading(conf.brokers, conf.queue), time.time_ns() // 1_000_000, conf.error_header, repairing)
    told = source.load().mapInArrow(telling, TOLD_DDL)
    groups = (
        told.groupBy("outcome", "reason", "error", "topic", "age", "why")
        .agg(
            f.count("*").alias("letters"),
            f.min("died_ms").alias("oldest_ms"),
            f.max("died_ms").alias("newest_ms"),
            f.min_by("place", "died_ms").alias("example"),
        )
        .orderBy(f.desc("letters"), "outcome", "reason", "topic", "oldest_ms")
        .limit(GROUPS_MAX)
    )
    return [Group(**row.asDict()) for row in groups.collect()]
