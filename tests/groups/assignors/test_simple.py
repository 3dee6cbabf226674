"""The assignor of share groups: nobody idle, nothing unread, even, and sticky."""

import uuid
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.assignors import Assignment, Claimant
from runnel.groups.assignors.simple import assign_simple
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import Partitions

TOPICS = [TopicId(uuid.UUID(int=number)) for number in range(1, 5)]
NOTHING: Partitions = frozenset()

counts_of = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(lambda each: dict(zip(TOPICS, each, strict=False)))
sizes = st.integers(1, 12)


def group(size: int, topics: frozenset[TopicId], before: Assignment | None = None) -> list[Claimant]:
    names = [f"m{number:02}" for number in range(size)]
    return [Claimant(name, None, topics, (before or {}).get(name, NOTHING)) for name in names]


def loads(result: Assignment, counts: dict[TopicId, int]) -> tuple[list[int], list[int]]:
    """How much each member reads, and by how many each partition is read."""
    readers = Counter(partition for part in result.values() for partition in part)
    everything = [PartitionKey(topic, number) for topic, count in counts.items() for number in range(count)]
    assert readers.keys() <= set(everything)
    return [len(part) for part in result.values()], [readers[each] for each in everything]


@given(counts_of, sizes)
def test_equal_subscribers_are_spread_evenly(counts: dict[TopicId, int], size: int) -> None:
    held, readers = loads(assign_simple(group(size, frozenset(counts)), counts), counts)
    many, few = (readers, held) if size <= len(readers) else (held, readers)
    assert set(many) == {1}
    assert max(few) - min(few) <= 1


@settings(max_examples=300)
@given(counts_of, sizes, sizes, counts_of)
def test_what_need_not_move_stays(
    counts: dict[TopicId, int], before: int, after: int, later: dict[TopicId, int]
) -> None:
    old = assign_simple(group(before, frozenset(counts)), counts)
    assert assign_simple(group(before, frozenset(counts), old), counts) == old
    new = assign_simple(group(after, frozenset(later), old), later)
    held, readers = loads(new, later)
    many, few = (readers, held) if after <= len(readers) else (held, readers)
    assert set(many) == {1}
    assert max(few) - min(few) <= 1


def test_a_member_that_comes_takes_its_share_and_no_more() -> None:
    counts = {TOPICS[0]: 6}
    two = assign_simple(group(2, frozenset(counts)), counts)
    three = assign_simple(group(3, frozenset(counts), two), counts)
    assert all(three[name] < two[name] for name in two)
    assert len(three["m02"]) == 2


def test_a_member_that_goes_is_replaced_by_those_who_have_least() -> None:
    counts = {TOPICS[0]: 2}
    five = assign_simple(group(5, frozenset(counts)), counts)
    left = [each for each in group(5, frozenset(counts), five) if each.member_id != "m01"]
    four = assign_simple(left, counts)
    assert sum(four[name] != five[name] for name in four) <= 1
    assert loads(four, counts)[1] == [2, 2]


@given(counts_of, st.data())
def test_with_any_subscriptions_nothing_is_unread_and_nobody_idle(
    counts: dict[TopicId, int], data: st.DataObject
) -> None:
    some = st.frozensets(st.sampled_from(sorted(counts)), max_size=len(counts))
    claimants = [
        Claimant(f"m{number}", None, data.draw(some), NOTHING) for number in range(data.draw(st.integers(0, 7)))
    ]
    result = assign_simple(claimants, counts)
    wanted = frozenset[TopicId]().union(*(each.topics for each in claimants))
    read = frozenset[PartitionKey]().union(*result.values())
    assert read == {PartitionKey(topic, number) for topic in wanted for number in range(counts[topic])}
    for each in claimants:
        assert bool(result[each.member_id]) == bool(each.topics)
        assert all(partition.topic_id in each.topics for partition in result[each.member_id])


def test_different_subscribers_keep_what_they_have_if_that_is_fair() -> None:
    counts = {TOPICS[0]: 2, TOPICS[1]: 2}
    both, one = frozenset(TOPICS[:2]), frozenset(TOPICS[:1])
    old = assign_simple([Claimant("a", None, both, NOTHING), Claimant("b", None, one, NOTHING)], counts)
    again = assign_simple([Claimant("a", None, both, old["a"]), Claimant("b", None, one, old["b"])], counts)
    assert again == old
