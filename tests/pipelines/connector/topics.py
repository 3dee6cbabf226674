"""Topics with known messages, for tests that read them."""

import time
from collections.abc import Iterable, Mapping

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from runnel.client.producer import Producer, ProducerSettings
from runnel.pipelines.connector.gateway import Gateway


class Topic:
    """One topic, through a gateway."""

    def __init__(self, gate: Gateway, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
        self.gate = gate
        self.name = name
        settings = {key.replace("_", "."): value for key, value in config.items()}
        gate.run(Admin(gate.cluster).create_topics([NewTopic(name, partitions, replicas, settings)]))

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.name, partition)

    def send(self, counts: Mapping[int, int] | int, *, batch: int = 10, size: int = 0, time_ms: int = 0) -> None:
        """So many numbered messages into each partition, in batches of a known size."""
        wanted = {0: counts} if isinstance(counts, int) else counts
        self.gate.run(_send(self.gate.cluster, self.name, wanted, batch, size, time_ms))

    def transact(self, values: Iterable[bytes], *, commit: bool, partition: int = 0) -> None:
        """Messages in a transaction that ends one way or the other."""
        self.gate.run(_transact(self.gate.cluster, self.name, list(values), commit, partition))
        self.settle(partition)

    def settle(self, partition: int = 0) -> None:
        """Wait until no transaction is open: its marker comes after the answer to whoever ended it."""
        where = [self.at(partition)]
        while self.gate.ends(where, READ_COMMITTED) != self.gate.ends(where, READ_UNCOMMITTED):
            time.sleep(0.01)

    def trim(self, before: int, partition: int = 0) -> None:
        """Remove what lies before an offset, as retention does."""
        self.gate.run(Admin(self.gate.cluster).delete_records({self.at(partition): before}))

    def grow(self, partitions: int) -> None:
        self.gate.run(Admin(self.gate.cluster).create_partitions(self.name, partitions))

    def delete(self) -> None:
        self.gate.run(Admin(self.gate.cluster).delete_topics([self.name]))


async def _send(cluster: Cluster, name: str, counts: Mapping[int, int], batch: int, size: int, time_ms: int) -> None:
    async with Producer(cluster, ProducerSettings(linger_ms=10_000)) as producer:
        for partition, count in counts.items():
            for n in range(count):
                when = time_ms + n if time_ms else None
                await producer.send(
                    name, b"%d" % n + bytes(size), key=b"k%d" % n, partition=partition, timestamp_ms=when
                )
                if n % batch == batch - 1:
                    await producer.flush()


async def _transact(cluster: Cluster, name: str, values: list[bytes], commit: bool, partition: int) -> None:
    async with Producer(cluster, ProducerSettings(transactional_id=f"{name}-tx", linger_ms=0)) as producer:
        await producer.begin()
        for value in values:
            await producer.send(name, value, partition=partition)
        await producer.flush()  # an abort would drop what was not sent yet
        await (producer.commit() if commit else producer.abort())
