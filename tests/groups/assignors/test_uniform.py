"""Balance and stickiness of the uniform assignor, for any subscriptions."""

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.examples import EXAMPLES

from runnel.groups.assignors import ASSIGNORS, Assignment, Claimant
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import Partitions

TOPICS = [TopicId(uuid.UUID(int=number)) for number in range(1, 6)]
NOTHING: Partitions = frozenset()

counts_of = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(lambda each: dict(zip(TOPICS, each, strict=False)))


@st.composite
def groups(draw: st.DrawFn, same: bool = False) -> tuple[list[Claimant], dict[TopicId, int]]:
    counts = draw(counts_of)
    some = st.frozensets(st.sampled_from(sorted(counts)), max_size=len(counts))
    size = draw(st.integers(1, 7))
    topics = [frozenset(counts)] * size if same else [draw(some) for _ in range(size)]
    return [Claimant(f"m{number}", None, each, NOTHING) for number, each in enumerate(topics)], counts


def assign(name: str, claimants: list[Claimant], counts: dict[TopicId, int]) -> Assignment:
    return ASSIGNORS[name](claimants, counts)


def everything(claimants: list[Claimant], counts: dict[TopicId, int]) -> list[PartitionKey]:
    wanted = frozenset[TopicId]().union(*(each.topics for each in claimants))
    return sorted(PartitionKey(topic, number) for topic in wanted for number in range(counts[topic]))


def again(claimants: list[Claimant], before: Assignment) -> list[Claimant]:
    return [Claimant(each.member_id, None, each.topics, before.get(each.member_id, NOTHING)) for each in claimants]


def check(claimants: list[Claimant], counts: dict[TopicId, int], result: Assignment) -> None:
    """Every partition once, and only to subscribers."""
    assert sorted(each for part in result.values() for each in part) == everything(claimants, counts)
    for each in claimants:
        assert all(partition.topic_id in each.topics for partition in result[each.member_id])


def test_what_a_member_claims_and_can_not_own_counts_for_nothing() -> None:
    [topic], topics = TOPICS[:1], frozenset(TOPICS[:1])
    claimed = frozenset(PartitionKey(topic, number) for number in (-1, 0, 7))
    claimants = [Claimant("m0", None, topics, claimed), Claimant("m1", None, topics, NOTHING)]
    check(claimants, {topic: 3}, assign("uniform", claimants, {topic: 3}))


def moved(before: Assignment, after: Assignment) -> int:
    return sum(len(after[member] - before.get(member, NOTHING)) for member in after)


def best_loads(claimants: list[Claimant], counts: dict[TopicId, int]) -> list[int]:
    """The most even loads there are: give each partition along a cheapest path (slow and obviously right)."""
    partitions = everything(claimants, counts)
    takers = {each: [m for m, c in enumerate(claimants) if each.topic_id in c.topics] for each in partitions}
    held: list[set[PartitionKey]] = [set() for _ in claimants]
    for partition in partitions:
        reached: dict[int, tuple[PartitionKey, int | None]] = dict.fromkeys(takers[partition], (partition, None))
        queue = list(reached)
        for member in queue:
            for each in held[member]:
                for taker in takers[each]:
                    if taker not in reached:
                        reached[taker] = each, member
                        queue.append(taker)
        end: int | None = min(reached, key=lambda member: len(held[member]))
        while end is not None:
            each, giver = reached[end]
            held[end].add(each)
            if giver is not None:
                held[giver].discard(each)
            end = giver
    return sorted(map(len, held))


@given(groups())
@settings(max_examples=EXAMPLES)
def test_no_other_assignment_is_more_even(group: tuple[list[Claimant], dict[TopicId, int]]) -> None:
    claimants, counts = group
    result = assign("uniform", claimants, counts)
    check(claimants, counts, result)
    loads = sorted(len(part) for part in result.values())
    assert sum(load * load for load in loads) == sum(load * load for load in best_loads(claimants, counts))


@given(groups())
@settings(max_examples=EXAMPLES)
def test_nothing_moves_when_nothing_changed(group: tuple[list[Claimant], dict[TopicId, int]]) -> None:
    claimants, counts = group
    before = assign("uniform", claimants, counts)
    assert assign("uniform", again(claimants, before), counts) == before


def test_who_has_more_than_an_even_part_keeps_it_where_others_want_less() -> None:
    """m0 and m1 want nothing: what is fair for m3 and m5 is more than a sixth of all, and stays as it is."""
    one, two, three, four, five = TOPICS[:5]
    wanted: list[set[TopicId]] = [set(), set(), {two}, {one, two, three, four, five}, {one, four}, {two, three, five}]
    claimants = [Claimant(f"m{number}", None, frozenset(each), NOTHING) for number, each in enumerate(wanted)]
    counts = dict(zip(TOPICS, [1, 5, 1, 2, 7], strict=False))
    before = assign("uniform", claimants, counts)
    assert assign("uniform", again(claimants, before), counts) == before


@given(groups(same=True), st.booleans())
@settings(max_examples=EXAMPLES)
def test_with_equal_subscriptions_no_more_moves_than_must(
    group: tuple[list[Claimant], dict[TopicId, int]], one_comes: bool
) -> None:
    claimants, counts = group
    before = assign("uniform", claimants, counts)
    if one_comes:
        changed = [*again(claimants, before), Claimant("new", None, frozenset(counts), NOTHING)]
    else:
        changed = again(claimants, before)[1:]
    if not changed:
        return
    after = assign("uniform", changed, counts)
    check(changed, counts, after)
    loads = sorted(len(part) for part in after.values())
    assert loads[-1] - loads[0] <= 1
    must = len(after["new"]) if one_comes else len(before["m0"])
    assert moved(before, after) == must


def test_a_topic_spreads_over_all_members() -> None:
    claimants = [Claimant(f"m{number}", None, frozenset(TOPICS[:2]), NOTHING) for number in range(4)]
    result = assign("uniform", claimants, dict.fromkeys(TOPICS[:2], 4))
    assert all({each.topic_id for each in part} == set(TOPICS[:2]) for part in result.values())


def test_a_chain_of_hand_overs_is_found() -> None:
    """c can take nothing from a, but b can hand over to c what it gets replaced by a."""
    a, b, c = TOPICS[:3]
    one = {PartitionKey(a, number) for number in range(5)}
    two = {PartitionKey(b, number) for number in range(4)}
    three = {PartitionKey(c, number) for number in range(3)}
    claimants = [
        Claimant("a", None, frozenset({a}), frozenset(one)),
        Claimant("b", None, frozenset({a, b}), frozenset(two)),
        Claimant("c", None, frozenset({b, c}), frozenset(three)),
    ]
    result = assign("uniform", claimants, {a: 5, b: 4, c: 3})
    assert [len(result[name]) for name in "abc"] == [4, 4, 4]


def test_a_double_claim_counts_once() -> None:
    both = frozenset({PartitionKey(TOPICS[0], 0)})
    claimants = [Claimant(name, None, frozenset(TOPICS[:1]), both) for name in "ab"]
    check(claimants, {TOPICS[0]: 1}, assign("uniform", claimants, {TOPICS[0]: 1}))


def test_a_thousand_members_and_ten_thousand_partitions() -> None:
    """Large enough that anything quadratic in the partitions would be felt."""
    topics = [TopicId(uuid.UUID(int=number)) for number in range(1, 101)]
    counts = dict.fromkeys(topics, 100)
    claimants = [Claimant(f"m{number}", None, frozenset(topics), NOTHING) for number in range(1_000)]
    before = assign("uniform", claimants, counts)
    after = assign("uniform", again(claimants[100:], before), counts)
    check(claimants[100:], counts, after)
    assert {len(part) for part in after.values()} == {11, 12}
    assert moved(before, after) == 1_000
