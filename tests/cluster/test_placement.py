"""Placement: balance and racks, for any cluster."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.cluster.placement import Candidate, Replicas, place
from runnel.model.errors import InvalidReplicationFactor
from runnel.model.ids import BrokerId
from runnel.testing.clock import SeededRng

SEEDS = st.integers(0, 2**32)


def brokers_of(racks: list[str | None]) -> list[Candidate]:
    return [Candidate(BrokerId(number * 7), rack) for number, rack in enumerate(racks)]


def spread(counts: Counter[BrokerId], brokers: list[Candidate]) -> int:
    """How many more the most loaded broker has than the least loaded."""
    numbers = [counts[broker.id] for broker in brokers]
    return max(numbers) - min(numbers)


def leaders(placed: list[Replicas]) -> Counter[BrokerId]:
    return Counter(replicas[0] for replicas in placed)


def held(placed: list[Replicas]) -> Counter[BrokerId]:
    return Counter(broker for replicas in placed for broker in replicas)


@settings(max_examples=150)
@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 12), SEEDS)
def test_leaders_and_replicas_are_balanced(count: int, partitions: int, factor: int, seed: int) -> None:
    factor = min(factor, count)
    brokers = brokers_of([None] * count)
    placed = place(brokers, partitions, factor, SeededRng(seed))
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert spread(leaders(placed), brokers) <= 1
    assert spread(held(placed), brokers) <= 2


@settings(max_examples=150)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.integers(1, 40), st.integers(1, 12), SEEDS)
def test_replicas_lie_on_as_many_racks_as_there_are(racks: list[str], partitions: int, factor: int, seed: int) -> None:
    factor = min(factor, len(racks))
    brokers = brokers_of([*racks])
    rack_of = {broker.id: broker.rack for broker in brokers}
    placed = place(brokers, partitions, factor, SeededRng(seed))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({rack_of[broker] for broker in replicas}) == min(factor, len(set(racks)))
    assert spread(leaders(placed), brokers) <= 1


@settings(max_examples=50)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 40), SEEDS)
def test_racks_of_one_size_are_balanced_too(size: int, racks: int, partitions: int, seed: int) -> None:
    brokers = brokers_of([f"rack{number % racks}" for number in range(size * racks)])
    placed = place(brokers, partitions, racks, SeededRng(seed))
    assert spread(leaders(placed), brokers) <= 1
    assert spread(held(placed), brokers) <= 2


def test_many_small_topics_spread_as_well_as_one_large_one() -> None:
    brokers, rng = brokers_of([None] * 3), SeededRng(1)
    first = Counter(place(brokers, 1, 1, rng)[0][0] for _ in range(600))
    assert min(first[broker.id] for broker in brokers) > 150


def test_partners_vary_so_that_a_dead_broker_leaves_its_load_to_all() -> None:
    brokers = brokers_of([None] * 6)
    placed = place(brokers, 120, 3, SeededRng(1))
    partners = {broker for replicas in placed if replicas[0] == 0 for broker in replicas[1:]}
    assert partners == {broker.id for broker in brokers[1:]}


@pytest.mark.parametrize(("count", "factor"), [(1, 2), (3, 4), (0, 1), (3, 0)])
def test_a_factor_that_can_not_be_reached_is_refused(count: int, factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=f"{count} brokers serve"):
        place(brokers_of([None] * count), 1, factor, SeededRng())


# --- brokers that are away


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 30),
    st.integers(1, 9),
    SEEDS,
)
def test_who_is_away_gets_a_replica_only_if_those_who_serve_are_too_few(
    drawn: list[tuple[str | None, bool]], partitions: int, factor: int, seed: int
) -> None:
    brokers = [Candidate(BrokerId(number), rack, serving) for number, (rack, serving) in enumerate(drawn)]
    serving = {broker.id for broker in brokers if broker.serving}
    factor = min(factor, len(brokers))
    if not serving:
        with pytest.raises(InvalidReplicationFactor, match=f"0 brokers serve, and {len(brokers)} more are registered"):
            place(brokers, partitions, factor, SeededRng(seed))
        return
    placed = place(brokers, partitions, factor, SeededRng(seed))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] in serving
        assert len(serving.intersection(replicas)) == min(factor, len(serving))
    assert spread(leaders(placed), [broker for broker in brokers if broker.serving]) <= 1


def test_a_factor_beyond_those_who_are_registered_is_refused() -> None:
    brokers = [Candidate(BrokerId(1)), Candidate(BrokerId(2), serving=False)]
    with pytest.raises(InvalidReplicationFactor, match="1 brokers serve, and 1 more are registered, but away"):
        place(brokers, 1, 3, SeededRng())
