"""Batches that are small, and large once they are decompressed."""

import json
from functools import partial

from tests.bounds.rig import Answer, Kafka, ask, ask_at_once, statuses

from runnel.model.ids import NO_TOPIC_ID
from runnel.model.limits import MIB
from runnel.record.compression import Compression
from runnel.record.records import Record, encode
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

PRODUCE_V = 9
AT_ONCE = 8


def produced(broker: BrokerProcess, topic: str, batch: bytes) -> int:
    """The error code of an append, past all clients that would count for themselves."""
    ask(broker.http, "POST", "/v1/topics", json.dumps({"name": topic, "partitions": 1}).encode())
    data = m.ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
    topics = [m.ProduceRequest.TopicProduceData(name=topic, topic_id=NO_TOPIC_ID, partition_data=[data])]
    with Kafka(broker.kafka) as kafka:
        request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
        answer = kafka.ask(Api.PRODUCE, PRODUCE_V, request)
    return int(answer.responses[0].partition_responses[0].error_code)


def bomb(value_bytes: int, count: int = 1) -> bytes:
    """A batch of zeros: zstd makes a few KB of 100 MB."""
    records = [Record(n, 0, None, bytes(value_bytes), ()) for n in range(count)]
    return encode(records, compression=Compression.ZSTD)


def read_bombs(broker: BrokerProcess, rounds: int, value_bytes: int = 95 * MIB) -> str:
    """One value that is too large, one that may just be, and a batch of very many empty records."""
    sizes = []
    for topic, batch in (
        ("huge", bomb(value_bytes)), ("large", bomb(15 * MIB)), ("many", bomb(0, 500_000)),
    ):  # fmt: skip
        sizes.append(len(batch))
        assert produced(broker, topic, batch) == 0
    answers: list[Answer] = []
    for _ in range(rounds):
        for topic, most in (("huge", MIB), ("large", MIB), ("large", 16 * MIB), ("many", 16 * MIB)):
            path = f"/v1/topics/{topic}/partitions/0/messages?limit=10000&bytes_max={most}"
            answers += ask_at_once(AT_ONCE, partial(_get, broker.http, path))
    largest = max(len(answer.content) for answer in answers)
    return f"batches of {sizes} bytes, {len(answers)} reads: {statuses(answers)}, largest answer {largest / MIB:.0f} MB"


def _get(address: str, path: str, _: int) -> Answer:
    return ask(address, "GET", path)
