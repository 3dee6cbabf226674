"""Looking at transactions, and ending them from outside."""

import asyncio

import pytest
from tests.client.talk import OnCluster

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer, ProducerSettings
from runnel.client.transactions_admin import TransactionDescription, TransactionsAdmin
from runnel.model.errors import InvalidProducerEpoch, InvalidTransactionState, ProducerFenced, TransactionalIdNotFound


async def ended(admin: TransactionsAdmin, name: str) -> TransactionDescription:
    """Wait until all partitions know the end: a commit or abort is answered when it is decided."""
    async with asyncio.timeout(30):
        while not (found := await admin.describe(name)).state.startswith("Complete"):
            await asyncio.sleep(0.01)
    return found


async def opened(cluster: Cluster, name: str, partitions: int = 2) -> tuple[Producer, list[TopicPartition]]:
    """A producer whose transaction has written to every partition of a topic; both have this name."""
    await Admin(cluster).create_topics([NewTopic(name, partitions=partitions)])
    producer = Producer(cluster, ProducerSettings(transactional_id=name, linger_ms=0, transaction_timeout_ms=45_000))
    await producer.begin()
    places = [TopicPartition(name, n) for n in range(partitions)]
    for where in places:
        await (await producer.send(name, b"x", partition=where.partition))
    return producer, places


def test_a_transaction_is_listed_and_described_as_it_is(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = TransactionsAdmin(cluster)
        producer, places = await opened(cluster, name)
        before = await admin.describe(name)
        assert (before.id, before.state, before.open, before.timeout_ms) == (name, "Ongoing", True, 45_000)
        assert before.partitions == tuple(places)
        assert before.began_ms is not None
        assert 0 <= cluster.clock.wall_ms() - before.began_ms < 45_000
        (listed,) = await admin.transactions(producer_ids=[before.identity.producer_id])
        assert (listed.id, listed.state, listed.coordinator in cluster.brokers) == (name, "Ongoing", True)
        assert [x.id for x in await admin.transactions(states=["Ongoing"], pattern=f".*{name}.*")] == [name]
        await producer.close()
        after = await ended(admin, name)
        assert (after.open, after.partitions) == (False, ())
        assert name not in [x.id for x in await admin.transactions(states=["Ongoing"])]

    on_cluster(work)


def test_partitions_know_their_producers(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = TransactionsAdmin(cluster)
        producer, places = await opened(cluster, name)
        identity = (await admin.describe(name)).identity
        found = await admin.producers(places)
        assert [(p.where, p.identity, p.first_offset) for p in found] == [(where, identity, 0) for where in places]
        await producer.commit()
        await producer.close()
        await ended(admin, name)
        assert [p.first_offset for p in await admin.producers(places)] == [None, None]

    on_cluster(work)


def test_an_abort_by_id_fences_the_producer(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = TransactionsAdmin(cluster)
        producer, _ = await opened(cluster, name)
        found = await admin.describe(name)
        await admin.abort(found)
        after = await admin.describe(name)
        assert (after.open, after.timeout_ms) == (False, 45_000)
        assert after.identity > found.identity
        with pytest.raises(ProducerFenced):
            await producer.commit()
        await producer.close()
        with pytest.raises(InvalidTransactionState, match="nothing to abort"):
            await admin.abort(after)

    on_cluster(work)


def test_an_unknown_id_is_not_made_by_asking_for_it(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = TransactionsAdmin(cluster)
        for _ in range(2):
            with pytest.raises(TransactionalIdNotFound, match=f"transactional id '{name}'"):
                await admin.describe(name)

    on_cluster(work)


def test_an_abort_in_a_partition_only_where_nobody_knows_the_transaction(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = TransactionsAdmin(cluster)
        producer, places = await opened(cluster, name)
        (found,) = await admin.producers(places[:1])
        with pytest.raises(InvalidTransactionState, match=f"that of transactional id '{name}'.*abort it by its id"):
            await admin.abort_in_partition(found)
        await producer.commit()
        await producer.close()
        await ended(admin, name)
        with pytest.raises(InvalidProducerEpoch, match=f"in {name}/0"):
            await admin.abort_in_partition(found)  # of a transaction that was ended meanwhile
        (now,) = await admin.producers(places[:1])
        await admin.abort_in_partition(now)  # nothing is open: nothing to do, which is no failure
        assert (await admin.producers(places[:1]))[0].first_offset is None

    on_cluster(work)
