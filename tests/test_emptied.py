"""Batches of which nothing is left (all was repeated, or waits): every reader goes on behind them."""

import time
import uuid
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from tests.client.talk import talk
from tests.doors.kafka.test_share import configure
from tests.doors.kafka.test_traps import Line

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.group_admin import GroupAdmin
from runnel.client.metadata import TopicPartition
from runnel.client.queue import Queue
from runnel.model import headers as h
from runnel.testing.process import BrokerProcess

preview: Any = confluent_kafka  # its share consumer has no types yet
LIMIT_S = 60.0
LONG_S = 30.0
SENT = ["a", "b", "a", "b", "a", "c", "c", "b"]  # each a batch of its own; what was sent before is taken out
LEFT = {0: b"a", 1: b"b", 5: b"c"}


class Sent(NamedTuple):
    broker: BrokerProcess
    topic: str


@pytest.fixture(scope="module")
def sent(broker: BrokerProcess) -> Sent:
    """A topic, and a view of all of it; most of its batches are empty, and so are the last two."""
    name = f"emptied-{uuid.uuid4().hex}"

    async def make(cluster: Cluster) -> None:
        config = {"dedup.window.ms": "600000"}
        await Admin(cluster).create_topics([NewTopic(name, partitions=1, config=config)])
        await Admin(cluster).create_topics([NewTopic(f"{name}-v", config={"view.of": name, "view.filter": "TRUE"})])

    talk(broker.kafka, make)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    for value in SENT:
        producer.produce(name, value, headers={h.MESSAGE_ID: value})
        assert producer.flush(LIMIT_S) == 0
    return Sent(broker, name)


def member(sent: Sent, topic: str) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": sent.broker.kafka, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.subscribe([topic])
    return consumer


@pytest.mark.parametrize("shown", ["", "-v"])
def test_a_consumer_of_another_client_comes_to_the_end(sent: Sent, shown: str) -> None:
    topic = sent.topic + shown
    consumer = member(sent, topic)
    got: dict[int | None, bytes | None] = {}
    while True:
        message = consumer.poll(LIMIT_S)
        assert message is not None, "it waits for ever"
        if message.error() is not None:
            break  # the end of the partition
        got[message.offset()] = message.value()
    assert got == LEFT
    consumer.commit(asynchronous=False)
    consumer.close()

    async def lag(cluster: Cluster) -> None:
        admin = GroupAdmin(cluster)
        [one] = await admin.lags(await admin.describe(f"g-{topic}"))
        # What a group committed lies behind the last message that it got: empty batches behind that are lag, until
        # a message follows them. A view ends behind its last message.
        assert (one.committed, one.lag) == (6, 0 if shown else 2)

    talk(sent.broker.kafka, lag)


@pytest.mark.parametrize("shown", ["", "-v"])
def test_our_own_consumer_comes_to_the_end_and_gets_what_follows(sent: Sent, shown: str) -> None:
    place = TopicPartition(sent.topic + shown, 0)

    async def read(cluster: Cluster) -> None:
        async with Consumer(cluster) as consumer:
            await consumer.assign({place: 0})
            got: dict[int, bytes | None] = {}
            while len(got) < len(LEFT):
                got |= {each.offset: each.value for each in await consumer.poll(timeout_ms=200)}
            assert got == LEFT
            assert await consumer.poll(timeout_ms=200) == []

    talk(sent.broker.kafka, read)


def test_a_queue_delivers_what_is_left_and_has_no_backlog_then(sent: Sent) -> None:
    async def work(cluster: Cluster) -> None:
        queue = Queue(cluster, f"{sent.topic}-q")
        await queue.create(topic=sent.topic)
        got = await queue.receive(10, wait=LONG_S)
        assert {message.offset: message.value for message in got} == LEFT
        for message in got:
            await message.accept()
        assert await queue.receive(10, wait=0) == []
        [state] = [each for each in (await queue.describe()).partitions if each.topic == sent.topic]
        assert (state.first_open, state.next_new, state.end) == (len(SENT), len(SENT), len(SENT))

    talk(sent.broker.kafka, work)


def test_a_share_group_delivers_what_is_left(sent: Sent) -> None:
    group = f"{sent.topic}-s"
    with Line(sent.broker.kafka) as line:
        configure(line, group, share_auto_offset_reset="earliest")
    consumer = preview.ShareConsumer({"bootstrap.servers": sent.broker.kafka, "group.id": group})
    consumer.subscribe([sent.topic])
    got: dict[int, bytes] = {}
    end = time.monotonic() + LIMIT_S
    while len(got) < len(LEFT):
        assert time.monotonic() < end
        got |= {each.offset(): each.value() for each in consumer.poll(timeout=0.5) if each.error() is None}
    assert got == LEFT
    consumer.close()
