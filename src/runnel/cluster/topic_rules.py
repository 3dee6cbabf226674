"""What a topic may be: names, numbers of partitions, replication factors and assignments by hand, as Kafka has it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runnel.cluster.image import VIEW_FILTER, VIEW_OF, VIEW_OF_ID, Image, Partition
from runnel.cluster.placement import Candidate, Replicas, place
from runnel.model.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    ReadOnlyTopic,
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
    beside: bool = False  # may have a name that differs from another in '.' and '_' alone: nobody chose it


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


def check_name(image: Image, name: str, *, beside: bool = False) -> None:
    """Refuse a name that can't be, that is taken, or that metrics could not tell from one that is (not if `beside`)."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise InvalidTopicName(problem)
    if name in image.names:
        raise TopicAlreadyExists(f"topic {name!r} already exists")
    other = image.collision(name)
    if other is not None and not beside:
        raise InvalidTopicName(f"topic name {name!r} collides with topic {other!r}: '.' and '_' count as the same")


def view_config(image: Image, spec: NewTopic) -> dict[str, str]:
    """The settings of a new view, which names its source for ever; refuses what a view can't be."""
    unfit = sorted(spec.config.keys() - {VIEW_OF, VIEW_FILTER})
    if unfit:
        raise InvalidConfig(f"view {spec.name!r} has no data that {', '.join(unfit)} could be about: leave it out")
    if VIEW_FILTER not in spec.config:
        raise InvalidConfig(f"view {spec.name!r} needs {VIEW_FILTER}: a condition, or TRUE for all messages")
    source = image.topic(spec.config[VIEW_OF])
    if source is None or source.is_view:
        why = "does not exist" if source is None else "is a view itself: name its source"
        raise InvalidConfig(f"view {spec.name!r} can't be made: topic {spec.config[VIEW_OF]!r} {why}")
    if spec.partitions not in (USE_DEFAULT, len(source.partitions)) or spec.assignment is not None:
        raise InvalidPartitions(
            f"view {spec.name!r} has the {len(source.partitions)} partitions of its source: do not ask for others"
        )
    return {**spec.config, VIEW_OF_ID: str(source.id)}


def check_view_settings(name: str, was: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Refuse what would make a topic a view, a view a topic, or a view one of another topic."""
    if any(was.get(setting) != values.get(setting) for setting in (VIEW_OF, VIEW_OF_ID)):
        raise InvalidConfig(f"topic {name!r}: what it is a view of is said once, when it is made; make another one")
    if VIEW_OF not in values:
        if VIEW_FILTER in values:
            raise InvalidConfig(f"topic {name!r} is no view: it can't have {VIEW_FILTER}")
        return
    unfit = sorted(values.keys() - {VIEW_OF, VIEW_OF_ID, VIEW_FILTER})
    if unfit or VIEW_FILTER not in values:
        raise InvalidConfig(f"view {name!r} can have another {VIEW_FILTER}, and no other setting")


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
    return place(candidates(image), partitions, factor, rng)


def candidates(image: Image) -> list[Candidate]:
    """The brokers that can take new replicas: those that serve, and those that did and are away, or on their way.

    A broker that starts for the first time may never be ready: it does not count before it is admitted.
    """
    serving = [Candidate(each.id, each.rack) for each in image.brokers.values() if each.serving]
    away = [Candidate(each.broker, each.rack, serving=False) for each in image.admitted.values()]
    return [*serving, *(each for each in away if not image.serves(each.id))]


def _default_factor(image: Image, defaults: Defaults) -> int:
    return defaults.replication_factor or max(1, min(REPLICAS_USUAL, len(candidates(image))))


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
    """An assignment by hand, if each partition has the same number of replicas, each on a broker of its own.

    A broker may be away, but one of each partition has to serve: it leads, and the others copy from it.
    """
    placed = [tuple(replicas) for replicas in assignment]
    for replicas in placed:
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"topic {name!r}: replicas {list(replicas)} must name each broker once")
        if len(replicas) != len(placed[0]):
            raise InvalidReplicaAssignment(f"topic {name!r}: all partitions must have the same number of replicas")
        for broker in replicas:
            if broker not in image.registered:
                raise InvalidReplicaAssignment(f"topic {name!r}: broker {broker} is not registered")
        if not any(map(image.serves, replicas)):
            raise InvalidReplicaAssignment(f"topic {name!r}: none of the brokers {list(replicas)} serves now: name one")
    return placed


def more_replicas(image: Image, spec: NewPartitions, rng: Rng) -> list[Replicas]:
    """Where additional partitions go; they have as many replicas as the topic's first partition."""
    topic = image.topic_named(spec.name)
    if topic.is_view:
        raise ReadOnlyTopic(f"topic {spec.name!r} is a view: it gets more partitions when its source does")
    present = topic.partitions
    added = spec.total - len(present)
    if added < 1:
        raise InvalidPartitions(
            f"topic {spec.name!r} has {len(present)} partitions, {spec.total} were asked for: the number can only grow"
        )
    factor = len(present[0].replicas)
    if spec.assignment is None:
        return place(candidates(image), added, factor, rng)
    if len(spec.assignment) != added:
        raise InvalidReplicaAssignment(
            f"topic {spec.name!r} gets {added} partitions, but {len(spec.assignment)} were assigned by hand"
        )
    placed = checked(image, spec.name, spec.assignment)
    if len(placed[0]) != factor:
        raise InvalidReplicaAssignment(f"topic {spec.name!r} has {factor} replicas a partition, not {len(placed[0])}")
    return placed


def new_partition(image: Image, replicas: Replicas) -> Partition:
    """A partition at its beginning: the replicas that serve are in sync, for there is nothing to copy.

    A replica that is away is not, nor is it eligible: by the time it is back, it may lack what was committed.
    """
    serving = tuple(broker for broker in replicas if image.serves(broker))
    isr = replicas if serving == replicas else serving  # one tuple for both: there are many partitions
    return Partition(serving[0], Epoch(0), Epoch(0), replicas, isr)
