"""Transactions over several brokers: leaders ask coordinators that are elsewhere, markers cross, coordinators die."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.test_replication import Brokers, cluster_of, run

from runnel.broker.markers import Markers, Written
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer
from runnel.client.sender import ProducerSettings
from runnel.model.errors import NotLeader, RunnelError
from runnel.transactions.values import DescribedTransaction

PARTITIONS = 6  # so that every broker leads some


async def made(cluster: Cluster) -> None:
    await Admin(cluster).create_topics([NewTopic("t", partitions=PARTITIONS, replicas=3)])


def coordinator(brokers: Brokers, transactional_id: str) -> int:
    """The broker that keeps a transactional id, once all living ones agree."""
    seen = {int(server.broker.transactions.shards.leader_of(transactional_id).id) for server in brokers.up.values()}
    return seen.pop() if len(seen) == 1 else -1


async def described(brokers: Brokers, transactional_id: str) -> DescribedTransaction | None:
    try:
        keeper = brokers.up[coordinator(brokers, transactional_id)]
        return await keeper.broker.transactions.describe(transactional_id)
    except (RunnelError, KeyError):
        return None


async def until_state(brokers: Brokers, transactional_id: str, state: str) -> None:
    while (found := await described(brokers, transactional_id)) is None or found.state.label != state:
        await asyncio.sleep(0.01)


async def read(cluster: Cluster, count: int) -> list[bytes]:
    """What is committed, until there are so many."""
    found: list[bytes] = []
    async with Consumer(cluster) as consumer:
        await consumer.assign({TopicPartition("t", number): 0 for number in range(PARTITIONS)})
        while len(found) < count:
            found += [message.value or b"" for message in await consumer.poll()]
    return sorted(found)


async def write(producer: Producer, name: str) -> list[bytes]:
    """One message for each partition."""
    values = [f"{name}-{number}".encode() for number in range(PARTITIONS)]
    for number, value in enumerate(values):
        await producer.send("t", value, partition=number)
    return values


def held(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No partition takes a marker until this is called."""
    shut = True

    def gated(real: Any) -> Any:
        async def write_markers(markers: Markers) -> Written:
            if not shut:
                written: Written = await real(markers)
                return written
            return {(ending.producer_id, *place): NotLeader("held") for ending, places in markers for place in places}

        return write_markers

    for server in brokers.up.values():
        monkeypatch.setattr(server.broker, "write_markers", gated(server.broker.write_markers))

    def let_go() -> None:
        nonlocal shut
        shut = False

    return let_go


@pytest.mark.parametrize("classic", [False, True])
def test_a_transaction_over_all_brokers_is_seen_as_a_whole_or_not_at_all(tmp_path: Path, classic: bool) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers, brokers.client() as cluster:
            await made(cluster)
            settings = ProducerSettings(transactional_id="tx", classic_transactions=classic)
            async with Producer(cluster, settings) as producer:
                await producer.begin()
                await write(producer, "given-up")
                await producer.flush()
                await producer.abort()
                async with producer.transaction():
                    values = await write(producer, "kept")
            assert await read(cluster, PARTITIONS) == values
            await until_state(brokers, "tx", "CompleteCommit")

    run(main())


@pytest.mark.parametrize("commit", [True, False])
def test_the_coordinator_dies_when_it_has_decided_and_the_next_one_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers, brokers.client() as cluster:
            await made(cluster)
            async with Producer(cluster, ProducerSettings(transactional_id="tx")) as producer:
                await producer.begin()
                values = await write(producer, "decided")
                await producer.flush()
                let_go = held(brokers, monkeypatch)
                await (producer.commit() if commit else producer.abort())
                await until_state(brokers, "tx", "PrepareCommit" if commit else "PrepareAbort")
                await brokers.kill(coordinator(brokers, "tx"))
                let_go()
                await until_state(brokers, "tx", "CompleteCommit" if commit else "CompleteAbort")
                async with producer.transaction():
                    more = await write(producer, "more")
            expected = sorted(values + more if commit else more)
            assert await read(cluster, len(expected)) == expected

    run(main())


def test_a_transaction_whose_producer_is_gone_does_not_hang_though_its_coordinator_dies(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers, brokers.client() as cluster:
            await made(cluster)
            settings = ProducerSettings(transactional_id="tx", transaction_timeout_ms=3_000)
            gone = Producer(cluster, settings)
            await gone.begin()
            await write(gone, "lost")
            await gone.flush()
            await brokers.kill(coordinator(brokers, "tx"))
            async with (
                Producer(cluster, ProducerSettings(transactional_id="other")) as producer,
                producer.transaction(),
            ):
                values = await write(producer, "kept")
            assert await read(cluster, PARTITIONS) == values
            await gone.close(flush=False)

    run(main())
