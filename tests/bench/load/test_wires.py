"""The requests made by hand are what the protocols ask for, and their answers are counted however they arrive."""

import io

import pytest
from kio.schema.fetch.v11.request import FetchRequest
from kio.schema.produce.v7.request import ProduceRequest
from kio.schema.request_header.v1.header import RequestHeader
from kio.serial import entity_reader

from bench.load import Refused, payload
from bench.load.kafka_wire import KafkaWire, next_offset
from bench.load.nats_wire import NatsWire
from bench.load.redis_wire import RedisWire, command, reply
from runnel.record import batch, records

KAFKA = KafkaWire("unused:0", "topic", acks_wanted=-1, partition=3)


def test_produce_is_read_by_another_implementation() -> None:
    frame = KAFKA.request([b"one", b"two"])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, size = entity_reader(RequestHeader)(frame[4:], 0)
    assert header.request_api_key == 0
    assert header.request_api_version == 7
    request, _ = entity_reader(ProduceRequest)(frame[4 + size :], 0)
    assert request.acks == -1
    [topic] = request.topic_data
    assert topic.name == "topic"
    [partition] = topic.partition_data
    assert partition.index == 3
    assert partition.records is not None
    made = bytearray(partition.records)
    assert batch.check_produced(made).count == 2
    assert [record.value for record in records.decode(made)] == [b"one", b"two"]


def test_fetch_is_read_by_another_implementation() -> None:
    frame = KAFKA.fetch_request(17, bytes_max=99, wait_ms=5)
    _, size = entity_reader(RequestHeader)(frame[4:], 0)
    request, _ = entity_reader(FetchRequest)(frame[4 + size :], 0)
    [topic] = request.topics
    [partition] = topic.partitions
    assert (topic.topic, partition.partition, partition.fetch_offset) == ("topic", 3, 17)
    assert (partition.partition_max_bytes, request.max_bytes, request.min_bytes) == (99, 99, 1)


def produced(error: int) -> bytes:
    body = b"\0\0\0\0" + b"\0\0\0\1" + b"\0\5topic" + b"\0\0\0\1" + b"\0\0\0\3"
    body += error.to_bytes(2, "big") + bytes(24) + bytes(4)
    return len(body).to_bytes(4, "big") + body


def test_produce_answers_are_counted_in_any_pieces() -> None:
    answers = produced(0) * 3
    for piece in (1, 7, len(answers)):
        acks = KAFKA.acks()
        assert sum(acks(answers[at : at + piece]) for at in range(0, len(answers), piece)) == 3


def test_a_produce_error_is_not_counted_as_an_answer() -> None:
    with pytest.raises(Refused, match="error 7"):
        KAFKA.acks()(produced(7))


def test_a_cut_off_batch_is_asked_for_again() -> None:
    made = records.encode([records.Record(n, 0, None, b"x") for n in range(4)])
    assert next_offset(memoryview(made), 0) == 4
    assert next_offset(memoryview(made + made[:-1]), 0) == 4
    assert next_offset(memoryview(b""), 9) == 9


def test_redis_words_and_replies() -> None:
    assert command("XADD", "s", b"\r\n", 5) == b"*4\r\n$4\r\nXADD\r\n$1\r\ns\r\n$2\r\n\r\n\r\n$1\r\n5\r\n"
    stream = io.BytesIO(b"*3\r\n$2\r\n\r\n\r\n:7\r\n*2\r\n$-1\r\n+OK\r\n-ERR no\r\n")
    assert reply(stream) == [b"\r\n", 7, [None, b"OK"]]
    with pytest.raises(Refused, match="ERR no"):
        reply(stream)


def test_redis_counts_one_answer_a_message() -> None:
    wire = RedisWire("unused:0", "s")
    assert wire.answers(3) == 3
    acks = wire.acks()
    assert acks(b"$15\r\n1700000000000-0\r\n$15\r\n17000") + acks(b"00000000-1\r\n") == 2


def test_nats_asks_for_an_answer_to_each_message() -> None:
    wire = NatsWire("unused:0", "s").for_connection(4)
    assert wire.request([b"ab"]) == b"PUB s _INBOX.ack.4 2\r\nab\r\n"
    assert wire.acks()(b'MSG _INBOX.ack.4 1 26\r\n{"stream":"s","seq":1}\r\nMSG') == 1
    with pytest.raises(Refused):
        wire.acks()(b'{"error":{"code":503}}')


@pytest.mark.parametrize("size", [1, 20, 100, 10_240])
def test_payloads_have_their_size_and_start(size: int) -> None:
    made = payload(size, b"0123")
    assert len(made) == size
    assert made.startswith(b"0123"[:size])
