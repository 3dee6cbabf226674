"""What readers are told."""

import pickle

import pytest

from runnel.client.metadata import TopicPartition as TP
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from runnel.client.positions import END, START, From, Position
from runnel.pipelines.connector.reading.options import Limits, ReadOptions, Shape, Splitting, Topics
from runnel.pipelines.errors import BadOption, UnknownOption


def batch(**options: str) -> ReadOptions:
    return ReadOptions.batch({"subscribe": "t", **options})


def stream(**options: str) -> ReadOptions:
    return ReadOptions.streaming({"subscribe": "t", **options})


def test_defaults_are_those_of_sparks_kafka_source_but_committed_messages_only_and_headers() -> None:
    assert batch().start.every == START
    assert stream().start.every == END
    assert batch().end is None
    assert batch().isolation == READ_COMMITTED
    assert batch().shape == Shape(headers=True, value_format="raw", value_schema="")
    assert batch().fail_on_data_loss
    assert batch().splitting == Splitting()
    assert batch().group == ""


def test_topics_are_named_in_one_of_three_ways() -> None:
    assert batch(subscribe="b, a ,b").topics == Topics(names=("a", "b"))
    pattern = ReadOptions.batch({"subscribePattern": "or.*", "excludePattern": ".*-dlq"}).topics
    assert [name for name in ("orders", "orders-dlq", "xor") if pattern.matches(name)] == ["orders"]
    assigned = ReadOptions.batch({"assign": '{"t": [1]}'}).topics
    assert assigned.include(TP("t", 1))
    assert not assigned.include(TP("t", 0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": " , "},
        {"subscribePattern": "("},
        {"subscribe": "a", "excludePattern": "b"},
    ],
)
def test_what_is_read_must_be_said_once(options: dict[str, str]) -> None:
    with pytest.raises(BadOption):
        ReadOptions.batch(options)


def test_starts_and_ends() -> None:
    told = batch(startingTimestamp="5", endingOffsets='{"t": {"0": 9}}')
    assert told.start.every == Position(From.TIME, 5)
    assert told.start.strict
    assert told.end is not None
    assert told.end.each == {TP("t", 0): Position(From.OFFSET, 9)}
    assert not batch(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").start.strict
    by_time = batch(endingOffsetsByTimestamp='{"t": {"0": 5}}').end
    assert by_time is not None
    assert by_time.each == {TP("t", 0): Position(From.TIME, 5)}
    assert not by_time.strict  # an end at a time that has not come is the end


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"0": -1}}'},
        {"startingOffsets": "earliest", "startingTimestamp": "5"},
        {"startingOffsets": "committed"},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t": {"0": -2}}'},
        {"endingOffsets": "committed", "group.id": "g"},
        {"maxOffsetsPerTrigger": "5"},
        {"startingOffsetsByTimestampStrategy": "maybe"},
        {"valueSchema": "id bigint"},
        {"valueFormat": "xml"},
        {"isolation": "serializable"},
    ],
)
def test_what_means_nothing_to_a_batch_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(BadOption):
        batch(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"pushFilters": "true"},
        {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
        {"maxTriggerDelay": "5m"},
        {"startingOffsets": "committed"},
    ],
)
def test_what_means_nothing_to_a_stream_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(BadOption):
        stream(**options)


def test_limits_and_splits_go_together() -> None:
    told = stream(maxRowsPerTrigger="10", maxBytesPerTrigger="1m", minOffsetsPerTrigger="3", maxTriggerDelay="2s")
    assert told.limits == Limits(10, 1 << 20, 3, 2_000)
    told = stream(minPartitions="4", maxRecordsPerPartition="100", maxBytesPerPartition="1k")
    assert told.splitting == Splitting(4, 100, 1024)


def test_a_stream_without_a_group_has_one_named_after_what_it_reads() -> None:
    assert stream().group == "spark-t"
    assert stream(**{"group.id": "mine"}).group == "mine"
    assert stream(**{"kafka.group.id": "mine"}).group == "mine"
    assert stream(**{"group.id": ""}).group == ""
    assert stream(startingOffsets="committed", **{"group.id": "mine"}).start.uses(From.STORED)


def test_uncommitted_messages_are_an_option() -> None:
    assert batch(**{"kafka.isolation.level": "read_uncommitted"}).isolation == READ_UNCOMMITTED


def test_typos_are_found_even_when_only_columns_are_asked_for() -> None:
    with pytest.raises(UnknownOption, match="includeHeaders"):
        Shape.of({"subscribe": "t", "includeheader": "true"})


def test_tasks_get_them_as_a_value() -> None:
    told = stream(startingOffsets="-5", maxRowsPerTrigger="10")
    assert pickle.loads(pickle.dumps(told)) == told
