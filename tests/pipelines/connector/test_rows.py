"""Rows to batches for partitions."""

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from runnel.client.metadata import Partition, Topic, TopicPartition
from runnel.client.partitioner import partition_of_key
from runnel.model.errors import InvalidPartitions, InvalidTopicName
from runnel.pipelines.connector.writing import rows as rows_module
from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.pipelines.connector.writing.rows import Encoder
from runnel.record.batch import check_produced
from runnel.record.compression import Compression
from runnel.record.records import Record, decode

NOW = 1_700_000_000_000


def topic_of(count: int, name: str = "t") -> Topic:
    partitions = {n: Partition(n, 1, 0, (1,), (1,)) for n in range(count)}
    places = {n: TopicPartition(name, n) for n in range(count)}
    return Topic(name, UUID(int=1), False, MappingProxyType(partitions), tuple(range(count)), places)


def encoder(batch: pa.RecordBatch, topic: str | None = "t", **settings: Any) -> Encoder:
    layout = Layout({name: place for place, name in enumerate(batch.schema.names)})
    wanted = {"compression": Compression.NONE, "batch_bytes": 10_000, **settings}
    return Encoder(layout, topic, **wanted)


def written(batch: pa.RecordBatch, partitions: int, **settings: Any) -> dict[int, list[list[Record]]]:
    """The batches of each partition, as a broker would read them."""
    found: dict[int, list[list[Record]]] = {}
    for one in encoder(batch, **settings).encode(batch, topic_of(partitions), NOW):
        check_produced(one.batch)
        found.setdefault(one.partition, []).append(decode(one.batch))
    return found


def table(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({name: c if isinstance(c, pa.Array) else pa.array(c) for name, c in columns.items()})


def test_rows_with_keys_go_to_the_partitions_of_their_keys_and_keep_their_order() -> None:
    keys = [f"car-{n % 40}" for n in range(500)]
    batch = table(key=keys, value=[str(n) for n in range(500)])
    found = written(batch, 5)
    assert set(found) == {partition_of_key(key.encode(), 5) for key in keys}
    for partition, batches in found.items():
        records = [record for one in batches for record in one]
        wanted = [n for n, key in enumerate(keys) if partition_of_key(key.encode(), 5) == partition]
        assert [int(record.value or b"") for record in records] == wanted
        assert [record.key for record in records] == [keys[n].encode() for n in wanted]


def test_rows_without_keys_fill_a_batch_then_go_to_the_next_partition() -> None:
    batch = table(value=[b"x" * 1_000] * 100)
    found = written(batch, 4, batch_bytes=10_000)
    sizes = [len(one) for batches in found.values() for one in batches]
    assert set(found) == {0, 1, 2, 3}
    assert sum(sizes) == 100
    assert sorted(sizes) == [1] + [9] * 11


def test_where_rows_without_keys_begin_goes_on_over_many_calls() -> None:
    batch = table(value=[b"x" * 1_000] * 10)
    one, topic = encoder(batch, batch_bytes=20_000), topic_of(4)
    places = [next(iter(one.encode(batch, topic, NOW))).partition for _ in range(8)]
    assert places == [0, 0, 1, 1, 2, 2, 3, 0]  # two of these do not quite fit into one batch


def test_a_row_that_names_a_partition_goes_there_and_others_by_key_or_in_turn() -> None:
    batch = table(partition=pa.array([3, None, None, 0], pa.int32()), key=["a", "b", None, None], value=list("wxyz"))
    found = {r.value: p for p, batches in written(batch, 4).items() for one in batches for r in one}
    assert found[b"w"] == 3
    assert found[b"x"] == partition_of_key(b"b", 4)
    assert found[b"z"] == 0
    assert found[b"y"] in range(4)


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    batch = table(partition=pa.array([partition], pa.int32()), value=["x"])
    with pytest.raises(InvalidPartitions, match=f"no partition {partition}: it has 4"):
        written(batch, 4)


def test_all_of_a_row_arrives() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    headers = pa.array(
        [[{"key": "h", "value": "v"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    )
    times = pa.array([when, None], pa.timestamp("us", tz="UTC"))
    batch = table(
        key=pa.array(["k", None]), value=pa.array([b"v", None], pa.binary()), headers=headers, timestamp=times
    )
    [[*records]] = [b for batches in written(batch.slice(0, 1), 1).values() for b in batches]
    assert records == [Record(0, int(when.timestamp() * 1000), b"k", b"v", (("h", b"v"),))]
    [[*records]] = [b for batches in written(batch.slice(1, 1), 1).values() for b in batches]
    assert records == [Record(0, NOW, None, None, ())]


def test_times_before_1970_are_rounded_down_as_others() -> None:
    times = pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    [[[record]]] = written(table(value=["x"], timestamp=times), 1).values()
    assert record.timestamp == -1


def test_a_row_that_is_larger_than_a_batch_goes_alone() -> None:
    batch = table(value=[b"a", b"b" * 50_000, b"c"])
    assert [len(one) for one in written(batch, 1)[0]] == [1, 1, 1]


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_are_compressed(compression: Compression) -> None:
    batch = table(key=["k"] * 50, value=["same"] * 50)
    [[records]] = written(batch, 1, compression=compression).values()
    assert [record.value for record in records] == [b"same"] * 50


def test_rows_are_told_apart_by_their_topics() -> None:
    batch = table(topic=["a", "b", "a"], value=["1", "2", "3"])
    found = {name: rows.column(1).to_pylist() for name, rows in encoder(batch, None).by_topic(batch).items()}
    assert found == {"a": ["1", "3"], "b": ["2"]}
    assert list(encoder(batch, "all").by_topic(batch)) == ["all"]


@pytest.mark.parametrize("name", [None, ""])
def test_a_row_without_a_topic_is_refused(name: str | None) -> None:
    batch = table(topic=pa.array(["a", name]), value=["1", "2"])
    with pytest.raises(InvalidTopicName, match="names no topic"):
        encoder(batch, None).by_topic(batch)


def test_a_large_batch_of_spark_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "PIECE_BYTES", 10_000)
    batch = table(value=[b"x" * 1_000] * 100)
    pieces = list(encoder(batch).pieces(batch))
    assert sum(len(piece) for piece in pieces) == 100
    assert max(piece.nbytes for piece in pieces) < 12_000
