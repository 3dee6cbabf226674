"""What a client knows of a cluster: brokers, topics, and who leads what. Values only; `cluster` keeps them fresh."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from runnel.wire.kafka import messages as m


class TopicPartition(NamedTuple):
    """One partition, by the names people use."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class BrokerAddress(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Partition:
    number: int
    leader: int  # -1: none
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    internal: bool
    partitions: Mapping[int, Partition]
    led: tuple[int, ...]  # the partitions that have a leader now, or all if none has
    places: Mapping[int, TopicPartition]  # made once, for those who need one for every message
    read_at: float = 0.0  # loop time; says when to look again

    @property
    def has_id(self) -> bool:
        return self.id.int != 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One answer to Metadata."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, Topic]
    errors: Mapping[str, int] = field(default_factory=dict)  # topic -> code


def view_of(answer: m.MetadataResponse, now: float) -> ClusterView:
    topics = {t.name: _topic_of(t, now) for t in answer.topics if t.name is not None}
    errors = {t.name: t.error_code for t in answer.topics if t.error_code and t.name is not None}
    return ClusterView(
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        brokers={b.node_id: BrokerAddress(b.node_id, b.host, b.port, b.rack) for b in answer.brokers},
        topics={name: topic for name, topic in topics.items() if name not in errors},
        errors=errors,
    )


def _topic_of(topic: m.MetadataResponse.MetadataResponseTopic, now: float) -> Topic:
    partitions = {
        p.partition_index: Partition(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
        )
        for p in topic.partitions
    }
    assert topic.name is not None
    return _made(topic.name, topic.topic_id, topic.is_internal, partitions, now)


def _made(name: str, topic_id: UUID, internal: bool, partitions: Mapping[int, Partition], now: float) -> Topic:
    ordered = dict(sorted(partitions.items()))
    led = tuple(p.number for p in ordered.values() if p.leader >= 0) or tuple(ordered)
    places = {number: TopicPartition(name, number) for number in ordered}
    return Topic(name, topic_id, internal, ordered, led, places, now)


def newer(old: Topic | None, new: Topic) -> Topic:
    """Merge: a broker that lags behind must not take a partition back to an older leader epoch."""
    if old is None or old.id != new.id:
        return new
    partitions = dict(new.partitions)
    for number, known in old.partitions.items():
        told = partitions.get(number)
        if told is not None and told.leader_epoch != -1 and told.leader_epoch < known.leader_epoch:
            partitions[number] = known
    return _made(new.name, new.id, new.internal, partitions, new.read_at)
