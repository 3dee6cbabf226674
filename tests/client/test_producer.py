"""Sending: where messages go, in which order, and what happens when the broker does not play along."""

import asyncio
from pathlib import Path

import pytest
from tests.client.talk import OnCluster, talk

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer, Message
from runnel.client.errors import BufferFull, Closed, TopicMissing
from runnel.client.metadata import TopicPartition
from runnel.client.partitioner import partition_of_key
from runnel.client.positions import END, START, resolve
from runnel.client.producer import Delivery, Producer, ProducerSettings
from runnel.model.errors import BatchTooLarge, InvalidConfig, InvalidPartitions, RequestTimedOut
from runnel.record import records
from runnel.record.compression import Compression
from runnel.record.records import Record
from runnel.testing.process import BrokerProcess


async def read_all(cluster: Cluster, name: str) -> list[Message]:
    """Everything a topic holds, partition by partition."""
    partitions = [TopicPartition(name, n) for n in (await cluster.topic(name)).partitions]
    ends = await resolve(cluster, dict.fromkeys(partitions, END))
    found: list[Message] = []
    async with Consumer(cluster) as consumer:
        await consumer.assign(dict.fromkeys(partitions, START))
        while any(consumer.positions[where] < end for where, end in ends.items()):
            found += await consumer.poll(timeout_ms=10_000)
    return sorted(found, key=lambda x: (x.partition, x.offset))


def test_a_message_comes_back_whole(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1, config={"retention.ms": "-1"})])
        headers = (("trace", b"1"), ("trace", None))
        async with Producer(cluster) as producer:
            sent = await producer.send(name, b"value", key=b"key", headers=headers, timestamp_ms=1_700_000_000_123)
            done = await sent
            await (await producer.send(name, None))
        assert done == (name, 0, 0, 1_700_000_000_123)
        first, second = await read_all(cluster, name)
        assert first == Message(name, 0, 0, 1_700_000_000_123, b"key", b"value", headers)
        assert (second.key, second.value) == (None, None)
        assert sent.result() == done

    on_cluster(work)


def test_keys_explicit_partitions_and_order(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=4)])
        async with Producer(cluster, ProducerSettings(batch_bytes=500, linger_ms=1)) as producer:
            for n in range(400):
                await producer.send(name, b"%d" % n, key=b"k%d" % (n % 10))
            await producer.send(name, b"here", partition=3)
        found = await read_all(cluster, name)
        assert len(found) == 401
        assert next(x.partition for x in found if x.value == b"here") == 3
        for number in range(10):
            of_key = [x for x in found if x.key == b"k%d" % number]
            assert [x.value for x in of_key] == [b"%d" % n for n in range(number, 400, 10)]
            assert {x.partition for x in of_key} == {partition_of_key(b"k%d" % number, 4)}

    on_cluster(work)


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec(on_cluster: OnCluster, name: str, codec: Compression) -> None:
    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, ProducerSettings(compression=codec)) as producer:
            for n in range(100):
                await producer.send(name, b"same words again %d" % n)
        assert [x.value for x in await read_all(cluster, name)] == [b"same words again %d" % n for n in range(100)]

    on_cluster(work)


@pytest.mark.parametrize(("acks", "offset"), [(0, -1), (1, 0), (-1, 0)])
def test_acks(on_cluster: OnCluster, name: str, acks: int, offset: int) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1)])
        async with Producer(cluster, ProducerSettings(acks=acks, idempotent=acks == -1)) as producer:
            assert (await (await producer.send(name, b"x"))).offset == offset
            await producer.flush()
        async with Consumer(cluster) as consumer:
            await consumer.assign({TopicPartition(name, 0): START})
            assert [x.value for x in await consumer.poll(timeout_ms=10_000)] == [b"x"]

    on_cluster(work)


def test_batches_encoded_elsewhere_are_sent_as_they_are(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1)])
        batch = records.encode([Record(n, 1000, None, b"%d" % n) for n in range(5)])
        async with Producer(cluster) as producer:
            first = await producer.send_batch(name, 0, batch)
            second = await producer.send_batch(name, 0, batch)
            assert [(await first).offset, (await second).offset] == [0, 5]
        assert producer.delivered == 10

    on_cluster(work)


def test_memory_is_bounded_and_senders_wait(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        settings = ProducerSettings(buffer_bytes_max=20_000, batch_bytes=5_000)
        async with Producer(cluster, settings) as producer:
            for _ in range(200):
                await producer.send(name, b"x" * 1_000)
                assert producer._unsettled_bytes <= 20_000
        assert (producer.delivered, producer.failed) == (200, 0)

    on_cluster(work)


def test_a_message_that_is_too_large_costs_only_itself(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1, config={"max.message.bytes": "2000"})])
        producer = Producer(cluster, ProducerSettings(batch_bytes=1_000, linger_ms=0))
        sent: list[Delivery] = []
        for n in range(20):
            sent.append(await producer.send(name, b"%d" % n + b"x" * (5_000 if n == 3 else 100)))
            await asyncio.sleep(0)
        with pytest.raises(BatchTooLarge, match=f"{name}/0.*MESSAGE_TOO_LARGE"):
            await producer.flush()
        with pytest.raises(BatchTooLarge):
            await sent[3]
        # What was in flight behind it was refused as out of order, and sent again under a new epoch.
        await producer.send(name, b"last")
        await producer.close()
        values = [x.value or b"" for x in await read_all(cluster, name)]
        assert [v.rstrip(b"x") for v in values] == [b"%d" % n for n in range(20) if n != 3] + [b"last"]

    on_cluster(work)


def test_a_failure_that_nobody_awaited_is_raised_when_the_producer_is_closed(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1, config={"max.message.bytes": "2000"})])
        producer = Producer(cluster)
        await producer.send(name, b"x" * 5_000)
        await producer.drain()
        with pytest.raises(BatchTooLarge):
            await producer.close()

    on_cluster(work)


def test_a_partition_or_topic_that_is_not_there(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=2)])
        async with Producer(cluster, ProducerSettings(create_topics=False)) as producer:
            with pytest.raises(InvalidPartitions, match="has no partition 2: it has 2, from 0 to 1"):
                await producer.send(name, b"x", partition=2)
            with pytest.raises(TopicMissing, match="does not exist"):
                await producer.send(name + ".other", b"x")

    on_cluster(work)


def test_a_closed_producer_says_so(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        producer = Producer(cluster)
        await producer.close()
        with pytest.raises(Closed, match="make a new one"):
            await producer.send(name, b"x")

    on_cluster(work)


@pytest.mark.parametrize(
    "settings", [{"acks": 2}, {"acks": 1}, {"in_flight_max": 6}, {"in_flight_max": 0}, {"partitioner": "any"}]
)
def test_settings_that_make_no_sense(on_cluster: OnCluster, settings: dict[str, int]) -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(InvalidConfig, match=r"can't be|needs"):
            Producer(cluster, ProducerSettings(**settings))  # type: ignore[arg-type]

    on_cluster(work)


def test_through_a_crash_of_the_broker_nothing_is_lost_doubled_or_reordered(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:

        async def work(cluster: Cluster) -> None:
            loop = asyncio.get_running_loop()
            await Admin(cluster).create_topics([NewTopic("t", partitions=2)])
            async with Producer(cluster, ProducerSettings(linger_ms=0, batch_bytes=2_000)) as producer:
                for n in range(3_000):
                    await producer.send("t", b"%d" % n, partition=n % 2)
                    if n % 100 == 0:
                        await asyncio.sleep(0.001)
                    if n in (1_000, 2_000):
                        await loop.run_in_executor(None, process.kill)
                        await loop.run_in_executor(None, process.start)
            assert (producer.delivered, producer.failed) == (3_000, 0)
            found = await read_all(cluster, "t")
            for partition in (0, 1):
                values = [int(x.value or b"") for x in found if x.partition == partition]
                assert values == list(range(partition, 3_000, 2))

        talk(process.kafka, work)


def test_without_a_broker_messages_are_given_up_at_their_deadline(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:

        async def work(cluster: Cluster) -> None:
            await Admin(cluster).create_topics([NewTopic("t", partitions=1)])
            settings = ProducerSettings(delivery_timeout_ms=400, block_timeout_ms=50, buffer_bytes_max=3_000)
            producer = Producer(cluster, settings)
            await (await producer.send("t", b"x"))
            await asyncio.get_running_loop().run_in_executor(None, process.kill)
            late = await producer.send("t", b"x" * 2_900)
            with pytest.raises(BufferFull, match="bytes wait to be sent"):
                await producer.send("t", b"x" * 2_900)
            with pytest.raises(RequestTimedOut, match="1 messages for t/0 were not delivered"):
                await late
            with pytest.raises(RequestTimedOut):
                await producer.flush()
            await producer.close()

        talk(process.kafka, work)


def test_numbered_batches_do_not_overtake_each_other_when_the_socket_is_full(on_cluster: OnCluster, name: str) -> None:
    """Far more bytes than the write buffer holds, so that requests wait for room while others are made."""

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1, config={"flush.mode": "os"})])
        async with Producer(cluster, ProducerSettings(batch_bytes=400_000, linger_ms=0)) as producer:
            for n in range(600):
                await producer.send(name, b"%d " % n + bytes(50_000))
                if n % 7 == 0:
                    await asyncio.sleep(0)
        assert (producer.delivered, producer.failed) == (600, 0)
        found = await read_all(cluster, name)
        assert [int((x.value or b"").split()[0]) for x in found] == list(range(600))

    on_cluster(work)
