"""Partitions whose leaders change while transactions are open in them."""

import asyncio
from pathlib import Path

import pytest
from tests.test_replication import Brokers, cluster_of, run
from tests.test_transactions import PARTITIONS, coordinator, made, read, write

from runnel.client.producer import Producer
from runnel.client.sender import ProducerSettings
from runnel.replica.partition import Partition


def copies(brokers: Brokers) -> list[Partition]:
    """Every copy of the topic's partitions on the brokers that live."""
    return [copy for server in brokers.up.values() for copy in server.broker.partitions if copy.topic == "t"]


async def until_settled(brokers: Brokers) -> None:
    """Return when on leaders and followers alike all is committed, and nothing is open."""
    while not all(copy.last_stable_offset == copy.high_watermark == copy.log.end_offset for copy in copies(brokers)):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_on_under_the_next_leaders(tmp_path: Path, classic: bool, commit: bool) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers, brokers.client() as cluster:
            await made(cluster)
            settings = ProducerSettings(transactional_id="tx", classic_transactions=classic)
            async with Producer(cluster, settings) as producer:
                async with producer.transaction():
                    kept = await write(producer, "first")
                await until_settled(brokers)
                start = {copy.key.number: copy.high_watermark for copy in copies(brokers)}
                await producer.begin()
                values = await write(producer, "before")
                await producer.flush()
                await brokers.kill(next(number for number in brokers.up if number != coordinator(brokers, "tx")))
                values += await write(producer, "after")
                await producer.flush()
                for copy in copies(brokers):
                    assert copy.last_stable_offset <= start[copy.key.number], copy.name
                assert await read(cluster, PARTITIONS) == kept
                await (producer.commit() if commit else producer.abort())
                async with producer.transaction():
                    more = await write(producer, "more")
            expected = sorted(kept + more + (values if commit else []))
            assert await read(cluster, len(expected)) == expected
            await until_settled(brokers)

    run(main())
