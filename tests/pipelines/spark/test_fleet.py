"""The fleet's job on Spark: from a topic to topics, exactly once, through a restart and a crash after publishing."""

import asyncio
import json
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.pipelines.reading import values

from runnel.client.connecting import connect
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.jobs.fleet.cars import FleetPlan, Report, reports
from runnel.pipelines.jobs.fleet.job import FleetConf, run
from runnel.pipelines.jobs.fleet.topics import Topics, make_all
from runnel.testing.process import BrokerProcess

MINUTE = 60_000
BEGIN_MS = 1_700_000_040_000  # the begin of a minute
PLAN = FleetPlan(24, seed=11, late=0.05, silent=0.1)
WAIT_S = 200


def reported(begin: int, end: int) -> list[Report]:
    """What is sent between two minutes."""
    sent = takewhile(lambda each: each.send_ms < BEGIN_MS + end * MINUTE, reports(PLAN, BEGIN_MS))
    return [each.report for each in sent if each.send_ms >= BEGIN_MS + begin * MINUTE]


async def send(broker: str, topic: str, some: list[Report]) -> None:
    async with connect(broker, linger=0.02) as runnel:
        await runnel.send(topic, "no report at all")
        await asyncio.gather(*(runnel.send(topic, each.value(), key=each.car) for each in some))


def ran(spark: SparkSession, conf: FleetConf) -> None:
    for query in run(spark, conf):
        assert query.awaitTermination(WAIT_S)


def forget_last_commit(checkpoint: str) -> None:
    """As if the driver had died between publishing its last batch and writing that down."""
    commits = Path(checkpoint, "commits")
    max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name)).unlink()


def found(broker: BrokerProcess, topic: str) -> list[Any]:
    return [json.loads(value) for value in values(broker.kafka, topic) if value]


def test_every_report_counts_once(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    topics = Topics("fleet-in", "fleet-out")
    conf = FleetConf(StreamConf(str(tmp_path), broker.kafka, once=True), topics, late_ms=2 * MINUTE, buckets=4)
    make_all(broker.kafka, topics)
    asyncio.run(send(broker.kafka, topics.source, reported(0, 6)))
    ran(spark, conf)
    for name in ("track", "heat"):
        forget_last_commit(conf.stream.checkpoint_of(name))
    asyncio.run(send(broker.kafka, topics.source, reported(6, 10)))
    ran(spark, conf)

    sent = reported(0, 10)
    newest = {each["car"]: each for each in sorted(found(broker, topics.cars), key=lambda each: int(each["reports"]))}
    assert {car: each["reports"] for car, each in newest.items()} == Counter(each.car for each in sent)
    assert {car: each["at"] for car, each in newest.items()} == {
        car: max(each.at_ms for each in sent if each.car == car) for car in newest
    }
    heat = found(broker, topics.heat)
    assert max(Counter((each["minute"], each["cell"]) for each in heat).values()) == 1  # told once, when it is final
    whole = {each["minute"]: each["reports"] for each in heat if each["cell"] == "all"}
    assert whole == {minute: reports_in(sent, minute) for minute in whole}
    assert len(whole) >= 7
    assert sum(each["reports"] for each in heat) == 2 * sum(whole.values())
    told = Counter((each["what"], each["car"], each["at"]) for each in found(broker, topics.alerts))
    assert "silent" in {what for what, _, _ in told}
    assert max(told.values()) == 1


def reports_in(sent: list[Report], minute_ms: int) -> int:
    return sum(1 for each in sent if minute_ms <= each.at_ms < minute_ms + MINUTE)
