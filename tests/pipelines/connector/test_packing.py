"""Columns to records: the bytes are those that the writer of single records makes."""

import random

import numpy as np
import pyarrow as pa
import pytest

from runnel.client.partitioner import murmur2 as murmur2_of_one
from runnel.model.errors import InvalidRecord
from runnel.pipelines.connector.writing.key_hash import murmur2, partitions_of_keys
from runnel.pipelines.connector.writing.packing import packed_headers, packed_records, strings_of, varints
from runnel.record.records import Record, decode, encode, varint

LENGTHS = (0, 1, 10, 63, 64, 200, 8191, 8192)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EDGES = [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1]


def some_bytes(rng: random.Random) -> bytes | None:
    return None if rng.random() < 0.2 else rng.randbytes(rng.choice(LENGTHS))


def some_records(rng: random.Random, count: int) -> list[Record]:
    def headers() -> tuple[tuple[str, bytes | None], ...]:
        return tuple((f"é{n}" * rng.randrange(0, 40), some_bytes(rng)) for n in range(rng.choice((0, 0, 1, 3))))

    return [
        Record(n, 1_000 + rng.randrange(-90_000, 90_000), some_bytes(rng), some_bytes(rng), headers())
        for n in range(count)
    ]


def section(records: list[Record], headers: pa.Array | None) -> bytes:
    count = len(records)
    packed = packed_records(
        np.array([record.timestamp - records[0].timestamp for record in records]),
        np.arange(count),
        strings_of(pa.array([record.key for record in records], pa.binary()), count),
        strings_of(pa.array([record.value for record in records], pa.binary()), count),
        None if headers is None else packed_headers(headers),
    )
    return b"".join(packed.to_pylist())


def test_numbers_are_written_as_one_by_one() -> None:
    rng = random.Random(1)
    numbers = np.array(EDGES + [rng.randrange(-(2**63), 2**63) for _ in range(100)])
    assert varints(numbers).to_pylist() == [varint(n) for n in numbers.tolist()]
    pairs = zip(numbers.tolist(), reversed(numbers.tolist()), strict=True)
    assert varints(numbers, numbers[::-1]).to_pylist() == [varint(a) + varint(b) for a, b in pairs]


@pytest.mark.parametrize("seed", range(5))
def test_records_are_written_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    records = some_records(rng, 200)
    pairs = [list(record.headers) if record.headers or rng.random() < 0.5 else None for record in records]
    structs = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in pairs]
    wanted = encode(records)[61:]
    assert section(records, pa.array(structs, HEADERS)) == wanted
    assert section(records, pa.array(pairs, pa.map_(pa.string(), pa.binary()))) == wanted


def test_a_part_of_a_column_is_written_as_the_column_would_be() -> None:
    """A slice of Arrow's begins somewhere in its buffers."""
    records = some_records(random.Random(7), 50)
    headers = pa.array([[{"key": k, "value": v} for k, v in record.headers] for record in records], HEADERS)
    part = [record._replace(offset=n) for n, record in enumerate(records[20:30])]
    assert section(part, headers[20:30]) == encode(part)[61:]


def test_no_keys_and_no_values_at_all() -> None:
    records = [Record(n, 5, None, None) for n in range(3)]
    assert section(records, None) == encode(records)[61:]
    assert decode(encode(records)) == records


def test_a_header_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="header without a name"):
        packed_headers(pa.array([[{"key": None, "value": b"x"}]], HEADERS))


def test_keys_go_where_every_kafka_client_sends_them() -> None:
    rng = random.Random(3)
    keys = [rng.randbytes(length) for length in range(70)] + [b"", b"\xff" * 9]
    column = pa.array(keys, pa.binary())
    assert murmur2(column).tolist() == [murmur2_of_one(key) for key in keys]
    assert murmur2(column[13:31]).tolist() == [murmur2_of_one(key) for key in keys[13:31]]
    assert murmur2(column[:0]).tolist() == []
    assert partitions_of_keys(column, 7).tolist() == [(murmur2_of_one(key) & 0x7FFFFFFF) % 7 for key in keys]
