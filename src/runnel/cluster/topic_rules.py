"""What a topic may be: names, numbers of partitions, replication factors and assignments by hand, as Kafka has it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runnel.cluster.image import NO_LEADER, Broker, Image, Partition
from runnel.cluster.placement import Replicas, place
from runnel.model.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    TopicAlreadyExists,
)
from runnel.model.ids import BrokerId, Epoch
from runnel.model.limits import topic_name_problem
from runnel.model.seams import Rng
from runnel.model.topic_config import TopicConfig

USE_DEFAULT: Final = -1  # what requests carry when the broker shall choose
REPLICAS_USUAL: Final = 3  # one may be lost, and the next one too while it is away


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic as asked for."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignment: Mapping[int, Sequence[BrokerId]] | None = None  # partition -> replicas, preferred leader first
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """More partitions of a topic, as asked for."""

    name: str
    total: int
    assignment: Sequence[Sequence[BrokerId]] | None = None  # of the new partitions only


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request does not say."""

    partitions: int = 1
    replication_factor: int = 1  # 0: as many as is usual, or as there are brokers
    config: TopicConfig = field(default_factory=TopicConfig)


def check_name(image: Image, name: str) -> None:
    """Refuse a name that can't be, that is taken, or that metrics could not tell from one that is."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise InvalidTopicName(problem)
    if name in image.names:
        raise TopicAlreadyExists(f"topic {name!r} already exists")
    other = image.collision(name)
    if other is not None:
        raise InvalidTopicName(f"topic name {name!r} collides with topic {other!r}: '.' and '_' count as the same")


def replicas_of(image: Image, spec: NewTopic, defaults: Defaults, rng: Rng) -> list[Replicas]:
    """Where the partitions of a new topic go, by hand or by placement."""
    if spec.assignment is not None:
        return _by_hand(image, spec, spec.assignment)
    partitions = defaults.partitions if spec.partitions == USE_DEFAULT else spec.partitions
    factor = _default_factor(image, defaults) if spec.replication_factor == USE_DEFAULT else spec.replication_factor
    if partitions < 1:
        raise InvalidPartitions(f"topic {spec.name!r} can't have {partitions} partitions: at least 1 is needed")
    if factor < 1:
        raise InvalidReplicationFactor(
            f"topic {spec.name!r} can't have replication factor {factor}: at least 1, or -1 for the default"
        )
    return place(_serving(image), partitions, factor, rng)


def _serving(image: Image) -> list[Broker]:
    """Who can take new replicas: a broker that starts may never be ready, one that stops will be gone."""
    return [broker for broker in image.brokers.values() if broker.serving]


def _default_factor(image: Image, defaults: Defaults) -> int:
    return defaults.replication_factor or max(1, min(REPLICAS_USUAL, len(_serving(image))))


def _by_hand(image: Image, spec: NewTopic, assignment: Mapping[int, Sequence[BrokerId]]) -> list[Replicas]:
    if spec.partitions != USE_DEFAULT or spec.replication_factor != USE_DEFAULT:
        raise InvalidRequest(
            f"topic {spec.name!r} has an assignment by hand: partitions and replication factor must both be -1"
        )
    if sorted(assignment) != list(range(len(assignment))) or not assignment:
        raise InvalidReplicaAssignment(
            f"topic {spec.name!r}: the partitions of an assignment must be 0, 1, 2 ... without a gap"
        )
    return checked(image, spec.name, [assignment[number] for number in range(len(assignment))])


def checked(image: Image, name: str, assignment: Iterable[Sequence[BrokerId]]) -> list[Replicas]:
    """An assignment by hand, if each partition has the same number of replicas, each on a living broker of its own."""
    placed = [tuple(replicas) for replicas in assignment]
    for replicas in placed:
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"topic {name!r}: replicas {list(replicas)} must name each broker once")
        if len(replicas) != len(placed[0]):
            raise InvalidReplicaAssignment(f"topic {name!r}: all partitions must have the same number of replicas")
        for broker in replicas:
            if broker not in image.brokers:
                raise InvalidReplicaAssignment(f"topic {name!r}: broker {broker} is not alive")
    return placed


def more_replicas(image: Image, spec: NewPartitions, rng: Rng) -> list[Replicas]:
    """Where additional partitions go; they have as many replicas as the topic's first partition."""
    present = image.topic_named(spec.name).partitions
    added = spec.total - len(present)
    if added < 1:
        raise InvalidPartitions(
            f"topic {spec.name!r} has {len(present)} partitions, {spec.total} were asked for: the number can only grow"
        )
    factor = len(present[0].replicas)
    if spec.assignment is None:
        return place(_serving(image), added, factor, rng)
    if len(spec.assignment) != added:
        raise InvalidReplicaAssignment(
            f"topic {spec.name!r} gets {added} partitions, but {len(spec.assignment)} were assigned by hand"
        )
    placed = checked(image, spec.name, spec.assignment)
    if len(placed[0]) != factor:
        raise InvalidReplicaAssignment(f"topic {spec.name!r} has {factor} replicas a partition, not {len(placed[0])}")
    return placed


def new_partition(replicas: Replicas, brokers: Mapping[BrokerId, Broker]) -> Partition:
    """A partition at its beginning: all replicas that serve are in sync, for there is nothing to copy."""
    serving = tuple(broker for broker in replicas if broker in brokers and brokers[broker].serving)
    if serving == replicas or not serving:
        return Partition(serving[0] if serving else NO_LEADER, Epoch(0), Epoch(0), replicas, replicas)
    return Partition(serving[0], Epoch(0), Epoch(0), replicas, serving)
