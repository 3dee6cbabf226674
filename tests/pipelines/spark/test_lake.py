"""Archive, replay and audit with a real Spark and a real broker: they prove each other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipelines.connector.topics import Topic

from runnel.client.admin import Admin
from runnel.client.metadata import TopicPartition
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.pipelines.jobs import archive, audit
from runnel.pipelines.jobs.audit_judge import Kind, Reason
from runnel.pipelines.jobs.audit_offsets import Run
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import read_lake
from runnel.pipelines.lake.upkeep import compact
from runnel.testing.process import BrokerProcess

PATIENCE_S = 120


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gateway]:
    yield gateway((broker.kafka,))
    close_all()


class Lake:
    """One lake of a test, its job and its audit."""

    def __init__(self, spark: SparkSession, brokers: str, folder: Path) -> None:
        self.spark, self.brokers, self.folder = spark, brokers, folder
        self.path = str(folder / "lake")
        self.checkpoint = folder / "checkpoint"
        self.place = Place.of(self.path)

    def archive(self, *topics: str, **conf: object) -> None:
        stream = StreamConf(str(self.checkpoint), self.brokers, once=True)
        query = archive.run(self.spark, archive.ArchiveConf(stream, self.path, topics, **conf))  # type: ignore[arg-type]
        assert query.awaitTermination(PATIENCE_S)

    def audit(self, **conf: object) -> audit.Report:
        return audit.run(self.spark, audit.AuditConf(self.brokers, lake=self.path, **conf))  # type: ignore[arg-type]

    def files(self) -> set[str]:
        return {str(file.relative_to(self.path)) for file in Path(self.path).glob("topic=*/**/*.parquet")}


@pytest.fixture
def lake(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Lake:
    return Lake(spark, broker.kafka, tmp_path)


def found(report: audit.Report) -> dict[tuple[str, int], dict[Kind, list[Run]]]:
    return {(each.scope.topic, each.scope.partition): each.found for each in report.accounts if each.found}


def test_history_is_complete_and_stays_when_the_broker_has_removed_it(lake: Lake, gate: Gateway) -> None:
    topic = Topic(gate, "lake-history", partitions=2)
    topic.send({0: 30, 1: 20})
    topic.transact([b"x", b"y"], commit=False)
    topic.transact([b"z"], commit=True)
    lake.archive(topic.name, rows_per_trigger=20)  # several batches
    report = lake.audit()
    assert (report.verdict, found(report)) == (audit.CLEAN, {})
    gaps = sum(n for each in report.accounts for n in each.gaps.values())
    assert gaps >= 4, "two aborted records and two markers were told apart"
    assert any(Reason.ABORTED in each.gaps for each in report.accounts)

    gate.run(Admin(gate.cluster).delete_records({TopicPartition(topic.name, 0): 30}))
    topic.send({0: 5})
    lake.archive(topic.name)
    compact(lake.place)
    kept = read_lake(lake.spark, lake.path, where=f"topic = '{topic.name}' and partition = 0 and offset < 30")
    assert sorted(row["offset"] for row in kept.collect()) == list(range(30))
    assert lake.audit().verdict == audit.CLEAN
    assert lake.audit(alone=True).verdict in (audit.CLEAN, audit.UNPROVEN)
