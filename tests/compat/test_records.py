"""What a client sends is what it gets back: keys, values, headers, timestamps, partitions, in every codec."""

import os

import pytest
from tests.compat.agent import Message, Refused
from tests.compat.raw import batch_attributes
from tests.compat.stage import CODECS, KEPT, Stage, clients, clients_but, texts, values

NO_TIMESTAMPS = ("kcat",)
CODEC_BITS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MESSAGE_TOO_LARGE = 10
SAMPLES = [
    Message(b"plain", key=b"key", partition=0, timestamp=1_700_000_000_123),
    Message(b"no key", partition=1, timestamp=1_700_000_000_124),
    Message(None, key=b"tombstone", partition=2, timestamp=1_700_000_000_125),
    Message(b"", key=b"empty value", partition=0, timestamp=1_700_000_000_126),
    Message(bytes(range(256)), key=bytes(range(256)), partition=1, timestamp=1_700_000_000_127),
    Message(b"\xc3\xbc", headers=(("one", b"1"), ("two", b"\x00\xff")), partition=2, timestamp=1_700_000_000_128),
    Message(b"twice", headers=(("same", b"a"), ("same", b"b")), partition=0, timestamp=1_700_000_000_129),
]
TEXT_SAMPLES = [
    Message(b"plain", key=b"key", partition=0),
    Message(b"no key", partition=1),
    Message(None, key=b"tombstone", partition=2),
    Message("\u00fc".encode(), headers=(("one", b"1"), ("two", b"2")), partition=2),
]


def without_time(messages: list[Message]) -> list[Message]:
    """The same, for clients that can't set timestamps."""
    return [Message(m.value, m.key, m.headers, m.partition) for m in messages]


@clients_but(*NO_TIMESTAMPS)
def test_everything_a_record_holds_comes_back(client: str, stage: Stage) -> None:
    topic = stage.topic("records", partitions=3, config=KEPT)
    placed = stage.agent(client).produce(topic, SAMPLES)
    assert [partition for partition, _ in placed] == [sample.partition for sample in SAMPLES]
    found = stage.agent(client).read(topic, partitions=3)
    assert found == sorted(SAMPLES, key=lambda sample: sample.partition or 0)
    assert [message.offset for message in found] == [0, 1, 2, 0, 1, 0, 1]


@clients("kcat")
def test_what_a_command_line_can_say_comes_back(client: str, stage: Stage) -> None:
    topic = stage.topic("records", partitions=3)
    stage.agent(client).produce(topic, TEXT_SAMPLES)
    found = stage.agent(client).read(topic, partitions=3)
    assert without_time(found) == TEXT_SAMPLES
    assert all(message.timestamp for message in found)


@clients()
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(client: str, acks: int, stage: Stage) -> None:
    topic = stage.topic("acks")
    sent = texts("acks", 20, partitions=1)
    stage.agent(client).produce(topic, sent, acks=acks)
    reader = stage.agent("confluent")
    reader.wait(lambda: values(reader.read(topic)) == values(sent), f"all messages of {client} with acks={acks}")


@clients()
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_passes_through_untouched(client: str, codec: str, stage: Stage) -> None:
    topic = stage.topic("codec")
    sent = [Message(b"%d " % number + b"compressible " * 40, partition=0) for number in range(200)]
    stage.agent(client).produce(topic, sent, codec=codec)
    assert values(stage.agent(client).read(topic)) == values(sent)
    batches = batch_attributes(stage.address, topic)
    assert {attributes & 0x07 for attributes, _ in batches} == {CODEC_BITS[codec]}
    size = sum(size for _, size in batches)
    raw_size = sum(len(message.value or b"") for message in sent)
    assert size > raw_size if codec == "none" else size < raw_size / 3


@clients()
def test_an_idempotent_producer_writes_each_message_once_and_in_order(client: str, stage: Stage) -> None:
    topic = stage.topic("idempotent")
    sent = texts("idempotent", 300, partitions=1)
    native = {} if client in ("aiokafka", "kafkajs", "kafka-python") else {"batch.size": 500}
    stage.agent(client).produce(topic, sent, idempotent=True, native=native)
    assert values(stage.agent(client).read(topic)) == values(sent)


@clients()
def test_large_messages_and_many_small_ones(client: str, stage: Stage) -> None:
    topic = stage.topic("sizes")
    large = [Message(os.urandom(450_000).hex().encode(), partition=0) for _ in range(3)]
    small = texts("small", 3000, partitions=1)
    for message in large:  # kafkajs would put them all into one batch
        stage.agent(client).produce(topic, [message])
    stage.agent(client).produce(topic, small)
    assert values(stage.agent(client).read(topic)) == values(large) + values(small)


TOO_LARGE = {
    "confluent": {"message.max.bytes": 10_000_000},
    "kafka-python": {"max_request_size": 10_000_000},
    "aiokafka": {"max_request_size": 10_000_000},
    "kafkajs": {},
    "java-3.9": {"max.request.size": 10_000_000},
    "java-4.3": {"max.request.size": 10_000_000},
    "kcat": {"message.max.bytes": 10_000_000},
}


@clients()
def test_a_message_too_large_is_refused_and_nothing_else_suffers(client: str, stage: Stage) -> None:
    topic = stage.topic("too-large")
    huge = Message(b"x" * 2_000_000, partition=0)
    with pytest.raises(Refused) as refused:
        stage.agent(client).produce(topic, [huge], native=TOO_LARGE[client])
    if client != "kcat":
        assert refused.value.code == MESSAGE_TOO_LARGE
    stage.agent(client).produce(topic, texts("fits", 3, partitions=1))
    assert values(stage.agent(client).read(topic)) == [b"fits-0", b"fits-1", b"fits-2"]


@clients()
def test_a_topic_appears_when_something_is_sent_to_it(client: str, stage: Stage) -> None:
    topic = stage.name("automatic")
    stage.agent(client).produce(topic, [Message(b"first")])
    assert values(stage.agent(client).read(topic)) == [b"first"]


@clients_but("kcat")
def test_the_key_decides_on_the_partition(client: str, stage: Stage) -> None:
    topic = stage.topic("keys", partitions=4)
    sent = [Message(b"%d" % number, key=b"key-%d" % (number % 10)) for number in range(100)]
    stage.agent(client).produce(topic, sent, idempotent=True)  # a retry on a new topic must not send twice
    found = stage.agent(client).read(topic, partitions=4)
    places = {(message.key, message.partition) for message in found}
    assert len(found) == 100
    assert len(places) == 10
    assert len({partition for _, partition in places}) > 1


@clients_but("kcat")
def test_append_time_is_the_brokers(client: str, stage: Stage) -> None:
    topic = stage.topic("append-time", config={"message.timestamp.type": "LogAppendTime"})
    stage.agent(client).produce(topic, [Message(b"old", partition=0, timestamp=1_000_000)], codec="gzip")
    (found,) = stage.agent(client).read(topic)
    assert found.timestamp is not None
    assert found.timestamp > 1_600_000_000_000
