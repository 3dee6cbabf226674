"""Archive, replay and audit with a real Spark and a real broker: they prove each other."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipelines.connector.topics import Topic

from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.pipelines.jobs import archive, replay
from runnel.pipelines.jobs.audit import job as audit
from runnel.pipelines.jobs.audit.judge import Kind, Reason
from runnel.pipelines.jobs.audit.offsets import Run
from runnel.pipelines.lake.files import DataFile
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import read_lake
from runnel.pipelines.lake.table import BatchKey, arrow_schema, commit, named, opened
from runnel.pipelines.lake.upkeep import compact
from runnel.testing.process import BrokerProcess

PATIENCE_S = 250


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gateway]:
    yield gateway((broker.kafka,))
    close_all()


class Lake:
    """One lake of a test, its job and its audit."""

    def __init__(self, spark: SparkSession, brokers: str, folder: Path) -> None:
        self.spark, self.brokers, self.folder = spark, brokers, folder
        self.path = str(folder / "a lake")
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

    topic.trim(30)
    compact(lake.place)
    kept = read_lake(lake.spark, lake.path, where=f"topic = '{topic.name}' and partition = 0 and offset < 30")
    assert sorted(row["offset"] for row in kept.collect()) == list(range(30))
    earlier = read_lake(lake.spark, lake.path, version=1)
    assert earlier.count() < kept.count() + 20, "the lake as it was after its first batch"
    assert lake.audit(alone=True).verdict != audit.BROKEN


def test_neither_a_forgotten_commit_nor_a_lost_checkpoint_doubles_anything(lake: Lake, gate: Gateway) -> None:
    topic = Topic(gate, "lake-forgotten", partitions=2)
    topic.send({0: 20})
    lake.archive(topic.name)
    last = max((lake.checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    topic.send({0: 5})
    lake.archive(topic.name)
    assert lake.files() == named(opened(lake.place)), "files of the repeated batch are gone"
    shutil.rmtree(lake.checkpoint)
    topic.send({0: 5, 1: 5})
    lake.archive(topic.name)
    report = lake.audit()
    assert (report.verdict, found(report)) == (audit.CLEAN, {})
    assert sum(each.right for each in report.accounts) == 35


def test_damage_is_found_where_it_is(lake: Lake, gate: Gateway) -> None:
    """A file that is gone, a file that the log names twice, a row that was changed."""
    topic = Topic(gate, "lake-damaged")
    topic.send(40)
    lake.archive(topic.name, rows_per_trigger=10)  # four batches, four files
    _, second, third, fourth = sorted(
        pa.table(opened(lake.place).get_add_actions(flatten=True)).to_pylist(), key=lambda file: file["min.offset"]
    )
    double(lake.place, second)
    changed = pq.ParquetFile(Path(lake.path, third["path"])).read()
    values = pa.array([b"other" if n == 4 else v for n, v in enumerate(changed["value"].to_pylist())], pa.binary())
    damaged = changed.set_column(changed.schema.get_field_index("value"), "value", values)
    pq.write_table(damaged, Path(lake.path, third["path"]))
    Path(lake.path, fourth["path"]).unlink()
    report = lake.audit()
    assert report.verdict == audit.BROKEN
    assert found(report) == {
        (topic.name, 0): {Kind.LOST: [Run(30, 39)], Kind.DOUBLED: [Run(10, 19)], Kind.CHANGED: [Run(24, 24)]}
    }
    assert [(file.name, file.first, file.last) for file in report.files] == [(fourth["path"], 30, 39)]
    alone = lake.audit(alone=True)
    assert alone.verdict == audit.BROKEN
    assert found(alone) == {(topic.name, 0): {Kind.LOST: [Run(30, 39)], Kind.DOUBLED: [Run(10, 19)]}}
    told = json.dumps(report.as_json())
    assert json.loads(told)["verdict"] == "broken"


def double(place: Place, file: dict[str, Any]) -> None:
    """Name a copy of a file in the log, as a writer without transactions might have done."""
    copy = file["path"].replace(".parquet", "-again.parquet")
    shutil.copy(Path(place.path, file["path"]), Path(place.path, copy))
    stats = json.dumps({"numRecords": file["num_records"]})
    again = DataFile(copy, file["partition.topic"], str(file["partition.date"]), file["size_bytes"], 1, stats, 1)
    table = opened(place)
    assert commit(place, BatchKey("somebody", 0), arrow_schema(table), [again])


def test_json_becomes_columns_and_what_is_none_is_kept_apart(lake: Lake, gate: Gateway) -> None:
    topic = Topic(gate, "lake-json")
    good, odd = b'{"car": "a", "speed": 12.5, "at": {"x": 1}}', b'{"car": "b", "speed": "fast"}'
    topic.transact([good, b"no json", odd, b"[1]"], commit=True)
    lake.archive(topic.name, schema="car string, speed double, at struct<x: int>", prefix="v_")
    rows = read_lake(lake.spark, lake.path).orderBy("offset").collect()
    assert [(row["v_car"], row["v_speed"], row["_error"] is not None) for row in rows] == [
        ("a", 12.5, False), (None, None, True), (None, None, True), (None, None, True)
    ]  # fmt: skip
    assert rows[0]["v_at"]["x"] == 1
    assert [bytes(row["value"]) for row in rows] == [good, b"no json", odd, b"[1]"]
    assert len(lake.files()) == 2, "bad rows are in a file of their own"
    fine = read_lake(lake.spark, lake.path, where="_error IS NULL")
    assert fine.count() == 1
    assert len(fine.inputFiles()) == 1, "and who wants the others never opens it"
    assert lake.audit().verdict == audit.CLEAN


def test_archive_replay_and_audit_prove_each_other(lake: Lake, gate: Gateway, broker: BrokerProcess) -> None:
    """What is archived, replayed into a topic of another shape and archived again is the same set of messages."""
    origin = Topic(gate, "lake-origin", partitions=3)
    origin.send({0: 300, 1: 200, 2: 100})
    again = Topic(gate, "lake-again", partitions=2)
    lake.archive(origin.name, rows_per_trigger=300)
    compact(lake.place)  # which puts later rows before earlier ones
    conf = replay.ReplayConf(
        lake.path, again.name, brokers=broker.kafka, batch_rows=150, state=str(lake.folder / "replay")
    )
    looked = replay.run(lake.spark, dataclasses.replace(conf, dry_run=True))
    assert [(each.partition, each.rows, each.first, each.last) for each in looked.slices] == [
        (0, 300, 0, 299), (1, 200, 0, 199), (2, 100, 0, 99)
    ]  # fmt: skip
    done = replay.run(lake.spark, conf)
    assert (done.rows, done.by) == (600, "key")
    assert done.batches >= 4
    for sides in ({"lake": lake.path}, {"topics": (origin.name,)}):
        report = audit.run(lake.spark, audit.AuditConf(broker.kafka, replayed=again.name, **sides))
        assert (report.verdict, found(report)) == (audit.CLEAN, {})
        assert sum(each.right for each in report.accounts) == 600
    (lake.folder / "replay" / "done").write_text("1")  # as if it had been stopped there
    replay.run(lake.spark, conf)
    report = audit.run(lake.spark, audit.AuditConf(broker.kafka, topics=(origin.name,), replayed=again.name))
    assert report.verdict == audit.CLEAN, "batches that were published are not published again"


def test_a_replay_in_the_wrong_order_is_found(lake: Lake, gate: Gateway, broker: BrokerProcess) -> None:
    origin = Topic(gate, "lake-ordered")
    origin.send(20)
    wrong = Topic(gate, "lake-disordered")
    lake.archive(origin.name)
    backwards = read_lake(lake.spark, lake.path).orderBy("offset", ascending=False).coalesce(1)
    messages = replay.messages_by(replay.ReplayConf(lake.path, wrong.name), "key", {wrong.name: 1})(backwards)
    messages.write.format("runnel").option("runnel.brokers", broker.kafka).mode("append").save()
    report = lake.audit(replayed=wrong.name)
    assert found(report) == {(origin.name, 0): {Kind.DISORDER: [Run(0, 18)]}}


def test_a_driver_that_is_killed_between_files_and_commit_loses_and_doubles_nothing(
    lake: Lake, gate: Gateway, broker: BrokerProcess
) -> None:
    topic = Topic(gate, "lake-killed", partitions=2)
    topic.send({0: 20, 1: 20})
    folder = lake.folder / "spark"
    folder.mkdir()
    script = Path(__file__).with_name("held_archive.py")
    command = [sys.executable, str(script), broker.kafka, topic.name, lake.path, str(lake.checkpoint), str(folder)]
    root = str(Path(__file__).parents[3])
    driver = subprocess.Popen(command, start_new_session=True, cwd=root, env=os.environ | {"PYTHONPATH": root})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not lake.files():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    left = lake.files()
    assert left
    assert not lake.place.exists(), "nothing was committed"
    lake.archive(topic.name)
    assert lake.audit().verdict == audit.CLEAN
    assert lake.files() == named(opened(lake.place))
    assert not lake.files() & left
