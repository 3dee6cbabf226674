"""Key order: one message of a key at a time, in their order, and nobody waits for another key."""

from typing import Any

from tests.queues.rig import Rig, flat, one

from runnel.queues.values import Offered, Span

TEXT = "aabacb"  # the keys of the messages


def rig_of(text: str = TEXT, **more: Any) -> Rig:
    return Rig(end=len(text), order="key", **more)


def lease(rig: Rig, text: str = TEXT, messages_max: int = 10, owner: str = "x") -> list[int]:
    """Read and offer what is wanted until something is leased, or nothing is wanted."""
    for _ in range(10):
        spans = rig.wants(owner, messages_max)
        offers = [one(at, key=text[at].encode()) for first, last in spans for at in range(first, last + 1)]
        if not offers or (got := flat(rig.offer(offers, owner, messages_max))):
            return [] if not offers else [offset for offset, _ in got]
    return []


def test_one_message_of_a_key_is_out_at_a_time() -> None:
    rig = rig_of()
    assert lease(rig) == [0, 2, 4]
    assert rig.describe().blocked == 3
    assert rig.wants() == []
    rig.accept(0)
    assert rig.available == 1
    assert lease(rig) == [1]
    rig.accept(2, 4)
    assert lease(rig) == [5]
    rig.accept(1)
    assert lease(rig) == [3]
    rig.accept(3, 5)
    assert rig.describe().first_open == 6


def test_a_message_that_waits_holds_up_its_key() -> None:
    rig = rig_of()
    lease(rig)
    rig.release(0, delay_ms=5_000)
    assert rig.wants() == []
    rig.pass_time(5_100)
    assert lease(rig) == [0]


def test_a_message_that_is_released_goes_before_those_behind_it() -> None:
    rig = rig_of()
    lease(rig)
    rig.release(0)
    assert lease(rig) == [0]


def test_a_dead_message_lets_the_next_one_go() -> None:
    rig = rig_of()
    lease(rig)
    rig.reject(0)
    assert lease(rig) == [1]
    rig = rig_of(attempts_max=1)
    lease(rig)
    rig.release(0)
    assert lease(rig) == [1]


def test_messages_without_a_key_are_in_nobodys_way() -> None:
    rig = rig_of()
    assert flat(rig.offer([one(0), one(1), one(2, key=b"a"), one(3, key=b"a")])) == [(0, 1), (1, 1), (2, 1)]


def test_a_new_leader_learns_the_keys_before_it_leases() -> None:
    rig = rig_of()
    lease(rig, messages_max=1)
    lease(rig, messages_max=1)  # passes over 1 and 3
    rig.wake()
    assert rig.states(0, 4) == "lrlrn"
    assert rig.wants() == [Span(0, 3)]
    assert flat(rig.offer([one(1, key=b"a")])) == []  # who knows whose key 0 has?
    assert lease(rig) == [4]
    rig.accept(0)
    assert lease(rig) == [1]


def test_keys_of_what_is_done_do_not_matter() -> None:
    rig = rig_of()
    lease(rig)
    rig.accept(0)
    rig.wake()
    assert rig.wants() == [Span(1, 5)]
    assert lease(rig) == [1]


def test_what_is_filtered_out_holds_up_nobody() -> None:
    rig = rig_of()
    assert flat(rig.offer([Offered(0, 1, passes=False), one(2, key=b"a"), one(3, key=b"a")])) == [(2, 1)]
    rig = rig_of()
    assert flat(rig.offer([one(0, key=b"a"), one(1, key=b"a", expires_ms=1), one(2, key=b"a")])) == [(0, 1)]
    rig.accept(0)
    assert rig.wants() == [Span(2, 2), Span(3, 5)]


def test_messages_passed_over_fill_the_window() -> None:
    rig = Rig(end=100, order="key", window_max=5)
    assert flat(rig.offer([one(at, key=b"k") for at in range(100)], messages_max=100)) == [(0, 1)]
    assert rig.describe().next_new == 5
    assert rig.wants() == []


def test_order_can_be_turned_on_while_messages_are_out() -> None:
    rig = Rig(end=6)
    rig.lease("a", 2)
    rig.release(1)
    rig.alter(order="key")
    assert lease(rig) == [2, 4]
    rig.accept(0)
    assert lease(rig) == [1]


def test_purging_and_retention_free_keys() -> None:
    rig = rig_of()
    lease(rig)
    rig.purge()
    rig.accept(0, 2, 4)
    rig.see(end=8)
    assert flat(rig.offer([one(6, key=b"a"), one(7, key=b"b")])) == [(6, 1), (7, 1)]
    rig = rig_of()
    lease(rig)
    rig.see(start=1)
    assert lease(rig) == [1]


def test_rewinding_forgets_lines() -> None:
    rig = rig_of()
    lease(rig)
    rig.rewind(0)
    assert lease(rig) == [0, 2, 4]


def test_purging_teaches_nobody_the_keys_of_what_is_out() -> None:
    rig = rig_of("aab")
    lease(rig, messages_max=1)
    rig.wake()
    rig.purge()
    rig.see(end=6)
    assert flat(rig.offer([one(3, key=b"a")])) == []  # whose key has 0?
    assert rig.wants() == [Span(0, 2)]
    assert lease(rig, "aabacb") == [4, 5]
