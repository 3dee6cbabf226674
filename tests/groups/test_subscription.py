"""The consumers' own bytes; versions as the clients write them, and damaged ones."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.subscription import (
    Malformed,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)

partitions = st.lists(
    st.tuples(st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3).map(tuple)), max_size=3
).map(tuple)
subscriptions = st.builds(
    Subscription, st.lists(st.text(max_size=5), max_size=3).map(tuple), partitions, st.integers(-1, 9),
    st.none() | st.text(max_size=3), st.binary(max_size=5),
)  # fmt: skip


@given(subscriptions)
@settings(max_examples=50)
def test_a_subscription_comes_back(subscription: Subscription) -> None:
    assert read_subscription(write_subscription(subscription)) == subscription


def test_older_versions_lack_fields() -> None:
    full = Subscription(("t",), (("t", (1,)),), 4, "rack", b"user")
    assert read_subscription(write_subscription(full, 0)) == Subscription(("t",), user_data=b"user")
    assert read_subscription(write_subscription(full, 1)) == Subscription(("t",), full.owned, user_data=b"user")
    assert read_subscription(write_subscription(full, 2)).generation == 4


def test_a_newer_version_begins_with_what_we_know() -> None:
    data = bytearray(write_subscription(Subscription(("t",))) + b"more")
    data[:2] = (9).to_bytes(2, "big")
    assert read_subscription(bytes(data)).topics == ("t",)


@given(partitions)
@settings(max_examples=50)
def test_an_assignment_comes_back(topics: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    assert read_assignment(write_assignment(topics)) == topics
    assert read_assignment(b"") == ()


@given(st.binary(max_size=40))
@settings(max_examples=200)
def test_garbage_is_malformed_and_nothing_worse(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        with contextlib.suppress(Malformed):
            read(data)


def test_an_array_longer_than_the_bytes_is_refused_before_it_costs_memory() -> None:
    with pytest.raises(Malformed, match="longer"):
        read_subscription(b"\x00\x00\x7f\xff\xff\xff")
