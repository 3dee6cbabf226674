"""What a leader says about its replicas: AlterPartition (KIP-497, KIP-903). Pure.

Rule 1: a change counts only for the partition that its leader looked at: the same leader epoch, the same partition
        epoch. Whoever was overtaken looks again.
Rule 2: who is added must serve, in the very life that the leader saw catch up: a broker that was started again since
        then may have lost what it had.
Rule 3: every change begins a new partition epoch, also one to what is: so a leader that does not know what became of
        an earlier one can make sure that it can't be done any more.
Rule 4: a leader that leaves itself out has resigned: its copy is damaged. Another leads, or nobody.
"""

from collections.abc import Sequence
from typing import NamedTuple

from runnel.cluster.decision import Decision
from runnel.cluster.drafting import Changes, Draft, Living, RuleBook
from runnel.cluster.image import Image, Partition, Topic
from runnel.model.errors import (
    FencedEpoch,
    IneligibleReplica,
    InvalidRequest,
    NotController,
    RunnelError,
    StalePartitionEpoch,
    UnknownTopic,
    as_value,
)
from runnel.model.ids import BrokerId, Epoch, PartitionKey
from runnel.model.topic_config import TopicConfig


class IsrChange(NamedTuple):
    """Who is in sync, as the leader of a partition sees it."""

    key: PartitionKey
    leader_epoch: Epoch
    partition_epoch: Epoch
    isr: tuple[tuple[BrokerId, Epoch], ...]  # each with its broker epoch


def alter_partitions(
    image: Image, broker: BrokerId, broker_epoch: Epoch, asked: Sequence[IsrChange], base: TopicConfig
) -> Decision[Partition]:
    """For each partition: what it becomes, or why the change is refused."""
    image.check_life(broker, broker_epoch)
    living, book, changes = Living.of(image.brokers.values()), RuleBook(image, base), Changes(image)
    results: list[Partition | RunnelError] = []
    for change in asked:
        try:
            topic = image.topic_with_id(change.key.topic_id)
            present = _checked(image, topic, changes, broker, change)
            draft = Draft(present, book.of(topic))
            draft.isr = tuple(member for member, _ in change.isr)
            draft.fence = True
            if broker not in draft.isr:
                draft.lose(broker)
            draft.settle(living)
            results.append(changes.put(topic, change.key.number, draft))
        except RunnelError as error:
            results.append(as_value(error))
    keys = [change.key.topic_id for change in asked]
    return Decision(changes.delta, results, keys, changes.unclean)


def _checked(image: Image, topic: Topic, changes: Changes, broker: BrokerId, change: IsrChange) -> Partition:
    """The partition as it is, if it may be changed so."""
    number = change.key.number
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopic(f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {number}")
    present = changes.partition(topic, number)
    where = f"{topic.name}-{number}"
    if change.leader_epoch > present.leader_epoch or change.partition_epoch > present.epoch:
        raise NotController(f"{where} is further than this broker knows: another must be the controller by now")
    if change.leader_epoch < present.leader_epoch or present.leader != broker:
        raise FencedEpoch(f"{where} is led by broker {present.leader} in leader epoch {present.leader_epoch}")
    if change.partition_epoch < present.epoch:
        raise StalePartitionEpoch(f"{where} has partition epoch {present.epoch}, not {change.partition_epoch}")
    _check_members(image, where, present, change)
    return present


def _check_members(image: Image, where: str, present: Partition, change: IsrChange) -> None:
    members = [member for member, _ in change.isr]
    if len(set(members)) != len(members) or not set(members) <= set(present.replicas):
        raise InvalidRequest(f"{where}: {members} can't be in sync, its replicas are {list(present.replicas)}")
    for member, epoch in change.isr:
        registered = image.brokers.get(member)
        if member in present.isr:
            continue
        if registered is None or not registered.serving or registered.epoch != epoch:
            raise IneligibleReplica(
                f"{where}: broker {member} does not serve in epoch {epoch}: wait until it has caught up in its new life"
            )
