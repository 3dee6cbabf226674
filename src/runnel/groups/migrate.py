"""Online migration between the two protocols, as in Kafka (group.consumer.migration.policy=bidirectional).

A group of consumers is upgraded when the first KIP-848 member joins it, and downgraded when the last one goes. What
members hold is carried over, so that no partition ever has two owners; generations and epochs go on counting.
"""

from runnel.groups.bridge import named, partitions_of
from runnel.groups.classic import ClassicGroup
from runnel.groups.consumer import ConsumerGroup
from runnel.groups.consumers import Consumer
from runnel.groups.reconcile import Current
from runnel.groups.records import ClassicTerms, ConsumerMemberRecord, MemberState
from runnel.groups.roster import Member
from runnel.groups.subscription import (
    CONSUMER,
    Malformed,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from runnel.groups.turn import Turn
from runnel.groups.values import OfferedProtocol
from runnel.model.errors import GroupFull, GroupNotFound, InconsistentGroupProtocol, RebalanceInProgress
from runnel.model.ids import PartitionKey
from runnel.model.partition_sets import Partitions


def emptied_to_consumer(classic: ClassicGroup, turn: Turn) -> ConsumerGroup:
    """An empty group takes on the protocol of whoever comes first."""
    classic.retire(turn)
    turn.store.drop_membership(classic.group_id)
    group = ConsumerGroup(classic.group_id)
    group.epoch = group.assignment_epoch = classic.generation
    return group


def emptied_to_classic(consumer: ConsumerGroup, turn: Turn) -> ClassicGroup:
    consumer.retire(turn)
    turn.store.drop_membership(consumer.group_id)
    group = ClassicGroup(consumer.group_id)
    group.generation, group.protocol_type = consumer.epoch, CONSUMER
    group.since_ms = consumer.since_ms
    group.persist(turn)
    return group


def upgraded(classic: ClassicGroup, turn: Turn) -> ConsumerGroup:
    """The same members in a group of KIP-848; raises if they can't be taken over."""
    subscriptions = _check_upgrade(classic, turn)
    answer = RebalanceInProgress(f"group {classic.group_id!r} has moved to the consumer protocol: join again")
    classic.disband(answer, turn)
    turn.store.drop_membership(classic.group_id)
    group = ConsumerGroup(classic.group_id)
    group.epoch = group.assignment_epoch = classic.generation
    group.since_ms = turn.wall_ms
    members = classic.roster.members.values()
    holdings = _holdings([(each, subscriptions[each.member_id]) for each in members], classic.generation, turn)
    for member, current in zip(members, holdings, strict=True):
        group.take_over(_consumer(member, subscriptions[member.member_id], current), turn)
    return group


def _holdings(subscriptions: list[tuple[Member, Subscription]], epoch: int, turn: Turn) -> list[Current]:
    """What each member may be reading: what it was given, and what it brought along and may not have given up yet.

    Before the leader has assigned, all of it was brought along.
    """
    claimed = [partitions_of(subscription.owned, turn) for _, subscription in subscriptions]
    given = [
        partitions_of(read_assignment(member.assignment), turn) if member.assignment else claims
        for (member, _), claims in zip(subscriptions, claimed, strict=True)
    ]
    taken: set[PartitionKey] = set()
    assigned = [_unless_taken(partitions, taken) for partitions in given]
    revoking = [_unless_taken(partitions, taken) for partitions in claimed]
    return [
        Current(epoch, epoch, MemberState.UNREVOKED if surplus else MemberState.STABLE, has, surplus)
        for has, surplus in zip(assigned, revoking, strict=True)
    ]


def _unless_taken(partitions: Partitions, taken: set[PartitionKey]) -> Partitions:
    """A partition that two claim stays with the first: nobody may have it twice."""
    free = partitions - taken
    taken |= free
    return free


def _check_upgrade(classic: ClassicGroup, turn: Turn) -> dict[str, Subscription]:
    if not turn.config.migration:
        raise GroupNotFound(f"group {classic.group_id!r} is a classic group, and migration is switched off")
    if len(classic.roster) >= turn.config.consumer_members_max:
        raise GroupFull(f"group {classic.group_id!r} is full: raise group.consumer.max.size")
    try:
        if classic.protocol_type == CONSUMER:
            for member in classic.roster.members.values():
                read_assignment(member.assignment)
            return {
                member.member_id: read_subscription(member.protocols[0].metadata)
                for member in classic.roster.members.values()
            }
    except Malformed:
        pass
    raise InconsistentGroupProtocol(f"group {classic.group_id!r} is no group of consumers: it can't be upgraded")


def _consumer(member: Member, subscription: Subscription, current: Current) -> Consumer:
    protocols = tuple((each.name, each.metadata) for each in member.protocols)
    record = ConsumerMemberRecord(
        member.instance_id, subscription.rack_id, member.client_id, member.client_host, member.rebalance_timeout_ms,
        tuple(sorted(set(subscription.topics))), "", "", ClassicTerms(member.session_timeout_ms, protocols),
    )  # fmt: skip
    return Consumer(member.member_id, record, current.assigned, current)


def downgraded(consumer: ConsumerGroup, turn: Turn) -> ClassicGroup:
    """The same members, all of them classic, in a classic group that rebalances at once."""
    consumer.disband(turn)
    group = ClassicGroup(consumer.group_id)
    # The newest that a member has heard of: those in it hear of a rebalance instead of being thrown out.
    group.generation = max(each.current.epoch for each in consumer.members.values())
    group.protocol_type = CONSUMER
    for each in consumer.members.values():
        group.roster.add(_member(each, turn))
    turn.store.drop_membership(consumer.group_id)
    group.resume(turn)
    return group


def _member(each: Consumer, turn: Turn) -> Member:
    classic = each.record.classic
    assert classic is not None
    return Member(
        each.member_id, each.record.instance_id, each.record.client_id, each.record.client_host,
        classic.session_timeout_ms, each.record.rebalance_timeout_ms,
        tuple(OfferedProtocol(*offered) for offered in classic.protocols),
        write_assignment(named(each.current.assigned, turn)),
    )  # fmt: skip
