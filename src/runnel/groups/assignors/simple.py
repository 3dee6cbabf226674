"""`simple`: the assignor of share groups (KIP-932), where several members may read one partition.

Rule 1: every partition that somebody subscribes to is read by somebody, and everybody who can reads something.
Rule 2: with more partitions than members no partition is shared; with more members than partitions each member reads
        one. Either way the loads of all differ by one at the most, if all subscribe to the same topics.
Rule 3: what need not move stays where it was.

With equal subscriptions this is one problem seen from two sides: the many are spread over the few.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from runnel.groups.assignors.claims import Assignment, Claimant
from runnel.model.ids import PartitionKey, TopicId

T = TypeVar("T", bound=Hashable)
B = TypeVar("B", bound=Hashable)


def assign_simple(claimants: Iterable[Claimant], counts: Mapping[TopicId, int]) -> Assignment:
    ordered = sorted(claimants, key=lambda each: (each.rank, each.member_id))
    result: dict[str, set[PartitionKey]] = {each.member_id: set() for each in ordered}
    reading = [each for each in ordered if any(counts[topic_id] for topic_id in each.topics)]
    if len({each.topics for each in reading}) == 1:
        _assign_alike(reading, _partitions(reading, counts), result)
    else:
        _assign_mixed(reading, _partitions(reading, counts), result)
    return {member_id: frozenset(partitions) for member_id, partitions in result.items()}


def _partitions(claimants: Iterable[Claimant], counts: Mapping[TopicId, int]) -> list[PartitionKey]:
    wanted = frozenset[TopicId]().union(*(each.topics for each in claimants))
    return [PartitionKey(topic_id, number) for topic_id in sorted(wanted) for number in range(counts[topic_id])]


# --- all subscribe to the same
def _assign_alike(
    claimants: list[Claimant], partitions: list[PartitionKey], result: dict[str, set[PartitionKey]]
) -> None:
    members = [each.member_id for each in claimants]
    held: dict[PartitionKey, list[str]] = {}
    for each in claimants:
        for partition in sorted(each.owned):
            held.setdefault(partition, []).append(each.member_id)
    if len(members) <= len(partitions):
        for partition, member_id in _spread(partitions, members, held).items():
            result[member_id].add(partition)
    else:
        owned = {each.member_id: sorted(each.owned) for each in claimants}
        for member_id, partition in _spread(members, partitions, owned).items():
            result[member_id].add(partition)


def _spread(many: Collection[T], few: Collection[B], before: Mapping[T, Collection[B]]) -> dict[T, B]:
    """Put each of the many to one of the few, evenly; where one was before, it stays if that is fair."""
    share, extra = divmod(len(many), len(few))
    loads = dict.fromkeys(few, 0)
    placed: dict[T, B] = {}
    for bound, more in ((share, len(few)), (share + 1, extra)):  # first what all may have, then what some may
        for item in many:
            if item in placed or more == 0:
                continue
            old = [each for each in before.get(item, ()) if loads.get(each, bound) < bound]
            if old:
                placed[item] = min(old, key=lambda each: loads[each])
                loads[placed[item]] += 1
                more -= bound > share
    order = sorted(few, key=lambda each: loads[each])
    _fill([item for item in many if item not in placed], order, loads, placed, share)
    return placed


def _fill(left: list[T], order: list[B], loads: dict[B, int], placed: dict[T, B], share: int) -> None:
    """Give what is left to those who have least: up to the fair share, then one more to each in turn."""
    places = [each for each in order for _ in range(share - loads[each])]
    places += [each for each in order if loads[each] <= share]
    for item, place in zip(left, places, strict=False):
        placed[item] = place
        loads[place] += 1


# --- each to their own
def _assign_mixed(
    claimants: list[Claimant], partitions: list[PartitionKey], result: dict[str, set[PartitionKey]]
) -> None:
    if not claimants:
        return
    takers: dict[TopicId, list[Claimant]] = {}
    for each in claimants:
        for topic_id in each.topics:
            takers.setdefault(topic_id, []).append(each)
    fair = -(-len(partitions) // len(claimants))
    sharers = dict.fromkeys(partitions, 0)
    for partition in partitions:
        able = takers[partition.topic_id]
        stays = [each for each in able if partition in each.owned and len(result[each.member_id]) < fair]
        chosen = min(stays or able, key=lambda each: len(result[each.member_id]))
        result[chosen.member_id].add(partition)
        sharers[partition] += 1
    for each in claimants:
        if not result[each.member_id]:
            able_to_read = [partition for partition in partitions if partition.topic_id in each.topics]
            least = min(able_to_read, key=lambda one: (sharers[one], one not in each.owned))
            result[each.member_id].add(least)
            sharers[least] += 1
