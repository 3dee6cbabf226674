"""Reading by assignment: positions, batches, waiting, and what is passed over."""

import asyncio

import pytest
from tests.client.talk import OnCluster

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, Node
from runnel.client.consumer import Consumer
from runnel.client.errors import Closed, TopicMissing
from runnel.client.fetcher import Fetcher, FetchSettings, Reading
from runnel.client.metadata import TopicPartition
from runnel.client.positions import END, START, From, Position
from runnel.client.producer import Producer, ProducerSettings
from runnel.model.errors import InvalidConfig, OffsetOutOfRange


async def fill(cluster: Cluster, name: str, count: int, *, batch: int = 10, partitions: int = 1) -> None:
    """A topic with numbered messages, in batches of a known size."""
    await Admin(cluster).create_topics([NewTopic(name, partitions=partitions)])
    async with Producer(cluster, ProducerSettings(linger_ms=10_000)) as producer:
        for n in range(count):
            await producer.send(name, b"%d" % n, partition=n % partitions)
            if n % batch == batch - 1:
                await producer.flush()


async def values(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [int(x.value or b"") for x in await consumer.poll(timeout_ms=10_000)]
    return found


def test_no_messages_at_all_can_not_be_asked_for(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        async with Consumer(cluster) as consumer:
            with pytest.raises(InvalidConfig, match="ask for 1 or more"):
                await consumer.poll(count_max=0)

    on_cluster(work)


def test_all_in_order_however_few_at_a_time(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 35)
        async with Consumer(cluster) as consumer:
            await consumer.assign({where: START})
            seen: list[int] = []
            while len(seen) < 35:
                seen += [int(x.value or b"") for x in await consumer.poll(count_max=7, timeout_ms=10_000)]
                assert consumer.positions[where] == len(seen)
            assert seen == list(range(35))
            assert consumer.lag(where) == 0
            assert await consumer.poll(timeout_ms=10) == []

    on_cluster(work)


@pytest.mark.parametrize(
    ("position", "first"), [(Position(From.OFFSET, 13), 13), (Position(From.END, 4), 16), (Position(From.START, 1), 1)]
)
def test_a_position_inside_a_batch(on_cluster: OnCluster, name: str, position: Position, first: int) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 20)
        async with Consumer(cluster) as consumer:
            await consumer.assign({TopicPartition(name, 0): position})
            assert await values(consumer, 20 - first) == list(range(first, 20))

    on_cluster(work)


def test_several_partitions_each_in_order(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 60, partitions=3)
        async with Consumer(cluster) as consumer:
            await consumer.assign({TopicPartition(name, n): START for n in range(3)})
            found = await values(consumer, 60)
            assert [[v for v in found if v % 3 == n] for n in range(3)] == [list(range(n, 60, 3)) for n in range(3)]

    on_cluster(work)


def test_waiting_ends_when_a_message_comes(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 3)
        async with Consumer(cluster, FetchSettings(wait_ms=60_000)) as consumer:
            await consumer.assign({TopicPartition(name, 0): END})
            waiting = asyncio.create_task(values(consumer, 1))
            async with Producer(cluster) as producer:
                await producer.send(name, b"99")
            async with asyncio.timeout(45):  # woken, not after its wait
                assert await waiting == [99]

    on_cluster(work)


def test_seeking_back_reads_again(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 20)
        async with Consumer(cluster) as consumer:
            await consumer.assign({where: START})
            await consumer.poll(count_max=5, timeout_ms=10_000)
            await consumer.seek(where, 2)
            assert await values(consumer, 18) == list(range(2, 20))
            await consumer.seek(where, START)
            assert await values(consumer, 20) == list(range(20))

    on_cluster(work)


def test_paused_partitions_bring_nothing(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 5)
        async with Consumer(cluster) as consumer:
            consumer.fetcher.assign({})
            await consumer.assign({where: END})
            consumer.fetcher.pause([where])
            await consumer.seek(where, 0)
            consumer.fetcher.pause([where])
            await consumer.poll(timeout_ms=200)  # at most what was under way
            position = consumer.positions[where]
            assert await consumer.poll(timeout_ms=50) == []
            consumer.fetcher.pause([where], paused=False)
            assert await values(consumer, 5 - position) == list(range(position, 5))

    on_cluster(work)


def test_batches_as_they_came(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 30)
        async with Consumer(cluster) as consumer:
            await consumer.assign({where: START})
            count = 0
            while count < 30:
                for batch in await consumer.poll_batches(timeout_ms=10_000):
                    assert len(batch.data) == batch.header.size
                    count += batch.header.count
            assert consumer.positions[where] == 30

    on_cluster(work)


def test_a_small_buffer_still_brings_everything(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 100)
        settings = FetchSettings(buffer_bytes_max=1, bytes_max=1, partition_bytes_max=1)
        async with Consumer(cluster, settings) as consumer:
            await consumer.assign({TopicPartition(name, 0): START})
            assert await values(consumer, 100) == list(range(100))

    on_cluster(work)


@pytest.mark.parametrize(("reset", "first"), [("earliest", 8), ("latest", None), ("none", None)])
def test_an_offset_that_is_gone(on_cluster: OnCluster, name: str, reset: str, first: int | None) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 20)
        await Admin(cluster).delete_records({where: 8})
        async with Consumer(cluster, FetchSettings(reset=reset)) as consumer:
            await consumer.assign({where: 3})
            if reset == "none":
                with pytest.raises(OffsetOutOfRange, match=f"can't fetch {name}/0 at 3: .* OFFSET_OUT_OF_RANGE"):
                    await consumer.poll(timeout_ms=10_000)
            elif reset == "latest":
                assert await consumer.poll(timeout_ms=300) == []
            else:
                assert await values(consumer, 12) == list(range(8, 20))

    on_cluster(work)


def test_who_does_not_lead_a_partition_any_more_is_not_asked_for_it(on_cluster: OnCluster, name: str) -> None:
    """The leader may change while a connection to the last one is made."""

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 3)
        leader = cluster.brokers[(await cluster.leader(TopicPartition(name, 0))).broker]
        fetcher, reading = Fetcher(cluster), Reading(TopicPartition(name, 0), 0)
        other = Node(leader._replace(id=leader.id + 1), cluster.settings)
        for node, answers in ((other, 0), (cluster.broker(leader.id), 1)):
            assert len((await fetcher._ask(node, [reading])).responses) == answers
        other.close()
        await fetcher.close()

    on_cluster(work)


def test_a_topic_that_is_deleted_is_reported(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 5)
        async with Consumer(cluster, FetchSettings(wait_ms=50)) as consumer:
            await consumer.assign({TopicPartition(name, 0): START})
            await values(consumer, 5)
            await Admin(cluster).delete_topics([name])

            async def poll_on() -> None:
                while True:
                    await consumer.poll(timeout_ms=200)

            async with asyncio.timeout(60):
                with pytest.raises(TopicMissing, match=f"topic '{name}' does not exist"):
                    await poll_on()

    on_cluster(work)


def test_a_closed_consumer_says_so(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        consumer = Consumer(cluster)
        await consumer.close()
        with pytest.raises(Closed, match="make a new one"):
            await consumer.poll()

    on_cluster(work)


def test_it_can_be_looped_over(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 5)
        async with Consumer(cluster) as consumer:
            await consumer.assign({TopicPartition(name, 0): START})
            seen = []
            async for message in consumer:
                seen.append(message.offset)
                if len(seen) == 5:
                    break
            assert seen == [0, 1, 2, 3, 4]

    on_cluster(work)
