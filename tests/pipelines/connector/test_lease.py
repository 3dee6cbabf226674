"""Leases as offsets: there and back, and what is remembered of messages that were done too late to be accepted."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runnel.model.calls import Delivered
from runnel.pipelines.connector.leasing import lease as leases
from runnel.pipelines.connector.leasing.lease import Lease, Place, leased, offsets_in, stretches, with_finished

HERE, THERE = Place("q", "t", 0), Place("q", "t", 1)


def delivered(place: Place, offset: int) -> tuple[str, Delivered]:
    receipt = f"r{place.partition}-{offset}"
    return place.queue, Delivered(receipt, place.topic, place.partition, offset, 0, None, b"v", [], 1)


def test_what_came_is_a_lease_in_the_order_of_offsets() -> None:
    new, again = leased(4, [delivered(THERE, 5), delivered(HERE, 3), delivered(HERE, 1), delivered(HERE, 2)], {})
    assert new.id == 4
    assert list(new.receipts) == [HERE, THERE]
    assert list(new.receipts[HERE].items()) == [(1, "r0-1"), (2, "r0-2"), (3, "r0-3")]
    assert len(new) == 4
    assert not again


def test_a_lease_is_the_same_after_it_was_kept() -> None:
    new, _ = leased(1, [delivered(HERE, n) for n in (7, 8, 9, 20)], {THERE: ((1, 3),)})
    kept = json.loads(json.dumps(new.to_json()))
    assert kept["leases"][0]["offsets"] == [[7, 9], [20, 20]]
    assert Lease.from_json(kept) == new
    assert Lease.from_json(json.loads(json.dumps(Lease().to_json()))) == Lease()


def test_receipts_that_are_alike_take_little_room() -> None:
    new, _ = leased(1, [delivered(HERE, n) for n in range(10_000)], {})
    assert len(json.dumps(new.to_json())) < 50_000


def test_what_was_finished_and_comes_again_is_kept_apart_and_then_forgotten() -> None:
    finished = with_finished(Lease(), [(HERE, 1), (HERE, 2), (THERE, 1)])
    new, again = leased(2, [delivered(HERE, 1), delivered(HERE, 3)], finished)
    assert {place: list(each) for place, each in new.receipts.items()} == {HERE: [3]}
    assert {place: list(each) for place, each in again.receipts.items()} == {HERE: [1]}
    assert new.finished == {HERE: ((2, 2),), THERE: ((1, 1),)}


def test_memory_of_what_is_finished_is_bounded() -> None:
    finished = with_finished(Lease(), ((HERE, n) for n in range(leases.FINISHED_MAX + 7)))
    assert finished == {HERE: ((7, leases.FINISHED_MAX + 6),)}


@given(st.sets(st.integers(0, 100)))
def test_stretches_are_the_offsets(offsets: set[int]) -> None:
    found = stretches(offsets)
    assert offsets_in(found) == sorted(offsets)
    assert all(low[1] + 1 < high[0] for low, high in pairwise(found))
