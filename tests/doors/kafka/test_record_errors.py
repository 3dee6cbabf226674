"""Bad records are named (KIP-467): the records beside them are not blamed, and nothing of their batch is kept."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
import pytest
from tests.doors.kafka.test_traps import Line

from runnel.record import records
from runnel.record.compression import Compression
from runnel.record.records import Headers, Record
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

LIMIT_S = 60.0
LATE = 1 << 45  # far in the future
Config = m.CreateTopicsRequest.CreatableTopicConfig


@pytest.fixture
def line(broker: BrokerProcess) -> Iterator[Line]:
    with Line(broker.kafka) as line:
        yield line


def create(line: Line, **settings: str) -> str:
    name = f"blame-{uuid.uuid4().hex}"
    configs = [Config(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    wanted = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    answer = line.ask(Api.CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000))
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message
    return name


def message(number: int, key: bytes | None = b"k", at: int | None = None, headers: Headers = ()) -> Record:
    return Record(number, int(time.time() * 1000) if at is None else at, key, b"%d" % number, headers)


def send(line: Line, topic: str, batch: Sequence[Record], version: int = 9, **options: Any) -> Any:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(records.encode(batch, **options)))
    wanted = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[wanted])
    return line.ask(Api.PRODUCE, version, request).responses[0].partition_responses[0]


def blamed(answer: Any) -> list[int]:
    assert all(each.batch_index_error_message for each in answer.record_errors)
    return [each.batch_index for each in answer.record_errors]


@pytest.mark.parametrize("version", [8, 9, 12])
@pytest.mark.parametrize("count", [5, 3_000])  # many are looked through off the loop
def test_records_without_a_key_on_a_compacted_topic(line: Line, version: int, count: int) -> None:
    topic = create(line, cleanup_policy="compact")
    batch = [message(number, None if number in (1, 3) else b"k") for number in range(count)]
    answer = send(line, topic, batch, version, compression=Compression.GZIP)
    assert (answer.error_code, blamed(answer)) == (ErrorCode.INVALID_RECORD, [1, 3])
    assert send(line, topic, [message(0)], version).base_offset == 0, "nothing of the bad batch was kept"


@pytest.mark.parametrize("count", [5, 3_000])
def test_records_with_a_time_that_is_too_far_off(line: Line, count: int) -> None:
    topic = create(line)
    batch = [message(number, at=LATE if number in (0, 4) else None) for number in range(count)]
    answer = send(line, topic, batch)
    assert (answer.error_code, blamed(answer)) == (ErrorCode.INVALID_TIMESTAMP, [0, 4])


def test_records_whose_delay_can_not_be_read(line: Line) -> None:
    topic = create(line, delay_enable="true")
    bad: Headers = (("runnel-delay-ms", b"soon"),)
    answer = send(line, topic, [message(number, headers=bad if number in (1, 2) else ()) for number in range(4)])
    assert (answer.error_code, blamed(answer)) == (ErrorCode.INVALID_RECORD, [1, 2])
    assert "soon" in answer.error_message


def test_a_batch_that_is_bad_as_a_whole_blames_none(line: Line) -> None:
    answer = send(line, create(line, max_message_bytes="100"), [message(number) for number in range(20)])
    assert (answer.error_code, blamed(answer)) == (ErrorCode.MESSAGE_TOO_LARGE, [])


def test_an_answer_names_so_many_and_no_more(line: Line) -> None:
    topic = create(line, cleanup_policy="compact")
    answer = send(line, topic, [message(number, None) for number in range(1_500)])
    assert blamed(answer) == list(range(1_000))


def test_a_real_client_tells_bad_records_from_those_beside_them(broker: BrokerProcess, line: Line) -> None:
    """Two bad records: librdkafka blames all that were in the batch where only one is named."""
    topic = create(line, cleanup_policy="compact")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "linger.ms": 1_000})
    codes: dict[bytes, int] = {}

    def told(error: confluent_kafka.KafkaError | None, sent: confluent_kafka.Message) -> None:
        codes[sent.value() or b""] = 0 if error is None else error.code()

    for value, key in ((b"a", b"k"), (b"b", None), (b"c", b"k"), (b"d", None)):
        producer.produce(topic, value, key, on_delivery=told)
    assert producer.flush(LIMIT_S) == 0
    beside = confluent_kafka.KafkaError._INVALID_DIFFERENT_RECORD
    bad = int(ErrorCode.INVALID_RECORD)
    assert codes == {b"a": beside, b"b": bad, b"c": beside, b"d": bad}
