"""Plans: what moves, what does not, and what holds afterwards, whatever the cluster looks like."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.balancing import Ground, Move, assign, balance, drain, replicate
from runnel.client.metadata import TopicPartition
from runnel.model.errors import InvalidReplicationFactor


def ground(brokers: Iterable[int] | Mapping[int, str], *held: Sequence[int], fixed: Sequence[int] = ()) -> Ground:
    racks = dict(brokers) if isinstance(brokers, Mapping) else dict.fromkeys(brokers)
    places = {TopicPartition("t", n): tuple(replicas) for n, replicas in enumerate(held)}
    return Ground(racks, places, dict.fromkeys(places, 100), [TopicPartition("t", n) for n in fixed])


def after(start: Ground, moves: Iterable[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    return {**{where: tuple(held) for where, held in start.held.items()}, **{m.where: m.after for m in moves}}


def replicas_each(held: Mapping[TopicPartition, Sequence[int]], brokers: Iterable[int]) -> list[int]:
    counts = Counter(broker for replicas in held.values() for broker in replicas)
    return [counts[broker] for broker in brokers]


def leaders_each(held: Mapping[TopicPartition, Sequence[int]], brokers: Iterable[int]) -> list[int]:
    counts = Counter(replicas[0] for replicas in held.values())
    return [counts[broker] for broker in brokers]


def test_what_is_balanced_stays() -> None:
    assert balance(ground([1, 2, 3], [1, 2], [2, 3], [3, 1])) == []


def test_a_new_broker_gets_its_share_and_no_more_moves() -> None:
    start = ground([1, 2, 3, 4], *([1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]))
    moves = balance(start)
    done = after(start, moves)
    assert replicas_each(done, [1, 2, 3, 4]) == [3, 3, 3, 3]
    assert sum(len(move.adding) for move in moves) == 3
    assert all(move.adding in ((), (4,)) for move in moves)
    assert leaders_each(done, [1, 2, 3, 4]) == [1, 1, 1, 1]


def test_leaders_are_spread_without_moving_data() -> None:
    start = ground([1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3])
    moves = balance(start)
    assert [move.adding for move in moves] == [(), ()]
    assert sum(move.bytes_moved for move in moves) == 0
    assert leaders_each(after(start, moves), [1, 2, 3]) == [1, 1, 1]


def test_leaders_move_along_a_chain_where_no_single_step_helps() -> None:
    start = ground([1, 2, 3], [1, 2], [1, 2], [2, 3], [2, 1])  # 3 can lead only what 2 leads, 2 only what 1 leads
    assert sorted(leaders_each(after(start, balance(start)), [1, 2, 3])) == [1, 1, 2]


def test_a_partition_is_spread_over_racks_and_stays_so() -> None:
    start = ground({1: "a", 2: "a", 3: "b"}, [1, 2], [2, 1])
    done = after(start, balance(start))
    assert all(3 in replicas for replicas in done.values())
    assert replicas_each(done, [1, 2, 3]) == [1, 1, 2]  # not level: racks go first


def test_draining_moves_what_the_broker_has_and_nothing_else() -> None:
    start = ground([1, 2, 3, 4], [1, 2], [2, 3], [3, 4], [4, 1])
    moves = drain(start, 4)
    assert {move.where.partition for move in moves if move.adding} == {2, 3}
    done = after(start, moves)
    assert replicas_each(done, [4]) == [0]
    assert max(replicas_each(done, [1, 2, 3])) == 3


def test_a_broker_that_is_gone_can_be_drained() -> None:
    moves = drain(ground([1, 2, 3], [9, 1], [2, 9]), 9)
    assert [move.removing for move in moves] == [(9,), (9,)]
    assert moves[0].after[0] == 1  # a replica that has the data is preferred to a new one


def test_draining_needs_somewhere_to_go() -> None:
    with pytest.raises(InvalidReplicationFactor, match="add a broker"):
        drain(ground([1, 2], [1, 2]), 2)


def test_more_and_fewer_replicas() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    [more] = replicate(ground(racks, [1]), [TopicPartition("t", 0)], 2)
    assert more.after == (1, 3)
    [fewer] = replicate(ground(racks, [1, 2, 3]), [TopicPartition("t", 0)], 2)
    assert fewer.after == (1, 3)
    with pytest.raises(InvalidReplicationFactor, match="3 brokers serve"):
        replicate(ground(racks, [1]), [TopicPartition("t", 0)], 4)


def test_what_is_fixed_stays_and_counts() -> None:
    start = ground([1, 2], [1], [1], [1], [1], fixed=[0, 1, 2])
    assert [move.where.partition for move in balance(start)] == [3]


def test_small_partitions_move_before_large_ones() -> None:
    start = ground([1, 2], [1], [1])
    sized = Ground(start.racks, start.held, {TopicPartition("t", 0): 500, TopicPartition("t", 1): 5})
    assert [(move.where.partition, move.bytes_moved) for move in balance(sized)] == [(1, 5)]


def test_an_assignment_names_what_differs() -> None:
    start = ground([1, 2, 3], [1, 2], [2, 3])
    moves = assign(start, {TopicPartition("t", 0): [3, 1], TopicPartition("t", 1): [2, 3]})
    assert moves == [Move(TopicPartition("t", 0), (1, 2), (3, 1), 100)]
    assert (moves[0].adding, moves[0].removing, moves[0].bytes_moved) == ((3,), (2,), 100)


@st.composite
def grounds(draw: st.DrawFn) -> Ground:
    count = draw(st.integers(1, 7))
    racks = {n: draw(st.sampled_from([None, "a", "b", "c"])) for n in range(1, count + 1)}
    factor = draw(st.integers(1, count))
    topics = draw(st.lists(st.sampled_from("xyz"), max_size=12))
    order = st.permutations(list(racks))
    held = {TopicPartition(topic, n): tuple(draw(order)[:factor]) for n, topic in enumerate(topics)}
    return Ground(racks, held, dict.fromkeys(held, 1))


def racks_of(start: Ground, replicas: Iterable[int]) -> int:
    return len({start.racks[broker] or broker for broker in replicas})


@given(grounds())
def test_a_balanced_cluster_keeps_every_rule(start: Ground) -> None:
    moves = balance(start)
    done = after(start, moves)
    racks = len({rack or broker for broker, rack in start.racks.items()})
    for where, replicas in done.items():
        assert len(set(replicas)) == len(replicas) == len(start.held[where])
        assert racks_of(start, replicas) == min(racks, len(replicas))
    if racks == len(start.racks):
        counts = replicas_each(done, start.racks)
        assert max(counts) - min(counts) <= 1
        before = replicas_each(start.held, start.racks)
        surplus = sum(max(0, b - a) for a, b in zip(counts, before, strict=True))
        assert sum(len(move.adding) for move in moves) == surplus
    assert balance(Ground(start.racks, done, start.sizes)) == []


@given(grounds(), st.data())
def test_a_drained_broker_holds_nothing_and_nothing_else_moves(start: Ground, data: st.DataObject) -> None:
    broker = data.draw(st.sampled_from(sorted(start.racks)))
    if any(len(replicas) == len(start.racks) for replicas in start.held.values()):
        return
    moves = drain(start, broker)
    done = after(start, moves)
    assert not any(broker in replicas for replicas in done.values())
    assert all(broker in move.before for move in moves)
    left = {rack or other for other, rack in start.racks.items() if other != broker}
    for where, replicas in done.items():
        kept = [other for other in start.held[where] if other != broker]
        assert len(set(replicas)) == len(start.held[where])
        if broker in start.held[where]:
            assert racks_of(start, replicas) >= min(racks_of(start, kept) + 1, len(left))
