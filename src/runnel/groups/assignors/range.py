"""`range`: each topic is cut into stretches of neighbouring partitions, one for each subscriber, in the same order.

So topics with equal partition counts and equal subscribers are co-partitioned: who has partition 3 of one has partition
3 of the other, which is what joins need.
"""

from collections.abc import Iterable, Mapping

from runnel.groups.assignors.claims import Assignment, Claimant
from runnel.model.ids import PartitionKey, TopicId


def assign_range(claimants: Iterable[Claimant], counts: Mapping[TopicId, int]) -> Assignment:
    ordered = sorted(claimants, key=lambda each: (each.rank, each.member_id))
    subscribers: dict[TopicId, list[str]] = {}
    for each in ordered:
        for topic_id in each.topics:
            subscribers.setdefault(topic_id, []).append(each.member_id)
    parts: dict[str, list[PartitionKey]] = {each.member_id: [] for each in ordered}
    for topic_id, member_ids in subscribers.items():
        start = 0
        share, rest = divmod(counts[topic_id], len(member_ids))
        for place, member_id in enumerate(member_ids):
            end = start + share + (place < rest)
            parts[member_id] += [PartitionKey(topic_id, number) for number in range(start, end)]
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in parts.items()}
