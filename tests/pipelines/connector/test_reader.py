"""Topics as tables: which rows a batch reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from tests.pipelines.connector.topics import Topic

from runnel.client.errors import TopicMissing
from runnel.pipelines.connector.arrow.columns import default_schema
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.connector.reading.options import ReadOptions
from runnel.pipelines.connector.reading.reader import RunnelReader
from runnel.pipelines.errors import BadOption, DataLoss, NothingThere
from runnel.testing.process import BrokerProcess

Rows = Callable[..., list[tuple[int, int]]]
T0 = 1_700_000_000_000


@pytest.fixture
def rows(broker: BrokerProcess, name: str) -> Rows:
    """(partition, offset) of the rows of a batch with these options."""

    def read(**options: str) -> list[tuple[int, int]]:
        given = {"runnel.brokers": broker.kafka, "subscribe": name, **options}
        reader = RunnelReader(ReadOptions.batch(given), default_schema())
        found = [batch for task in reader.partitions() for batch in reader.read(task)]
        return [(row["partition"], row["offset"]) for batch in found for row in batch.to_pylist()]

    return read


def offsets(first: int, end: int, partition: int = 0) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def test_all_of_a_topic(gate: Gateway, name: str, rows: Rows) -> None:
    topic = Topic(gate, name, partitions=3)
    topic.send({0: 12, 2: 5})
    assert rows() == offsets(0, 12) + offsets(0, 5, 2)
    assert rows(minPartitions="7", maxRecordsPerPartition="2") == offsets(0, 12) + offsets(0, 5, 2)


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({"startingOffsets": "-3"}, 17, 20),
        ({"startingOffsets": '{"TOPIC": {"0": 4}}', "endingOffsets": '{"TOPIC": {"0": 9}}'}, 4, 9),
        ({"startingOffsets": '{"TOPIC": {"0": -2}}', "endingOffsets": '{"TOPIC": {"0": -1}}'}, 0, 20),
        ({"startingTimestamp": str(T0 + 6), "endingTimestamp": str(T0 + 9)}, 6, 9),
        ({"startingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {T0 + 6}}}}}', "endingOffsets": "-10"}, 6, 10),
        ({"startingTimestamp": str(T0 + 99), "startingOffsetsByTimestampStrategy": "latest"}, 20, 20),
        ({"startingOffsets": "committed", "group.id": "TOPIC"}, 8, 20),
        ({"startingOffsets": "committed", "group.id": "TOPIC-nobody"}, 0, 20),
    ],
)
def test_a_slice_of_a_topic(
    gate: Gateway, name: str, rows: Rows, options: dict[str, str], first: int, end: int
) -> None:
    topic = Topic(gate, name, retention_ms="-1")
    topic.send(20, time_ms=T0)
    gate.commit(name, {topic.at(0): 8})
    assert rows(**{key: value.replace("TOPIC", name) for key, value in options.items()}) == offsets(first, end)


def test_what_can_not_be_read_is_said_before_any_task(gate: Gateway, name: str, rows: Rows) -> None:
    topic = Topic(gate, name, retention_ms="-1")
    topic.send(20, time_ms=T0)
    with pytest.raises(NothingThere, match="no message at or after"):
        rows(startingTimestamp=str(T0 + 99))
    with pytest.raises(BadOption, match="it ends at 20"):
        rows(endingOffsets=f'{{"{name}": {{"0": 21}}}}')
    with pytest.raises(TopicMissing, match="'nowhere' does not exist"):
        rows(subscribe=f"{name},nowhere")


def test_a_pattern_that_matches_nothing_is_an_empty_table(rows: Rows, broker: BrokerProcess) -> None:
    reader = RunnelReader(
        ReadOptions.batch({"runnel.brokers": broker.kafka, "subscribePattern": "nothing-like-it"}), default_schema()
    )
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of no partitions


def test_a_partition_that_does_not_exist_can_not_be_assigned(gate: Gateway, name: str, broker: BrokerProcess) -> None:
    Topic(gate, name)
    options = {"runnel.brokers": broker.kafka, "assign": f'{{"{name}": [0, 4]}}'}
    with pytest.raises(BadOption, match=f"{name}/4"):
        RunnelReader(ReadOptions.batch(options), default_schema()).partitions()


def test_a_loss_is_what_was_wanted_and_is_not_kept(gate: Gateway, name: str, rows: Rows, tmp_path: Path) -> None:
    topic = Topic(gate, name)
    topic.send(20)
    topic.trim(7)
    assert rows() == offsets(7, 20)  # the earliest there is was asked for
    wanted = f'{{"{name}": {{"0": 4}}}}'
    with pytest.raises(DataLoss, match="from 4 to 7"):
        rows(startingOffsets=wanted)
    assert rows(startingOffsets=wanted, failOnDataLoss="false", lossLog=str(tmp_path)) == offsets(7, 20)
    (row,) = [json.loads(file.read_text()) for file in tmp_path.iterdir()]
    assert (row["first"], row["end"], row["reason"]) == (4, 7, "expired")


def test_offsets_that_nobody_holds_are_no_loss(gate: Gateway, name: str, rows: Rows) -> None:
    topic = Topic(gate, name)
    topic.transact([b"a"], commit=True)  # marker at 1
    topic.transact([b"x"], commit=False)  # 2, marker at 3
    topic.transact([b"b"], commit=True)
    wanted = f'{{"{name}": {{"0": 1}}}}'
    assert rows(startingOffsets=wanted) == [(0, 4)]


def test_a_group_that_is_ahead_of_the_log_is_a_loss(gate: Gateway, name: str, rows: Rows) -> None:
    topic = Topic(gate, name)
    topic.send(5)
    gate.commit(name, {topic.at(0): 9})
    with pytest.raises(DataLoss, match=r"from 5 to 9 \(rewound\)"):
        rows(startingOffsets="committed", **{"group.id": name})


def test_what_is_lost_after_the_tasks_were_made_is_told_by_the_task(
    gate: Gateway, name: str, broker: BrokerProcess
) -> None:
    topic = Topic(gate, name)
    topic.send(20)
    reader = RunnelReader(ReadOptions.batch({"runnel.brokers": broker.kafka, "subscribe": name}), default_schema())
    (task,) = reader.partitions()
    topic.trim(20)
    with pytest.raises(DataLoss, match="from 0 to 20"):
        list(reader.read(task))
