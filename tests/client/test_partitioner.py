"""Keys go where every other client sends them."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.partitioner import RoundRobin, Sticky, murmur2, partition_of_key, partitioner
from runnel.model.errors import InvalidConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python reads its resources in a way that Python 3.11 deprecates
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

# From Kafka's own unit tests, as signed numbers.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_javas(key: bytes) -> None:
    assert murmur2(key) == JAVA[key] % 2**32


@given(st.binary(max_size=64))
def test_murmur2_is_kafka_pythons(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) % 2**32


def test_the_partition_is_the_hash_without_its_sign() -> None:
    assert partition_of_key(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10


def test_sticky_stays_until_a_batch_is_closed() -> None:
    chooser = Sticky()
    first = [chooser.choose("t", None, (0, 1, 2), 3) for _ in range(5)]
    chooser.batch_closed("t")
    assert first == [0] * 5
    assert chooser.choose("t", None, (0, 1, 2), 3) == 1
    assert chooser.choose("other", None, (0, 1, 2), 3) == 0


def test_only_partitions_with_a_leader_get_messages_without_a_key() -> None:
    chooser = RoundRobin()
    assert [chooser.choose("t", None, (1, 3), 4) for _ in range(4)] == [1, 3, 1, 3]
    assert chooser.choose("t", b"foobar", (1, 3), 10) == partition_of_key(b"foobar", 10)


def test_short_lived_producers_do_not_all_begin_with_partition_0() -> None:
    assert partitioner("sticky", first=5).choose("t", None, (0, 1, 2), 3) == 2


def test_an_unknown_partitioner_is_named_with_what_is_allowed() -> None:
    with pytest.raises(InvalidConfig, match="'random': allowed are sticky, round-robin"):
        partitioner("random")
