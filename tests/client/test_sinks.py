"""Batches that are written by many and published once, against a real broker."""

import asyncio

import pytest
from tests.client.talk import OnCluster
from tests.helpers.batches import Broken, Driver

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer, ProducerSettings
from runnel.client.sinks import Sinks
from runnel.client.transactions_admin import TransactionsAdmin
from runnel.model.errors import InvalidRequest, InvalidTransactionState, ProducerFenced, UnknownSink
from runnel.model.sinks import Begun, Handle

PARTITIONS = 3


async def made(cluster: Cluster, topic: str) -> None:
    await Admin(cluster).create_topics([NewTopic(topic, partitions=PARTITIONS)])


async def committed(cluster: Cluster, topic: str) -> list[bytes]:
    """All that readers see, up to a message that is sent now: nothing open is left before it."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with Producer(cluster) as producer:
        for where in places:
            await producer.send(topic, b"end", partition=where.partition)
    found: list[bytes] = []
    async with Consumer(cluster) as consumer, asyncio.timeout(30):
        await consumer.assign(dict.fromkeys(places, 0))
        while found.count(b"end") < PARTITIONS:
            found += [message.value or b"" for message in await consumer.poll()]
    return sorted(value for value in found if value != b"end")


async def write(sinks: Sinks, begun: Begun, topic: str, *values: bytes) -> Handle:
    async with sinks.writing(begun) as producer:
        for value in values:
            await producer.send(topic, value)
        handle = await producer.hand_over()
    assert handle is not None
    assert handle == begun.handle
    return handle


async def written(sinks: Sinks, topic: str, batch: int, partition: int, *values: bytes, attempt: int = 0) -> Handle:
    return await write(sinks, await sinks.begin(topic, batch, partition, attempt), topic, *values)


def test_a_batch_is_seen_when_it_is_published_and_all_of_it(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        handles = [await written(sinks, name, 0, partition, b"%d" % partition) for partition in range(5)]
        described = await sinks.describe(name)
        assert (described.last_batch, described.phase, len(described.attempts)) == (-1, "idle", 5)
        assert not (await sinks.commit(name, 0, handles)).repeated
        assert await committed(cluster, name) == [b"0", b"1", b"2", b"3", b"4"]
        described = await sinks.describe(name)
        assert (described.last_batch, described.phase, described.attempts) == (0, "idle", [])

    on_cluster(work)


def test_a_batch_is_published_once_whoever_asks_again(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        zombie = await written(sinks, name, 7, 0, b"another driver's", attempt=1)
        handle = await written(sinks, name, 7, 0, b"once", attempt=2)
        await sinks.commit(name, 7, [handle])
        assert (await sinks.begin(name, 7, 0, 3)).decided
        assert (await sinks.begin(name, 3, 0, 3)).decided
        assert (await sinks.commit(name, 7, [zombie])).repeated
        assert (await sinks.commit(name, 7, [handle])).repeated
        await sinks.abort(name, 7, [handle, zombie])
        assert await committed(cluster, name) == [b"once"]

    on_cluster(work)


def test_an_attempt_that_was_replaced_publishes_nothing_and_the_batch_is_written_anew(
    on_cluster: OnCluster, name: str
) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        begun = await sinks.begin(name, 0, 0, 0)
        async with sinks.writing(begun) as producer:
            await (await producer.send(name, b"zombie"))
            other = await written(sinks, name, 0, 1, b"other")
            new = await written(sinks, name, 0, 0, b"new")
            with pytest.raises((ProducerFenced, InvalidTransactionState)):
                await sinks.commit(name, 0, [begun.handle, other])  # type: ignore[list-item]
        await sinks.commit(name, 0, [new, other])
        assert await committed(cluster, name) == [b"new", b"other"]

    on_cluster(work)


def test_what_is_aborted_is_never_seen_and_its_slots_are_used_again(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        for attempt in range(4):
            handle = await written(sinks, name, 0, 0, b"dropped", attempt=attempt)
            await sinks.abort(name, 0, [handle])
            while (await sinks.describe(name)).attempts:
                await asyncio.sleep(0.005)
            assert handle.transactional_id == f"sink/{name}/0"
        await sinks.commit(name, 0, [await written(sinks, name, 0, 0, b"kept")])
        assert await committed(cluster, name) == [b"kept"]

    on_cluster(work)


def test_one_of_a_batch_that_can_not_be_published_stops_all_of_it(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        first = await written(sinks, name, 0, 0, b"first")
        late = await write(sinks, await sinks.begin(name, 0, 1, 0, transaction_timeout_ms=50), name, b"late")
        admin = TransactionsAdmin(cluster)
        async with asyncio.timeout(30):
            while (await admin.describe(late.transactional_id)).open:  # its time runs out; nobody tells the sink
                await asyncio.sleep(0.01)
        with pytest.raises(InvalidTransactionState, match="write it anew"):
            await sinks.commit(name, 0, [first, late])
        again = [await written(sinks, name, 0, number, b"again-%d" % number, attempt=1) for number in range(2)]
        await sinks.commit(name, 0, again)
        assert await committed(cluster, name) == [b"again-0", b"again-1"]

    on_cluster(work)


def test_an_empty_task_hands_nothing_over_and_an_empty_batch_is_published(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        async with sinks.writing(await sinks.begin(name, 0, 0, 0)) as producer:
            assert await producer.hand_over() is None
            with pytest.raises(InvalidTransactionState, match="handed over"):
                await producer.send(name, b"late")
        await sinks.commit(name, 0, [])
        assert (await sinks.begin(name, 0, 0, 1)).decided
        assert (await sinks.describe(name)).last_batch == 0

    on_cluster(work)


def test_two_attempts_at_one_partition_are_not_published_together(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        both = [await written(sinks, name, 0, 0, b"twice", attempt=attempt) for attempt in range(2)]
        with pytest.raises(InvalidRequest, match="Choose one"):
            await sinks.commit(name, 0, both)
        await sinks.commit(name, 0, both[:1])
        assert await committed(cluster, name) == [b"twice"]

    on_cluster(work)


def test_another_query_does_not_take_its_batches_for_published(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        await sinks.begin(name, 0, 0, 0, query="old")
        await sinks.commit(name, 0, [], query="old")
        with pytest.raises(InvalidRequest, match="belongs to the query old"):
            await sinks.begin(name, 0, 0, 0, query="new")
        with pytest.raises(InvalidRequest, match="belongs to the query old"):
            await sinks.commit(name, 0, [], query="new")
        await sinks.forget(name)
        assert not (await sinks.begin(name, 0, 0, 0, query="new")).decided

    on_cluster(work)


def test_a_sink_that_is_forgotten_leaves_nothing_open(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        sinks = Sinks(cluster)
        await written(sinks, name, 0, 0, b"lost")
        await written(sinks, name, 0, 1, b"lost")
        assert [(each.sink, each.attempts) for each in await sinks.list(name)] == [(name, 2)]
        assert await sinks.forget(name) == 2
        assert await sinks.list(name) == []
        with pytest.raises(UnknownSink):
            await sinks.describe(name)
        with pytest.raises(UnknownSink):
            await sinks.forget(name)
        assert await committed(cluster, name) == []

    on_cluster(work)


def test_batches_whose_tasks_fail_are_published_exactly_once(on_cluster: OnCluster, name: str) -> None:
    failed: set[tuple[str, int, int]] = set()

    async def fault(where: str, batch: int, partition: int, attempt: int) -> None:
        """The first at each place in every second batch fails; a driver after its commit, too."""
        if batch % 2 and (where, batch, partition) not in failed:
            failed.add((where, batch, partition))
            raise Broken

    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        driver = Driver(cluster, name, name, fault=fault)
        await driver.run(range(6))
        assert await committed(cluster, name) == sorted(value for batch in range(6) for value in driver.values(batch))
        assert max(driver.written.values()) > 1

    on_cluster(work)


def test_a_producer_without_a_transaction_has_nothing_to_hand_over(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, ProducerSettings(transactional_id=name)) as producer:
            with pytest.raises(InvalidTransactionState, match="begin it"):
                await producer.hand_over()
        with pytest.raises(InvalidRequest, match="published already"):
            async with Sinks(cluster).writing(Begun(decided=True)):
                pass

    on_cluster(work)
