"""Moving replicas to other brokers (KIP-455). Pure.

    replicas  = those that are meant to be, in their order, then those that will go
    adding    = those that were not there before; removing = those that will go

Rule 1: a partition never has fewer replicas than before, until everyone it is meant for is in sync. Then, in the same
        change, the others are gone, and one of those who stay leads (`drafting`).
Rule 2: what is under way can be replaced or taken back at any time. Replicas that are not meant to be any more and were
        not there before go at once, unless nobody else is in sync: what they alone have must not go with them.
Rule 3: a replica can be added on a broker that is registered; where one is already, the broker may be away.
"""

from collections.abc import Sequence
from typing import NamedTuple

from runnel.cluster.decision import Decision
from runnel.cluster.drafting import Changes, Draft, Living, RuleBook
from runnel.cluster.image import Image, Partition
from runnel.cluster.placement import Replicas
from runnel.model.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    RunnelError,
    UnknownTopic,
    as_value,
)
from runnel.model.ids import BrokerId
from runnel.model.topic_config import TopicConfig


class Move(NamedTuple):
    """What the replicas of a partition are to be, preferred leader first; None takes back what is under way."""

    topic: str
    number: int
    target: tuple[BrokerId, ...] | None


def reassign(
    image: Image, moves: Sequence[Move], base: TopicConfig, *, factor_may_change: bool = True
) -> Decision[Partition]:
    """For each partition: what it becomes, or why not."""
    living, book, changes = Living.of(image.brokers.values()), RuleBook(image, base), Changes(image)
    results: list[Partition | RunnelError] = []
    keys: list[object] = []
    for move in moves:
        try:
            topic = image.topic_named(move.topic)
            if not 0 <= move.number < len(topic.partitions):
                raise UnknownTopic(f"topic {topic.name!r} has no partition {move.number}")
            present = changes.partition(topic, move.number)
            draft = Draft(present, book.of(topic))
            _place(draft, move, _target(image, present, move, factor_may_change))
            draft.settle(living)
            results.append(changes.put(topic, move.number, draft))
            keys.append(topic.id)
        except RunnelError as error:
            results.append(as_value(error))
            keys.append(None)
    return Decision(changes.delta, results, keys, changes.unclean)


def original(partition: Partition) -> Replicas:
    """The replicas before the reassignment that is under way, if there is one."""
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def _target(image: Image, present: Partition, move: Move, factor_may_change: bool) -> Replicas:
    """Where the replicas are to be, if they can be there."""
    where = f"{move.topic}-{move.number}"
    before = original(present)
    if move.target is None:
        if not (present.adding or present.removing):
            raise NoReassignmentInProgress(f"{where} is not being moved: there is nothing to take back")
        return before
    target = move.target
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"{where}: replicas {list(target)} must name at least one broker, and each once")
    unknown = sorted(set(target) - image.registered - set(before))
    if unknown:
        known = ", ".join(map(str, sorted(image.registered)))
        raise InvalidReplicaAssignment(f"{where}: brokers {unknown} are not registered: name some of {known}")
    if not factor_may_change and len(target) != len(before):
        raise InvalidReplicationFactor(f"{where} has {len(before)} replicas, {len(target)} were asked for")
    return target


def _place(draft: Draft, move: Move, target: Replicas) -> None:
    before = tuple(broker for broker in draft.replicas if broker not in draft.adding)
    draft.adding = tuple(broker for broker in target if broker not in before)
    draft.removing = tuple(broker for broker in before if broker not in target)
    draft.replicas = (*target, *draft.removing)
    isr = tuple(broker for broker in draft.isr if broker in draft.replicas)
    if draft.isr and not isr:
        raise InvalidReplicaAssignment(
            f"{move.topic}-{move.number}: only brokers {list(draft.isr)} are in sync, and they would go: "
            "wait until others are in sync as well"
        )
    draft.isr = isr
