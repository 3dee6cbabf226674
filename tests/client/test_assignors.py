"""Who reads what in a classic group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.assignors import (
    ASSIGNORS,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_assignor,
    round_robin_assignor,
)
from runnel.client.metadata import TopicPartition as P


def test_range_gives_runs_and_the_rest_to_the_first() -> None:
    assert range_assignor({"a": ["t"], "b": ["t"]}, {"t": 5}) == {
        "a": [P("t", 0), P("t", 1), P("t", 2)],
        "b": [P("t", 3), P("t", 4)],
    }


def test_round_robin_deals_all_topics_in_turn() -> None:
    dealt = round_robin_assignor({"a": ["t", "u"], "b": ["t", "u"]}, {"t": 1, "u": 2})
    assert dealt == {"a": [P("t", 0), P("u", 1)], "b": [P("u", 0)]}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    members=st.dictionaries(st.sampled_from("abcde"), st.lists(st.sampled_from("tuv"), unique=True), min_size=1),
    counts=st.dictionaries(st.sampled_from("tuv"), st.integers(1, 7)),
)
def test_every_subscribed_partition_has_one_reader(
    name: str, members: dict[str, list[str]], counts: dict[str, int]
) -> None:
    given_out = ASSIGNORS[name](members, counts)
    dealt = [where for partitions in given_out.values() for where in partitions]
    subscribed = {topic for topics in members.values() for topic in topics}
    assert sorted(dealt) == sorted(P(t, n) for t, count in counts.items() if t in subscribed for n in range(count))
    assert all(where.topic in members[member] for member, partitions in given_out.items() for where in partitions)


def test_subscriptions_and_assignments_survive_the_wire() -> None:
    assert decode_subscription(encode_subscription(["b", "a"])) == ["a", "b"]
    partitions = [P("t", 2), P("t", 0), P("u", 1)]
    assert decode_assignment(encode_assignment(partitions)) == partitions


def test_foreign_bytes_mean_nothing() -> None:
    assert decode_assignment(b"\x00") == []
    assert decode_assignment(None) == []
    assert decode_subscription(b"\x00\x01\xff") == []
