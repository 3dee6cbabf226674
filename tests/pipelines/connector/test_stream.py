"""Topics as streams: readers called as Spark calls them, in its order."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from tests.pipelines.connector.topics import Topic

from runnel.client.group_admin import GroupAdmin
from runnel.client.group_consumer import GroupConsumer
from runnel.client.producer import Producer, ProducerSettings
from runnel.pipelines.connector.arrow.columns import default_schema
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.connector.reading import course
from runnel.pipelines.connector.reading.course import Course
from runnel.pipelines.connector.reading.options import ReadOptions
from runnel.pipelines.connector.reading.plan import OffsetJson, from_json
from runnel.pipelines.connector.reading.stream import BEHIND, RunnelStream
from runnel.pipelines.errors import BadOption, DataLoss
from runnel.testing.process import BrokerProcess

MakeStream = Callable[..., RunnelStream]


@pytest.fixture
def stream(broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> MakeStream:
    """A stream of the test's topic from its beginning, which looks at once for new partitions and at losses."""
    monkeypatch.setattr(course, "DISCOVER_S", 0.0)
    monkeypatch.setattr(course, "REWOUND_S", 0.1)

    def make(**options: str) -> RunnelStream:
        given = {"runnel.brokers": broker.kafka, "subscribe": name, "startingOffsets": "earliest", **options}
        return RunnelStream(ReadOptions.streaming(given), default_schema())

    return make


def rows(reader: RunnelStream, start: OffsetJson, end: OffsetJson) -> list[tuple[int, int]]:
    found = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return [(row["partition"], row["offset"]) for batch in found for row in batch.to_pylist()]


def latest(reader: RunnelStream, start: OffsetJson) -> OffsetJson:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def run(reader: RunnelStream, start: OffsetJson | None = None) -> list[tuple[int, int]]:
    """All batches of Trigger.AvailableNow."""
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset() if start is None else start
    seen: list[tuple[int, int]] = []
    while (end := latest(reader, at)) != at:
        seen += rows(reader, at, end)
        at = end
    return seen


def test_all_that_was_there_at_the_beginning_in_batches_of_limited_size(
    gate: Gateway, name: str, stream: MakeStream
) -> None:
    topic = Topic(gate, name, partitions=2)
    topic.send({0: 90, 1: 10})
    reader = stream(maxOffsetsPerTrigger="40")
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    topic.send({0: 50})  # too late
    ends = []
    while (end := latest(reader, at)) != at:
        assert len(rows(reader, at, end)) <= 40
        ends.append(end)
        at = end
    assert ends[0] == {name: {"0": 36, "1": 4}}
    assert ends[-1] == {name: {"0": 90, "1": 10}}
    assert len(ends) == 3


def test_a_batch_that_is_read_again_brings_the_same(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name, partitions=2)
    topic.send({0: 25, 1: 5})
    topic.transact([b"x"], commit=False)
    first, again = stream(), stream(minPartitions="9")
    start = first.initialOffset()
    end = latest(first, start)
    topic.send({0: 5})
    assert rows(first, start, end) == rows(again, start, end)
    assert len(rows(first, start, end)) == 30


def test_latest_is_where_the_log_ends_when_the_query_begins(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name)
    topic.send(5)
    reader = stream(startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {name: {"0": 5}}
    assert latest(reader, start) == start
    topic.send(2)
    assert rows(reader, start, latest(reader, start)) == [(0, 5), (0, 6)]


def test_trigger_once_takes_all_whatever_the_limits(gate: Gateway, name: str, stream: MakeStream) -> None:
    Topic(gate, name).send(20)
    reader = stream(maxOffsetsPerTrigger="3")
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {name: {"0": 20}}


def test_the_limit_that_spark_is_told() -> None:
    def told(**options: str) -> object:
        return RunnelStream(
            ReadOptions.streaming({"subscribe": "t", **options}), default_schema()
        ).getDefaultReadLimit()

    assert told() == ReadAllAvailable()
    assert told(maxRowsPerTrigger="5", maxBytesPerTrigger="1k") == ReadMaxRows(5)
    assert told(maxBytesPerTrigger="1k") == ReadMaxBytes(1024)
    assert told(minOffsetsPerTrigger="5") == ReadMinRows(5)


def test_few_messages_wait_for_more_but_not_too_long(gate: Gateway, name: str, broker: BrokerProcess) -> None:
    topic = Topic(gate, name)
    given = {"runnel.brokers": broker.kafka, "subscribe": name, "startingOffsets": "earliest"}
    options = ReadOptions.streaming(given | {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"})
    now = [1_000.0]
    query = Course(options, now=lambda: now[0])
    where = topic.at(0)
    topic.send(9)
    assert query.latest({where: 0}, limited=True) == {where: 0}
    topic.send(1)
    assert query.latest({where: 0}, limited=True) == {where: 10}
    topic.send(1)
    assert query.latest({where: 10}, limited=True) == {where: 10}
    now[0] += 60
    assert query.latest({where: 10}, limited=True) == {where: 11}
    topic.send(1)
    query.prepare()  # Trigger.AvailableNow ends: it can't wait
    assert query.latest({where: 11}, limited=True) == {where: 12}


def test_rows_and_bytes_limit_a_batch_together(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name, partitions=2)
    topic.send({0: 300}, batch=5, size=10_000)
    topic.send({1: 300}, batch=5)
    reader = stream(maxBytesPerTrigger="600k", maxOffsetsPerTrigger="400")
    end = from_json(latest(reader, reader.initialOffset()))
    assert 30 <= end[topic.at(0)] <= 65  # bytes hold it back
    assert 1 <= end[topic.at(1)] <= 200  # its share of the rows
    assert len(run(reader)) == 600


def test_tasks_have_bounded_bytes(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name)
    topic.send(300, batch=5, size=10_000)
    reader = stream(maxBytesPerPartition="500k")
    start = reader.initialOffset()
    end = latest(reader, start)
    assert 6 <= len(reader.partitions(start, end)) <= 12
    assert rows(reader, start, end) == [(0, n) for n in range(300)]


# --- ends
def test_a_stream_ends_where_the_options_say(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name, partitions=2)
    topic.send({0: 20, 1: 20})
    seen = run(stream(endingOffsets=f'{{"{name}": {{"0": 7, "1": 9}}}}', maxOffsetsPerTrigger="5"))
    assert sorted(seen) == [(0, n) for n in range(7)] + [(1, n) for n in range(9)]
    behind = {name: {"0": 15, "1": 3}}  # a checkpoint that is further than the end
    assert sorted(run(stream(endingOffsets="-15"), behind)) == [(1, 3), (1, 4)]


def test_an_end_needs_a_trigger_that_ends(gate: Gateway, name: str, stream: MakeStream) -> None:
    Topic(gate, name).send(2)
    reader = stream(endingOffsets="latest")
    with pytest.raises(BadOption, match="AvailableNow"):
        latest(reader, reader.initialOffset())


# --- partitions come and go
def test_new_partitions_are_read_from_their_beginning(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name)
    topic.send(3)
    reader = stream(startingOffsets="latest")
    start = reader.initialOffset()
    topic.grow(2)
    topic.send({1: 4})
    named = latest(reader, start)
    assert named == {name: {"0": 3, "1": 0}}
    assert rows(reader, start, named) == []
    assert rows(reader, named, latest(reader, named)) == [(1, n) for n in range(4)]


def test_new_partitions_are_read_by_a_query_that_ends(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name)
    topic.send(3)
    checkpoint = {name: {"0": 2}}
    topic.grow(2)
    topic.send({1: 2})
    assert run(stream(maxOffsetsPerTrigger="1"), checkpoint) == [(0, 2), (1, 0), (1, 1)]


def test_a_topic_that_matches_later_is_read_from_its_beginning(
    gate: Gateway, name: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "DISCOVER_S", 0.0)
    given = {"runnel.brokers": broker.kafka, "subscribePattern": f"{name}-.*"}
    reader = RunnelStream(ReadOptions.streaming(given), default_schema())
    assert reader.initialOffset() == {}
    Topic(gate, f"{name}-1").send(2)
    named = latest(reader, {})
    assert rows(reader, named, latest(reader, named)) == [(0, 0), (0, 1)]


def test_a_topic_that_is_deleted_is_a_loss(gate: Gateway, name: str, stream: MakeStream, tmp_path: Path) -> None:
    kept, gone = Topic(gate, f"{name}-1"), Topic(gate, f"{name}-2")
    kept.send(2)
    gone.send(2)
    both = f"{kept.name},{gone.name}"
    reader = stream(subscribe=both)
    start = reader.initialOffset()
    gone.delete()
    with pytest.raises(DataLoss, match=f"{gone.name}/0 from 0 on"):
        latest(reader, start)
    careless = stream(subscribe=both, failOnDataLoss="false", lossLog=str(tmp_path))
    end = latest(careless, start)
    assert end == {kept.name: {"0": 2}}
    assert len(rows(careless, start, end)) == 2
    assert [json.loads(file.read_text())["reason"] for file in tmp_path.iterdir()] == ["gone"]


def test_a_topic_that_is_deleted_just_now_is_a_loss_too(
    gate: Gateway, name: str, stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "DISCOVER_S", 1_000.0)
    monkeypatch.setattr(course, "REWOUND_S", 10.0)
    kept, gone = Topic(gate, f"{name}-1"), Topic(gate, f"{name}-2")
    careless = stream(subscribe=f"{kept.name},{gone.name}", failOnDataLoss="false")
    start = careless.initialOffset()
    assert latest(careless, start) == start
    gone.delete()
    assert latest(careless, start) == {kept.name: {"0": 0}}


def test_a_topic_that_is_replaced_is_noticed_while_a_query_waits_for_more(
    gate: Gateway, name: str, stream: MakeStream
) -> None:
    topic = Topic(gate, name)
    topic.send(3)
    careless = stream(failOnDataLoss="false", minOffsetsPerTrigger="1000")
    start = {name: {"0": 2}}
    assert latest(careless, start) == start
    topic.delete()
    Topic(gate, name).send(5)
    assert latest(careless, start) == {name: {"0": 0}}


def test_a_batch_is_repeated_though_its_topic_is_not_subscribed_any_more(
    gate: Gateway, name: str, stream: MakeStream
) -> None:
    kept, other = Topic(gate, f"{name}-1"), Topic(gate, f"{name}-2")
    other.send(2)
    start, end = {kept.name: {"0": 0}, other.name: {"0": 0}}, {kept.name: {"0": 0}, other.name: {"0": 2}}
    assert len(rows(stream(subscribe=kept.name), start, end)) == 2


def test_a_topic_that_is_not_subscribed_any_more_is_left_behind(gate: Gateway, name: str, stream: MakeStream) -> None:
    kept, other = Topic(gate, f"{name}-1"), Topic(gate, f"{name}-2")
    kept.send(2)
    other.send(2)
    reader = stream(subscribe=kept.name)
    assert latest(reader, {kept.name: {"0": 1}, other.name: {"0": 1}}) == {kept.name: {"0": 2}}


def test_a_topic_that_was_made_anew_is_a_loss_and_then_read_as_a_new_one(
    gate: Gateway, name: str, stream: MakeStream
) -> None:
    Topic(gate, name).send(3)
    start = {name: {"0": 9}}
    with pytest.raises(DataLoss, match=r"from 3 to 9 \(rewound\)"):
        latest(stream(), start)
    careless = stream(failOnDataLoss="false")
    named = latest(careless, start)
    assert named == {name: {"0": 0}}
    assert rows(careless, start, named) == []
    assert rows(careless, named, latest(careless, named)) == [(0, 0), (0, 1), (0, 2)]


def test_a_topic_that_is_replaced_under_a_query_is_a_loss_however_much_is_in_it(
    gate: Gateway, name: str, stream: MakeStream
) -> None:
    topic = Topic(gate, name)
    topic.send(3)
    strict, careless = stream(), stream(failOnDataLoss="false")
    start = {name: {"0": 3}}
    assert latest(strict, start) == start
    assert latest(careless, start) == start
    topic.delete()
    Topic(gate, name).send(5)
    with pytest.raises(DataLoss, match=r"from 3 on \(replaced\)"):
        latest(strict, start)
    named = latest(careless, start)
    assert named == {name: {"0": 0}}
    assert rows(careless, named, latest(careless, named)) == [(0, n) for n in range(5)]


def test_an_open_transaction_before_a_checkpoint_is_no_loss(gate: Gateway, name: str, stream: MakeStream) -> None:
    """A query that read uncommitted messages goes on with committed ones."""
    topic = Topic(gate, name)

    async def opened() -> Producer:
        producer = Producer(gate.cluster, ProducerSettings(transactional_id=name, linger_ms=0))
        await producer.begin()
        await (await producer.send(name, b"x", partition=0))
        return producer

    producer = gate.run(opened())
    start = {name: {"0": 1}}
    assert latest(stream(), start) == start
    gate.run(producer.commit())
    gate.run(producer.close())
    topic.settle()
    assert from_json(latest(stream(), start)) == {topic.at(0): 2}


def test_messages_that_retention_took_do_not_use_up_limits(
    gate: Gateway, name: str, stream: MakeStream, tmp_path: Path
) -> None:
    topic = Topic(gate, name)
    topic.send(50)
    topic.trim(40)
    start = {name: {"0": 10}}
    end = latest(stream(maxOffsetsPerTrigger="5"), start)
    assert end == {name: {"0": 45}}
    with pytest.raises(DataLoss, match="from 10 to 40"):
        stream().partitions(start, end)
    careless = stream(failOnDataLoss="false", lossLog=str(tmp_path))
    assert rows(careless, start, end) == [(0, n) for n in range(40, 45)]
    assert [json.loads(file.read_text())["end"] for file in tmp_path.iterdir()] == [40]


# --- progress
def test_a_batch_is_committed_to_the_group_once_it_is_done(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name)
    topic.send(30)
    group = {"group.id": f"{name}-group"}
    reader = stream(maxOffsetsPerTrigger="10", **group)
    start = reader.initialOffset()
    end = latest(reader, start)
    rows(reader, start, end)
    assert gate.committed(group["group.id"], [topic.at(0)]) == {topic.at(0): 0}
    latest(reader, end)
    groups = GroupAdmin(gate.cluster)
    (lag,) = gate.run(groups.lags(gate.run(groups.describe(group["group.id"]))))
    assert (lag.committed, lag.lag) == (10, 20)


def test_a_report_tells_where_the_logs_end_and_how_far_the_query_is_behind(
    gate: Gateway, name: str, stream: MakeStream
) -> None:
    topic = Topic(gate, name, partitions=2, retention_ms="-1")
    topic.send({0: 30, 1: 10}, time_ms=1_700_000_000_000, size=1_000)
    reader = stream(maxOffsetsPerTrigger="30")
    assert reader.reportLatestOffset() is None
    end = latest(reader, reader.initialOffset())
    told = reader.reportLatestOffset()
    assert told is not None
    behind = told.pop(BEHIND)
    assert told == {name: {"0": 30, "1": 10}}
    assert behind["offsets"] == 10
    assert 5_000 < behind["bytes"] < 30_000
    assert behind["seconds"] > 10**7
    latest(reader, end)
    assert reader.reportLatestOffset() == told


def test_a_query_without_a_group_commits_nothing(gate: Gateway, name: str, stream: MakeStream) -> None:
    topic = Topic(gate, name)
    topic.send(3)
    run(stream(**{"group.id": ""}))
    assert gate.committed(f"spark-{name}", [topic.at(0)]) == {}
    run(stream())
    assert gate.committed(f"spark-{name}", [topic.at(0)]) == {topic.at(0): 3}


def test_a_group_that_others_use_is_no_reason_to_stop(
    gate: Gateway, name: str, stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic(gate, name)
    topic.send(3)

    async def joined() -> GroupConsumer:
        consumer = GroupConsumer(gate.cluster, name, [topic.name])
        while not await consumer.poll(timeout_ms=100):
            pass
        return consumer

    consumer = gate.run(joined())
    with caplog.at_level(logging.WARNING):
        assert len(run(stream(**{"group.id": name}))) == 3
    assert "could not be committed" in caplog.text
    gate.run(consumer.close())
