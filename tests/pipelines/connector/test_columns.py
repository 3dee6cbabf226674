"""Rows of Spark: the same as the records, whatever their shape; the columns that were asked for; bounds; bad bytes."""

import pickle
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.model.errors import InvalidRecord
from runnel.pipelines.connector.arrow import columns
from runnel.pipelines.connector.arrow.columns import TYPES, Projection, default_schema, json_schema, rows
from runnel.pipelines.errors import BadOption
from runnel.record import batch, records
from runnel.record.batch import HEADER_BYTES
from runnel.record.compression import Compression
from runnel.record.control import marker
from runnel.record.records import Headers, Record

EVERYTHING = Projection.raw(pa.schema(list(TYPES.items())))
FAR = 2**62
BLOB = st.none() | st.binary(max_size=100) | st.integers(0, 20_000).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=20), BLOB), max_size=4).map(tuple)
MANY_HEADERS = st.integers(0, 100).map(lambda count: (("name", b"value"), ("none", None), ("", b"")) * count)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Record]]:
    """Batches that follow each other, with gaps as compaction leaves them."""
    offset = draw(st.integers(0, 2**40))
    out: list[list[Record]] = []
    for _ in range(draw(st.integers(1, 4))):
        out.append([])
        for _ in range(draw(st.integers(1, 6))):
            timestamp = draw(st.integers(-1, 2**45))
            headers = draw(HEADERS | MANY_HEADERS)
            out[-1].append(Record(offset, timestamp, draw(BLOB), draw(BLOB), headers))
            offset += draw(st.integers(1, 5000))
    return out


def expected(record: Record, timestamp_type: int = 0) -> dict[str, object]:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    return {
        "key": record.key, "value": record.value, "topic": "t", "partition": 7, "offset": record.offset,
        "timestamp": record.timestamp * 1000, "timestampType": timestamp_type, "headers": headers or None,
    }  # fmt: skip


def read(
    raw: Sequence[bytes | memoryview], first: int = 0, end: int = FAR, projection: Projection = EVERYTHING
) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for found in rows(projection, "t", 7, raw, first, end):
        found.validate(full=True)
        assert found.schema.equals(projection.schema)
        if "timestamp" in found.schema.names:
            place = found.schema.get_field_index("timestamp")
            found = found.set_column(place, "timestamp", found.column(place).cast(pa.int64()))
        out += found.to_pylist()
    return out


def message(offset: int, value: bytes | None = b"v", *, key: bytes | None = b"k", headers: Headers = ()) -> Record:
    return Record(offset, 1_000 + offset, key, value, headers)


@settings(max_examples=150)
@given(histories(), st.sampled_from(Compression), st.data())
def test_rows_are_the_records(history: list[list[Record]], codec: Compression, data: st.DataObject) -> None:
    raw = [records.encode(each, base_offset=each[0].offset, compression=codec) for each in history]
    every = [record for each in history for record in each]
    first = data.draw(st.sampled_from([0, *(record.offset for record in every)]))
    end = data.draw(st.sampled_from([FAR, *(record.offset for record in every)]))
    wanted = [expected(record) for record in every if first <= record.offset < end]
    assert read(raw, first, end) == wanted
    assert read([memoryview(b"".join(raw))], first, end) == wanted


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 60), max_size=8), st.integers(1, 10))
def test_only_the_stretches_that_were_asked_for(offsets: set[int], edges: set[int], size: int) -> None:
    every = [message(offset, headers=(("a", b"b"),)) for offset in sorted(offsets)]
    cut = [every[at : at + size] for at in range(0, len(every), size)]
    raw = [records.encode(each, base_offset=each[0].offset) for each in cut]
    numbers = sorted(edges)
    stretches = list(zip(numbers[0::2], numbers[1::2], strict=False))
    found = [row for each in rows(EVERYTHING, "t", 7, raw, 0, FAR, stretches) for row in each.to_pylist()]
    wanted = [each for each in every if any(first <= each.offset <= last for first, last in stretches)]
    assert [(row["offset"], row["value"], row["headers"][0]["value"]) for row in found] == [
        (each.offset, each.value, b"b") for each in wanted
    ]


def test_the_time_of_the_broker_counts_for_all_records_of_its_batch() -> None:
    late = [Record(0, 500, None, b"a"), Record(1, 900, None, b"b")]
    raw = [records.encode(late, append_time=True), records.encode([message(2)], base_offset=2)]
    found = [(row["timestamp"], row["timestampType"]) for row in read(raw)]
    assert found == [(900_000, 1), (900_000, 1), (1_002_000, 0)]


def test_times_beyond_what_spark_can_keep_are_the_last_it_can() -> None:
    raw = [records.encode([Record(0, 2**62, None, b""), Record(1, -(2**62), None, b"")])]
    assert [row["timestamp"] for row in read(raw)] == [(2**63 - 1) // 1000 * 1000, -((2**63 - 1) // 1000) * 1000]


def test_control_batches_and_empty_ones_are_no_rows() -> None:
    control = bytearray(marker(1, 0, commit=True, coordinator_epoch=0, timestamp_ms=1))
    batch.patch(control, 1, 0)
    empty = records.emptied(batch.read_header(records.encode([message(2)], base_offset=2)))
    raw = [records.encode([message(0)]), bytes(control), empty, records.encode([message(3)], base_offset=3)]
    assert [row["offset"] for row in read(raw)] == [0, 3]
    assert read([]) == []
    assert read([empty]) == []


def test_reading_stops_at_the_end_that_was_asked_for() -> None:
    def fetched() -> object:
        yield records.encode([message(0)])
        yield records.encode([message(5)], base_offset=5)
        raise AssertionError("nobody needs more")

    assert [row["offset"] for row in read(fetched(), end=5)] == [0]  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [["offset"], ["value"], ["headers", "key"], ["timestamp", "topic", "partition"]])
def test_only_the_columns_that_were_asked_for_in_their_order(names: list[str]) -> None:
    projection = Projection.raw(pa.schema([(name, TYPES[name]) for name in names]))
    found = read([records.encode([message(0, headers=(("a", b"b"),))])], projection=projection)
    whole = expected(message(0, headers=(("a", b"b"),)))
    assert found == [{name: whole[name] for name in names}]
    assert list(found[0]) == names


def test_batches_are_bounded_by_rows() -> None:
    raw = [records.encode([message(n) for n in range(s, s + 7_000)], base_offset=s) for s in range(0, 28_000, 7_000)]
    sizes = [found.num_rows for found in rows(EVERYTHING, "t", 0, raw, 0, FAR)]
    assert sum(sizes) == 28_000
    assert max(sizes) <= columns.ROWS_MAX


def test_batches_are_bounded_by_bytes_and_a_larger_record_comes_alone() -> None:
    sizes = [100, columns.BYTES_MAX * 2, 100, *[columns.BYTES_MAX // 3] * 7]
    raw = [records.encode([message(n, bytes(size)) for n, size in enumerate(sizes)])]
    found = list(rows(EVERYTHING, "t", 0, raw, 0, FAR))
    assert [each.num_rows for each in found] == [1, 1, 3, 2, 2, 1]
    assert [row["value"] for each in found for row in each.to_pylist()] == [bytes(size) for size in sizes]


def test_little_batches_are_put_together() -> None:
    raw = [records.encode([message(n)], base_offset=n) for n in range(500)]
    assert [found.num_rows for found in rows(EVERYTHING, "t", 0, raw, 0, FAR)] == [500]


def test_header_names_that_are_no_text_get_replacement_characters() -> None:
    raw = records.encode([message(0, headers=(("abcd", b"x"),))]).replace(b"abcd", b"ab\xff\xfe")
    assert read([raw])[0]["headers"] == [{"key": "ab\ufffd\ufffd", "value": b"x"}]


@settings(max_examples=300)
@given(histories(), st.integers(HEADER_BYTES, 4000), st.integers(0, 255))
def test_hostile_bytes_are_refused_or_read(history: list[list[Record]], place: int, byte: int) -> None:
    raw = [bytearray(records.encode(each, base_offset=each[0].offset)) for each in history]
    victim = raw[place % len(raw)]
    victim[HEADER_BYTES + place % (len(victim) - HEADER_BYTES)] = byte
    with suppress(InvalidRecord):
        every = [record for each in raw for record in records.decode(each)]
        assert read([bytes(each) for each in raw]) == [expected(record) for record in every]


@settings(max_examples=200)
@given(histories(), st.integers(0, 4000), st.integers(0, 255))
def test_what_the_other_reader_refuses_is_refused(history: list[list[Record]], place: int, byte: int) -> None:
    raw = bytearray(records.encode(history[0], base_offset=history[0][0].offset))
    raw[HEADER_BYTES + place % (len(raw) - HEADER_BYTES)] = byte
    try:
        records.decode(raw)
    except InvalidRecord:
        with pytest.raises(InvalidRecord):
            read([bytes(raw)])


# --- schemas
def test_the_default_schema_is_that_of_sparks_own_source() -> None:
    assert default_schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in default_schema(headers=False).fieldNames()
    assert Projection.of(default_schema()).schema == EVERYTHING.schema


def test_the_schema_of_json_values_is_given_as_ddl() -> None:
    assert json_schema("id bigint, `a b` string", headers=False) == (
        "`key` binary, `value` struct<id bigint, `a b` string>, `topic` string, `partition` int, `offset` bigint, "
        "`timestamp` timestamp, `timestampType` int, `_error` string"
    )


@pytest.mark.parametrize(
    "field",
    [
        pa.field("nonsense", pa.string()),
        pa.field("value", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("key", pa.binary(), nullable=False),
    ],
)
def test_columns_that_are_not_there_are_refused(field: pa.Field) -> None:
    with pytest.raises(BadOption, match=field.name):
        Projection.raw(pa.schema([field]))


def test_formats_that_are_not_there_are_refused() -> None:
    with pytest.raises(BadOption, match="raw, json"):
        Projection.of(default_schema(), "xml")


def test_a_projection_travels() -> None:
    for projection in (EVERYTHING, Projection.parsed(pa.schema([("offset", pa.int64()), ("id", pa.int64())]))):
        assert pickle.loads(pickle.dumps(projection)) == projection
