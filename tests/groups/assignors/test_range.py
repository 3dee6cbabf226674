import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.assignors import ASSIGNORS, Claimant
from runnel.model.ids import PartitionKey, TopicId

A, B = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))
assign_range = ASSIGNORS["range"]


def claimant(name: str, *topics: TopicId, instance: str | None = None) -> Claimant:
    return Claimant(name, instance, frozenset(topics), frozenset())


@given(st.integers(1, 20), st.integers(1, 8))
@settings(max_examples=50)
def test_each_gets_a_stretch_of_neighbours(count: int, size: int) -> None:
    result = assign_range([claimant(f"m{number}", A) for number in range(size)], {A: count})
    numbers = [[each.number for each in sorted(result[f"m{number}"])] for number in range(size)]
    assert [each for part in numbers for each in part] == list(range(count))
    assert max(map(len, numbers)) - min(map(len, numbers)) <= 1


def test_topics_of_equal_size_are_co_partitioned() -> None:
    result = assign_range([claimant(name, A, B) for name in "xyz"], {A: 5, B: 5})
    for part in result.values():
        assert {each.number for each in part if each.topic_id == A} == {e.number for e in part if e.topic_id == B}


def test_only_subscribers_get_partitions_and_the_rest_stand_by() -> None:
    result = assign_range([claimant("x", A), claimant("y", A), claimant("z", A, B)], {A: 2, B: 1})
    assert result["x"] == {PartitionKey(A, 0)}
    assert result["y"] == {PartitionKey(A, 1)}
    assert result["z"] == {PartitionKey(B, 0)}


def test_a_static_member_keeps_its_place_under_a_new_id() -> None:
    before = assign_range([claimant("x", A, instance="1"), claimant("y", A, instance="2")], {A: 4})
    after = assign_range([claimant("zz", A, instance="1"), claimant("y", A, instance="2")], {A: 4})
    assert before["x"] == after["zz"]
    assert before["y"] == after["y"]
