"""Leasing and settling: what a consumer gets, what it may say of it, and what a new leader knows."""

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace
from tests.queues.rig import DEAD, RETRY, WALL_MS, Rig, flat, one

from runnel.model.errors import LeaseLost, RecordUnreadable
from runnel.model.ids import Millis
from runnel.model.queue_config import config_of
from runnel.queues.delivery import Delivery
from runnel.queues.outbox import OVERFLOW_PIECE_MAX, OVERFLOW_PIECES_MAX
from runnel.queues.past import NOTES_MAX
from runnel.queues.records import MARK_KEY, chunk_record
from runnel.queues.values import Aimed, Granted, Offered, Outcome, OwnerGone, Settle, Span, Unsent, Verdict, View, Why


def offsets(leased: list[tuple[int, int]]) -> list[int]:
    return [offset for offset, _ in leased]


# --- leasing
def test_messages_are_leased_once_in_order() -> None:
    rig = Rig(end=5)
    assert rig.wants() == [Span(0, 4)]
    assert rig.lease("a", 2) == [(0, 1), (1, 1)]
    assert rig.lease("b", 10) == [(2, 1), (3, 1), (4, 1)]
    assert rig.lease("c", 10) == []
    assert rig.states(0, 5) == "llllln"


def test_whole_ranges_are_leased_in_part() -> None:
    rig = Rig(end=5_000)
    leased = rig.offer([Offered(0, 1_499, 15_000), Offered(1_500, 2_999, 15_000)], messages_max=1_600)
    assert [tuple(grant) for grant in leased.grants] == [(0, 1_599, 1)]
    assert rig.wants("a", 400) == [Span(1_600, 4_999)]


def test_bytes_are_bounded_but_the_first_message_always_goes() -> None:
    rig = Rig()
    assert flat(rig.offer([Offered(0, 9, 1_000)], bytes_max=350)) == [(0, 1), (1, 1), (2, 1)]
    assert flat(rig.offer([Offered(3, 3, 1_000), Offered(4, 4, 1_000)], bytes_max=10)) == [(3, 1)]


def test_what_has_no_message_is_done() -> None:
    rig = Rig()
    leased = rig.offer([one(0), Offered(1, 3, passes=False), one(4)])
    assert flat(leased) == [(0, 1), (4, 1)]
    rig.accept(0)
    assert rig.describe().first_open == 4
    assert rig.describe().counters.filtered == 3


def test_what_was_not_offered_is_passed_over_and_kept() -> None:
    rig = Rig(end=6)
    assert flat(rig.offer([one(3)])) == [(3, 1)]
    rig.wake()
    assert rig.states(0, 5) == "rrrlnn"
    assert rig.wants() == [Span(0, 2), Span(4, 5)]


def test_leases_are_bounded() -> None:
    rig = Rig(leases_max=3)
    assert offsets(rig.lease("a", 10)) == [0, 1, 2]
    assert rig.wants("b") == []
    rig.accept(0, 1)
    assert rig.available == 1
    assert offsets(rig.lease("b", 10)) == [3, 4]


def test_the_window_is_bounded_by_what_is_not_done() -> None:
    rig = Rig(end=10_000, window_max=4, retry_topic="", retry_backoff_ms=50_000)
    assert offsets(rig.lease("a", 10)) == [0, 1, 2, 3]
    rig.release(0, 1, 2, 3, delay_ms=None)
    assert rig.wants() == []
    rig.pass_time(100_000)
    assert rig.lease() == [(0, 2), (1, 2), (2, 2), (3, 2)]
    rig.accept(1, 2, 3, attempt=2)
    for _ in range(3_000):  # one message at the head does not hold up those behind it
        (got, *_) = rig.lease("a", 3)
        rig.accept(*range(got[0], got[0] + 3))
    assert rig.describe().first_open == 0
    assert rig.describe().next_new == 9_004
    assert len(rig.kept) == 1 + 2 + 1  # the mark, the chunks at both ends, and how 1 to 3 ended


def test_what_is_passed_over_has_room_of_its_own_and_no_more() -> None:
    rig = Rig(end=2_000, window_max=10)
    assert flat(rig.offer([one(501)])) == []
    assert flat(rig.offer([one(500)])) == [(500, 1)]
    assert flat(rig.offer([Offered(600, 699, passes=False)])) == []
    assert rig.describe().next_new == 501
    assert rig.wants("b", 3) == [Span(0, 499)], "others get what was passed over"
    assert offsets(rig.lease("b", 20)) == list(range(9)), "as far as the window has room"
    assert rig.wants() == []
    rig.release(3)
    assert offsets(rig.lease("b", 20)) == [3], "what somebody had takes no more room"
    rig.accept(4, 5, 500)
    assert offsets(rig.lease("b", 20)) == [9, 10, 11]


def test_with_key_order_what_is_passed_over_takes_room_like_all_else() -> None:
    rig = Rig(end=1_000, window_max=10, order="key")
    assert flat(rig.offer([one(offset, key=b"k") for offset in range(20)])) == [(0, 1)]
    assert rig.describe().next_new == 10
    assert rig.wants() == []


def test_what_is_chosen_bit_by_bit_needs_memory_and_has_bounds() -> None:
    rig = Rig(end=10_000, window_max=100)
    chosen = 0
    while flat(rig.offer([one(2 * chosen)])):
        rig.accept(2 * chosen)
        chosen += 1
    assert 450 < 2 * chosen < 4 * 100 + 64, "each leaves a run that is done, and one that is not"
    assert rig.describe().ready == chosen - 1
    assert rig.wants(messages_max=3) == [Span(1, 1), Span(3, 3), Span(5, 5)], "others are not held up"
    while got := offsets(rig.lease("b", 50)):
        rig.accept(*got)
    assert rig.describe().first_open == 10_000


def test_who_chooses_is_offered_all_there_is_from_where_it_looked() -> None:
    rig = Rig(end=100, leases_max=5)
    rig.offer([one(10), one(20)])
    rig.release(10)
    now = Millis(rig.now_ms)
    whole = [Span(0, 9), Span(10, 10), Span(11, 19), Span(21, 99)]
    assert rig.machine.wants("b", rig.view, now, 1, (0, 0)) == whole
    assert rig.machine.wants("b", rig.view, now, 1, (5, 15)) == [Span(10, 10), Span(15, 19), Span(21, 99)]
    assert rig.machine.wants("b", rig.view, now, 1, (0, 50)) == [Span(10, 10), Span(50, 99)]
    assert rig.machine.wants("b", rig.view, now, 1, (60, 50)) == [Span(60, 99)]
    assert rig.machine.wants("b", rig.view, now, 1, (100, 0)) == []


def test_who_chooses_is_told_what_comes_while_it_looks() -> None:
    rig = Rig(end=100)
    rig.offer([one(10)])
    assert rig.machine.wants("b", rig.view, Millis(rig.now_ms), 1, (0, 0)), "it may want none of that"
    before = rig.available
    rig.release(10)
    assert rig.available == before + 1


def test_offers_of_what_is_out_or_done_give_nothing() -> None:
    rig = Rig(end=10)
    rig.lease("a", 2)
    rig.accept(0)
    assert flat(rig.offer([Offered(0, 3, 40)], "b")) == [(2, 1), (3, 1)]
    assert flat(rig.offer([one(4), one(4), one(3)], "b")) == [(4, 1)]


# --- settling
def test_what_is_accepted_is_done_and_only_the_mark_is_kept_for_it() -> None:
    rig = Rig(end=3_000, leases_max=5_000)
    for first in range(0, 1_000, 100):
        assert offsets(rig.lease("a", 100)) == list(range(first, first + 100))
        assert rig.written[-1] == 1  # a chunk
        rig.accept(*range(first, first + 100))
        assert rig.written[-1] == 1
    assert len(rig.kept) == 2
    rig.lease("a", 100)
    rig.accept(*range(1_000, 1_100))
    assert len(rig.kept) == 2  # the chunk below the mark is gone


def test_accepting_again_is_no_error() -> None:
    rig = Rig()
    rig.lease("a", 3)
    assert rig.accept(0, 2) == set()
    assert rig.accept(0, 2) == set()
    rig.wake()
    assert rig.accept(0, 2) == set()
    assert rig.describe().counters.accepted == 2


def test_done_is_done_whatever_is_said_later() -> None:
    rig = Rig()
    rig.lease("a", 1)
    rig.accept(0)
    assert rig.release(0) == {0}
    assert rig.reject(0) == {0}
    assert rig.extend(0) == {0}
    assert rig.leaving == []


def test_a_receipt_is_that_of_one_attempt() -> None:
    rig = Rig(end=1)
    rig.lease("a")
    rig.release(0)
    assert rig.accept(0) == {0}  # nobody has it
    assert rig.lease("b") == [(0, 2)]
    for late in (rig.accept, rig.release, rig.reject, rig.extend):
        assert late(0, attempt=1) == {0}
    assert rig.machine.standing(0).owner == "b"
    assert rig.accept(0, attempt=2) == set()


def test_a_message_that_was_never_leased_can_not_be_settled() -> None:
    rig = Rig()
    assert rig.accept(0) == {0}
    assert rig.accept(1_000) == {1_000}
    rig.offer([one(1)])
    assert rig.accept(0) == {0}


def test_a_verdict_counts_for_all_of_its_messages_or_for_none() -> None:
    rig = Rig()
    rig.lease("a", 4)
    rig.release(1)
    verdicts = [Verdict(0, 1, 1, 0), Verdict(2, 3, 1, 0)]
    refused = rig.ask("settle", Settle(verdicts)).refused
    assert list(refused) == [0]
    assert isinstance(refused[0], LeaseLost)
    assert rig.states(0, 3) == "lrdd"


def test_a_lease_is_known_by_its_owner_too() -> None:
    rig = Rig()
    rig.lease("a", 2)
    rig.lease("b", 2)
    verdicts = [Verdict(0, 1, 0, 0), Verdict(2, 3, 0, 5)]
    assert list(rig.ask("settle", Settle(verdicts, "b")).refused) == [0]
    assert rig.states(0, 3) == "lldd"
    assert list(rig.ask("settle", Settle([Verdict(0, 1, 0, 0)])).refused) == [0]  # nobody is no owner


def test_released_messages_go_first() -> None:
    rig = Rig()
    rig.lease("a", 3)
    rig.release(1)
    assert rig.lease("b", 2) == [(1, 2), (3, 1)]


# --- time
def test_a_lease_ends_and_the_message_comes_again_after_the_backoff() -> None:
    rig = Rig(end=1, lease_ms=10_000, retry_backoff_ms=1_000)
    rig.lease()
    rig.pass_time(9_900)
    assert rig.states(0, 0) == "l"
    rig.pass_time(200)
    assert rig.states(0, 0) == "w"
    assert rig.wants() == []
    assert rig.accept(0) == {0}
    rig.pass_time(600)
    assert rig.available == 1
    assert rig.lease() == [(0, 2)]
    assert rig.describe().counters.timed_out == 1


def test_a_lease_is_never_shorter_than_it_was_said_to_be() -> None:
    for lease_ms in (1, 7, 100, 12_345):
        rig = Rig(end=1, lease_ms=lease_ms, retry_backoff_ms=0)
        rig.now_ms += 3
        leased = rig.offer([one(0)])
        assert leased.until_ms >= rig.now_ms + (WALL_MS - 5_000) + lease_ms
        rig.pass_time(lease_ms - 1)
        assert rig.states(0, 0) == "l"
        rig.pass_time(1 + lease_ms // 100)
        assert rig.states(0, 0) == "r"


def test_extending_gives_the_whole_time_again() -> None:
    rig = Rig(end=2, lease_ms=10_000, retry_backoff_ms=20_000)
    rig.lease()
    rig.pass_time(9_000)
    assert rig.extend(0) == set()
    rig.pass_time(5_000)
    assert rig.states(0, 1) == "lw"
    assert rig.extend(1) == {1}
    rig.pass_time(5_100)
    assert rig.states(0, 0) == "w"


def test_an_extended_lease_outlives_the_leader() -> None:
    rig = Rig(end=1, lease_ms=10_000)
    rig.lease()
    rig.extend(0, lease_ms=50_000)
    rig.wake()
    rig.pass_time(49_000)
    assert rig.accept(0) == set()


def test_a_clock_that_is_set_does_not_end_leases() -> None:
    rig = Rig(end=1, lease_ms=10_000)
    rig.lease()
    rig.wall_ms += 3_600_000
    rig.pass_time(5_000)
    assert rig.accept(0) == set()


def test_nothing_is_delivered_before_its_delay() -> None:
    rig = Rig(end=3)
    rig.lease()
    rig.release(0, delay_ms=5_000)
    rig.release(1, delay_ms=2_000)
    rig.release(2, delay_ms=0)
    assert offsets(rig.lease()) == [2]
    rig.pass_time(1_999)
    assert rig.wants() == []
    rig.pass_time(20)
    assert rig.lease() == [(1, 2)]
    rig.wake()
    rig.pass_time(2_900)
    assert rig.wants() == []
    rig.pass_time(200)
    assert rig.lease() == [(0, 2)]


# --- connections
def test_leases_of_a_connection_end_with_it() -> None:
    rig = Rig(end=4)
    rig.lease("a", 1, lease_ms=0)
    rig.lease("b", 1, lease_ms=0)
    rig.lease("a", 1)
    rig.pass_time(100_000_000)
    assert rig.states(0, 2) == "llr"
    rig.gone("a")
    assert rig.states(0, 2) == "rlr"
    assert rig.accept(0) == {0}
    assert rig.lease("c", 2) == [(0, 2), (2, 2)]


def test_leases_of_connections_end_with_the_leader_and_their_attempts_are_kept() -> None:
    rig = Rig(end=2)
    rig.lease("a", lease_ms=0)
    rig.accept(1)
    rig.wake()
    assert rig.states(0, 1) == "rd"
    assert rig.accept(0) == {0}
    assert rig.lease() == [(0, 2)]


def test_a_lease_until_a_moment_can_be_bound_to_its_leader() -> None:
    rig = Rig(end=3)
    rig.lease("a", 2, bound=True)
    rig.lease("b", 1)
    assert rig.accept(1) == set()
    rig.wake()
    assert rig.states(0, 2) == "rdl"
    assert rig.lease("c", bound=True) == [(0, 2)]
    rig.pass_time(31_000)  # its moment counts, too
    assert "l" not in rig.states(0, 2)


# --- new leaders
def test_a_new_leader_knows_leases_attempts_and_what_is_done() -> None:
    rig = Rig(end=10)
    rig.lease("a", 5)
    rig.accept(1, 3)
    rig.release(2, delay_ms=0)
    rig.wake()
    assert rig.states(0, 6) == "ldrdlnn"
    assert rig.accept(0, 4) == set()
    assert rig.lease("a", 2) == [(2, 2), (5, 1)]


def test_a_lease_that_is_not_kept_never_was() -> None:
    rig = Rig(end=2)
    kept = dict(rig.kept)
    rig.lease()
    rig.kept = kept
    rig.wake()
    assert rig.accept(0) == {0}
    assert rig.lease() == [(0, 1), (1, 1)]


def test_a_new_queue_begins_where_it_is_told_and_stays_there() -> None:
    for start, first in (("earliest", 10), ("latest", 50)):
        rig = Rig(end=50, log_start=10, start=start)
        rig.see(end=60)
        rig.wake()
        assert rig.wants() == [Span(first, 59)]


def test_records_of_a_crowd_of_leases_stay_small() -> None:
    rig = Rig(end=1_000)
    for _ in range(500):
        rig.lease("a", 1)
        rig.pass_time(10)
    assert sum(len(key) + len(value) for key, value in rig.kept.items()) < 500


# --- what leaves
def test_a_rejected_message_leaves_with_its_reason_and_is_done() -> None:
    rig = Rig(end=3)
    rig.lease()
    rig.reject(1, reason="no such address")
    (leaving,) = rig.leaving
    assert (leaving.first, leaving.last, leaving.attempts, leaving.why) == (1, 1, 1, Why.REJECTED)
    assert leaving.reason == "no such address"
    assert leaving.target == DEAD
    assert rig.states(0, 2) == "ldl"
    assert rig.accept(1) == {1}  # it is not done by being accepted
    assert rig.describe().counters.dead == 1


def test_a_message_that_was_released_too_often_leaves_with_what_was_said_last() -> None:
    rig = Rig(end=1, attempts_max=2)
    for attempt, reason in ((1, "busy"), (2, "no answer")):
        rig.lease()
        rig.settle(Outcome.RELEASE, 0, attempt=attempt, delay_ms=0, reason=reason)
    (leaving,) = rig.leaving
    assert (leaving.why, leaving.reason, leaving.attempts) == (Why.ATTEMPTS, "no answer", 2)


def test_who_leaves_is_ordered_to_until_it_has_arrived() -> None:
    rig = Rig(end=3)
    rig.lease()
    rig.reject(0, 1, reason="x")
    (before,) = rig.leaving
    rig.accept(2)
    rig.wake()
    assert rig.leaving == [before]
    rig.tell("left", before.id)
    rig.wake()
    assert rig.leaving == []
    assert rig.describe().leaving == 0


def test_who_has_left_was_not_accepted_also_when_it_has_arrived() -> None:
    rig = Rig(end=4, window_wait_max_ms=0)
    rig.lease()
    rig.reject(0)
    rig.release(1, delay_ms=1_000)
    rig.accept(2, 3)
    for leaving in list(rig.leaving):
        rig.tell("left", leaving.id)
    assert rig.accept(0, 1, 2) == {0, 1}
    rig.wake()
    assert rig.accept(0, 1, 2) == {0, 1}
    assert rig.leaving == []


def test_what_another_attempt_did_was_not_done_by_this_one() -> None:
    rig = Rig(end=3)
    rig.lease()
    rig.release(0, 1, 2)
    rig.lease("b", 3)
    rig.accept(0, 1, attempt=2)
    rig.release(2, attempt=2)
    rig.purge()
    for _ in range(2):
        assert rig.accept(0, 1, 2, attempt=1) == {0, 1, 2}
        assert rig.accept(0, 1, attempt=2) == set()
        assert rig.accept(2, attempt=2) == {2}
        rig.wake()


def test_a_clock_that_ran_ahead_holds_up_nobody_for_longer_than_a_lease() -> None:
    rig = Rig(end=2, lease_ms=10_000)
    rig.wall_ms += 3_600_000
    rig.wake()
    rig.lease("a", 1)
    rig.lease("a", 1, lease_ms=50_000)
    rig.wall_ms -= 3_600_000
    rig.wake()
    rig.pass_time(49_000)
    assert rig.states(0, 1) == "ll"
    rig.pass_time(5_000)
    assert rig.states(0, 1) == "rr"


def test_of_what_was_long_ago_nobody_is_told_that_it_was_accepted() -> None:
    rig = Rig(end=2_000)
    for offset in range(0, 2 * NOTES_MAX + 4, 2):
        rig.lease("a", 2)
        rig.accept(offset)
        rig.reject(offset + 1)
        rig.tell("left", rig.leaving.pop().id)
    assert rig.accept(0, 1, 2, 3, 4, 5) == {0, 1, 2, 3, 5}
    rig.wake()
    assert rig.accept(0, 1, 2, 3, 4, 5) == {0, 1, 2, 3, 5}
    assert len(rig.kept) == NOTES_MAX + 2
    rig.rewind(0)
    assert len(rig.kept) == 1


def test_a_target_that_was_not_known_is_kept_once_it_is() -> None:
    rig = Rig(end=1)
    rig.see(dead=None)
    rig.lease()
    rig.reject(0)
    (leaving,) = rig.leaving
    assert leaving.target is None
    rig.tell("aim", Aimed(leaving.id, DEAD))
    assert rig.leaving[-1].target == DEAD
    rig.tell("aim", Aimed(leaving.id, replace(DEAD, floor=99)))
    assert [one.target for one in rig.leaving] == [None, DEAD, DEAD]
    rig.wake()
    assert [one.target for one in rig.leaving] == [DEAD]


def test_whose_topic_was_deleted_goes_to_another() -> None:
    rig = Rig(end=1)
    rig.lease()
    rig.reject(0)
    rig.tell("aim", Aimed(rig.leaving[0].id, RETRY))
    rig.wake()
    assert [one.target for one in rig.leaving] == [RETRY]
    rig.tell("left", rig.leaving[0].id)
    assert rig.tell("aim", Aimed(rig.leaving[0].id, DEAD)).orders == []


def test_without_a_topic_for_them_dead_messages_are_dropped() -> None:
    rig = Rig(end=1, dead_letter_topic="")
    rig.lease()
    rig.reject(0)
    assert rig.leaving == []
    assert rig.describe().counters.dead == 1
    assert rig.describe().first_open == 1


def test_a_message_is_dead_after_its_attempts_however_they_end() -> None:
    rig = Rig(end=3, attempts_max=2, retry_backoff_ms=0)
    for attempt in (1, 2):
        assert len(rig.lease("a", 1)) == 1
        assert len(rig.lease("b", 1)) == 1
        assert len(rig.lease("c", 1, lease_ms=0)) == 1
        rig.release(0, attempt=attempt)
        rig.gone("c")
        rig.pass_time(40_000)
    assert sorted((leaving.first, leaving.attempts, leaving.why) for leaving in rig.leaving) == [
        (offset, 2, Why.ATTEMPTS) for offset in range(3)
    ]
    assert rig.describe().first_open == 3


def test_connections_that_end_with_the_leader_use_up_attempts_too() -> None:
    rig = Rig(end=1, attempts_max=1)
    rig.lease("a", lease_ms=0)
    rig.wake()
    assert [leaving.why for leaving in rig.leaving] == [Why.ATTEMPTS]


def test_without_a_limit_a_message_is_never_dead() -> None:
    rig = Rig(end=1, attempts_max=0)
    for attempt in range(1, 50):
        assert rig.lease() == [(0, attempt)]
        rig.release(0, attempt=attempt)


def test_a_message_that_is_to_wait_for_long_is_copied_forward() -> None:
    rig = Rig(end=2, window_wait_max_ms=10_000)
    rig.lease()
    rig.release(0, delay_ms=10_000)
    rig.release(1, delay_ms=10_001)
    (leaving,) = rig.leaving
    assert (leaving.first, leaving.why, leaving.target) == (1, Why.WAITS, RETRY)
    assert leaving.due_ms == rig.wall_ms + 10_001
    assert rig.states(0, 1) == "wd"
    assert rig.describe().counters.copied == 1


def test_in_place_it_waits_if_there_is_nowhere_to_go() -> None:
    both: list[dict[str, Any]] = [{"order": "key"}, {"retry_topic": ""}]
    for texts in both:
        rig = Rig(end=1, **texts)
        rig.offer([one(0, key=b"k")])
        rig.release(0, delay_ms=10_000_000)
        assert rig.leaving == []
        assert rig.states(0, 0) == "w"


def test_those_who_wait_do_not_crowd_out_the_others() -> None:
    rig = Rig(end=100, window_max=10)
    for _ in range(20):
        ((offset, _),) = rig.lease("a", 1)
        rig.release(offset, delay_ms=30_000)
        for leaving in rig.leaving:
            assert leaving.why is Why.STRAGGLES
            rig.tell("left", leaving.id)
    assert rig.describe().waiting == 5
    assert rig.describe().counters.copied == 15
    assert rig.describe().next_new == 20


def test_when_nobody_takes_in_who_leaves_nothing_more_is_delivered() -> None:
    rig = Rig(end=100, window_max=10)
    rig.lease("a", 10)
    rig.reject(*range(10))
    assert rig.wants() == []
    rig.tell("left", rig.leaving[0].id)
    assert rig.available == 1
    assert rig.wants() == [Span(10, 99)]


def test_a_copy_counts_the_attempts_it_had_before() -> None:
    rig = Rig(end=2, attempts_max=4)
    assert flat(rig.offer([one(0, attempts=3)])) == [(0, 4)]
    rig.release(0, attempt=4)
    assert [leaving.attempts for leaving in rig.leaving] == [4]


def test_a_reason_is_cut() -> None:
    rig = Rig(end=1)
    rig.lease()
    rig.reject(0, reason="x" * 5_000)
    assert len(rig.leaving[0].reason) == 1_000


# --- expiry
def test_expired_messages_are_not_delivered() -> None:
    rig = Rig(end=3)
    got = rig.offer([one(0, expires_ms=rig.wall_ms), one(1, expires_ms=rig.wall_ms + 1), one(2)])
    assert flat(got) == [(1, 1), (2, 1)]
    assert rig.leaving == []
    assert rig.describe().counters.expired == 1


def test_expired_messages_become_dead_letters_if_told_so() -> None:
    rig = Rig(end=2, expired="dead")
    rig.offer([one(0, expires_ms=1), one(1, expires_ms=1)])
    assert sorted((leaving.first, leaving.last, leaving.why) for leaving in rig.leaving) == [
        (0, 0, Why.EXPIRED),
        (1, 1, Why.EXPIRED),
    ]
    assert rig.describe().first_open == 2


def test_a_message_expires_between_its_attempts() -> None:
    rig = Rig(end=1, expired="dead")
    expires_ms = rig.wall_ms + 1_000
    rig.offer([one(0, expires_ms=expires_ms)])
    rig.release(0, delay_ms=0)
    rig.pass_time(2_000)
    assert flat(rig.offer([one(0, expires_ms=expires_ms)])) == []
    assert [leaving.attempts for leaving in rig.leaving] == [1]


# --- length
def test_at_the_maximum_length_the_oldest_are_dead() -> None:
    rig = Rig(end=5, max_length=3)
    assert offsets(rig.lease("a", 1)) == [2]
    assert rig.describe().counters.dead == 2
    rig.see(end=8)
    assert offsets(rig.lease("a", 10)) == [6, 7]
    assert rig.states(0, 7) == "ddldddll"
    assert [(one.first, one.last, one.attempts, one.why) for one in rig.leaving] == [
        (0, 1, 0, Why.OVERFLOW), (3, 5, 0, Why.OVERFLOW),
    ]  # fmt: skip
    rig.wake()
    assert [(one.first, one.last) for one in rig.leaving] == [(0, 1), (3, 5)], "they leave until they have arrived"


def test_a_message_that_was_tried_keeps_its_attempts_when_it_overflows() -> None:
    rig = Rig(end=3, max_length=3)
    rig.lease("a", 2)
    rig.release(0, delay_ms=0)
    rig.release(1, delay_ms=60_000)
    rig.see(end=5)
    assert offsets(rig.lease("a", 1)) == [], "it went just now"
    assert offsets(rig.lease("a", 1)) == [2]
    assert [(one.first, one.attempts) for one in rig.leaving] == [(0, 1), (1, 1)]


def test_without_dead_letters_the_oldest_are_dropped() -> None:
    rig = Rig(end=5, max_length=3, dead_letter_topic="")
    assert offsets(rig.lease("a", 10)) == [2, 3, 4]
    assert (rig.leaving, rig.describe().counters.dropped) == ([], 2)


def test_a_long_backlog_overflows_piece_by_piece_and_holds_up_nobody() -> None:
    rig = Rig(end=1_000_000, max_length=10, window_max=100)
    bound = OVERFLOW_PIECES_MAX * OVERFLOW_PIECE_MAX
    got = rig.lease("a", 10)
    assert offsets(got) == list(range(bound, bound + 10)), "what is too much goes as far as there is room"
    assert len(rig.leaving) == OVERFLOW_PIECES_MAX
    assert max(rig.written) <= 2 * OVERFLOW_PIECES_MAX + 10
    assert rig.accept(*(offset for offset, _ in got)) == set()
    while rig.leaving:
        rig.tell("left", rig.leaving.pop(0).id)
    assert rig.describe().leaving == 0
    assert rig.describe().counters.dead == 1_000_000 - 10 - 10
    assert offsets(rig.lease("a", 20)) == list(range(999_990, 1_000_000))
    assert len(rig.kept) < 100


def test_a_full_queue_that_refuses_keeps_what_it_has() -> None:
    rig = Rig(end=5, max_length=3, overflow="refuse")
    assert len(rig.lease()) == 5
    assert rig.machine.length(rig.view) == 5
    rig.accept(0, 3)
    assert rig.machine.length(rig.view) == 3


def test_what_retention_took_is_done() -> None:
    rig = Rig(end=10_000)
    rig.lease("a", 5)
    rig.release(3, delay_ms=1_000)
    rig.see(start=4)
    assert rig.accept(0) == set()
    assert rig.states(0, 5) == "ddddln"
    rig.see(start=5_000)
    assert rig.wants() == [Span(5_000, 9_999)]
    rig.lease("a", 1)
    rig.wake()
    assert rig.describe().first_open == 5_000
    assert len(rig.kept) == 2


# --- administration
def test_purging_takes_all_that_nobody_has() -> None:
    rig = Rig(end=100_000_000)
    rig.lease("a", 4)
    rig.release(1, delay_ms=0)
    rig.release(2, delay_ms=1_000)
    assert rig.purge() == 100_000_000 - 2
    assert rig.states(0, 4) == "lddld"
    rig.see(end=100_000_002)
    assert rig.wants() == [Span(100_000_000, 100_000_001)]
    rig.wake()
    assert rig.accept(0, 3) == set()
    assert rig.describe().first_open == 100_000_000
    assert len(rig.kept) <= 2


def test_rewinding_delivers_again_and_voids_all_receipts() -> None:
    rig = Rig(end=10)
    rig.lease("a", 6)
    rig.accept(0, 1, 2, 3)
    rewound = rig.rewind(2)
    assert (rewound.before, rewound.after, rewound.generation) == (4, 2, 1)
    assert rig.accept(0, 4) == {0, 4}
    assert rig.lease("a", 3) == [(2, 1), (3, 1), (4, 1)]
    rig.wake()
    assert rig.accept(4) == {4}  # another life of the same message, and the same attempt
    assert rig.accept(4, generation=1) == set()
    assert rig.states(0, 6) == "ddlldnn"


def test_rewinding_stays_within_the_log() -> None:
    rig = Rig(end=10, log_start=5)
    assert rig.rewind(-1).after == 5
    assert rig.rewind(1_000).after == 10


def test_who_has_left_before_a_rewind_still_arrives_and_dies_again_under_another_name() -> None:
    rig = Rig(end=1)
    rig.lease()
    rig.reject(0)
    rig.rewind(0)
    rig.lease()
    rig.reject(0, generation=1)
    rig.wake()
    assert [leaving.id for leaving in rig.leaving] == [(0, 0), (1, 0)]


def test_peeking_and_describing_change_nothing() -> None:
    rig = Rig(end=9)
    rig.lease("a", 4)
    rig.accept(1)
    rig.release(2, delay_ms=5_000)
    kept = dict(rig.kept)
    before = rig.describe()
    assert rig.machine.standing(0).attempts == 1
    assert rig.machine.standing(2).until_ms >= WALL_MS + 5_000
    assert rig.describe() == before
    assert rig.kept == kept
    assert (before.leased, before.waiting, before.ready, before.done_above, before.backlog) == (2, 1, 0, 1, 5)


# --- telling who waits
def test_who_found_nothing_is_told_once_when_there_is_something() -> None:
    rig = Rig(end=1)
    rig.lease()
    assert rig.wants() == []
    rig.release(0)
    assert rig.available == 1
    rig.lease()
    rig.release(0, attempt=2)
    assert rig.available == 1  # nobody waited


def test_nobody_is_woken_for_nothing() -> None:
    rig = Rig(end=2)
    rig.lease()
    assert rig.wants("b") == []
    rig.accept(0, 1)
    rig.tell("release_owner", OwnerGone("a"))
    assert rig.available == 0


def test_what_a_member_gives_back_untouched_was_no_attempt() -> None:
    rig = Rig(end=3, attempts_max=1)
    rig.lease("a", 1, bound=True)
    rig.lease("a", 1)
    rig.lease("b", 1, bound=True)
    rig.tell("release_owner", OwnerGone("a", untouched=True))
    assert rig.states(0, 2) == "rdl"  # who has a receipt has had it
    assert [leaving.first for leaving in rig.leaving] == [1]
    assert rig.lease("c", 1) == [(0, 1)]
    rig.gone("b")
    assert [leaving.first for leaving in rig.leaving] == [1, 2]


def test_a_queue_that_begins_by_time_begins_within_the_log() -> None:
    for begin, first in ((None, 2), (0, 2), (4, 4), (9, 6)):
        delivery = Delivery()
        config = config_of(frozenset({("start", "by_duration:PT1H")}))
        delivery.wake(View(config, 2, 6, begin=begin), Millis(0), Millis(WALL_MS))
        assert delivery.next_new == first


def test_a_lease_whose_messages_did_not_leave_never_was() -> None:
    rig = Rig(end=4, attempts_max=1)
    assert rig.lease("a", 2, bound=True) == [(0, 1), (1, 1)]
    assert rig.lease("a", 1, bound=True) == [(2, 1)]
    assert rig.lease("b", 1, bound=True) == [(3, 1)]
    rig.tell("take_back", Unsent("a", [Granted(1, 1, 1), Granted(2, 2, 2), Granted(3, 3, 1)]))
    assert rig.states(0, 3) == "lrll"  # neither another attempt, nor what another member has
    assert rig.lease("b", 1, bound=True) == [(1, 1)]


def test_the_place_of_the_one_consumer_falls_free_when_nothing_left() -> None:
    rig = Rig(end=2, consumers="single")
    assert rig.lease("a", 2, bound=True) == [(0, 1), (1, 1)]
    rig.tell("take_back", Unsent("a", [Granted(0, 0, 1)]))
    assert rig.lease("b") == []
    rig.tell("take_back", Unsent("a", [Granted(1, 1, 1)]))
    assert rig.lease("b", 2) == [(0, 1), (1, 1)]


def test_who_waited_at_the_machine_before_is_woken_by_the_one_that_was_read_again() -> None:
    rig = Rig(end=1, lease_ms=1_000)
    assert rig.lease("a") == [(0, 1)]
    assert rig.wants("b") == []
    rig.wake()
    woken = rig.available
    rig.pass_time(2_000)
    assert rig.available == woken + 1
    assert rig.lease("b") == [(0, 2)]


def test_what_another_queue_of_the_name_kept_counts_for_nothing_and_is_taken_out() -> None:
    rig = Rig()
    fresh = len(rig.kept)
    rig.kept.clear()
    rig.see(made=4)
    rig.wake()
    assert offsets(rig.lease(messages_max=4)) == [0, 1, 2, 3]
    assert not rig.reject(1, generation=4)
    assert not rig.release(3, generation=4)
    assert offsets(rig.lease(messages_max=1)) == [3]
    assert not rig.accept(3, attempt=2, generation=4)
    rig.see(made=9)
    rig.wake()
    assert len(rig.kept) == fresh, "chunks, letters and ends were taken out"
    assert rig.leaving == []
    assert rig.describe().counters.delivered == 0
    assert offsets(rig.lease(messages_max=4)) == [0, 1, 2, 3]
    assert rig.accept(0, generation=4) == {0}, "a receipt of the old queue is none of the new one's"
    assert not rig.accept(0, 1, 2, 3, generation=9)
    rig.wake()
    assert offsets(rig.lease(messages_max=4)) == [4, 5, 6, 7]


def test_what_a_share_group_kept_is_the_queues_that_is_made_of_it() -> None:
    rig = Rig()
    rig.lease(messages_max=2)
    rig.accept(0)
    rig.see(made=4)
    rig.wake()
    assert rig.describe().first_open == 1
    assert not rig.accept(1)
    rig.see(made=0)
    rig.wake()
    assert rig.describe().first_open == 0, "the queue was deleted: the group begins anew"


# --- records that can't be read
def lose(rig: Rig, key: bytes) -> None:
    """A new leader, who can't read the record of this key."""
    rig.kept[key] = b"not readable any more"
    rig.machine = Delivery()
    for each, value in rig.kept.items():
        with suppress(RecordUnreadable):
            rig.machine.replay(each, value)
    rig.perform(rig.machine.wake(rig.view, Millis(rig.now_ms), Millis(rig.wall_ms)))


def test_messages_of_a_chunk_that_cannot_be_read_are_delivered_again_and_no_others() -> None:
    rig = Rig(end=3_000, leases_max=5_000)
    rig.offer([Offered(0, 2_499, 25_000)], messages_max=2_500)
    rig.accept(*range(100), *range(1_100, 1_200), *range(2_100, 2_200))
    lose(rig, chunk_record(1, None)[0])
    assert rig.states(99, 100) == "dl"
    assert rig.states(1_024, 2_047) == "r" * 1_024
    assert rig.states(2_099, 2_100) == "ld"
    assert rig.states(2_499, 2_500) == "ln"
    assert rig.lease("b", 3) == [(1_024, 2), (1_025, 2), (1_026, 2)]
    rig.wake()
    assert rig.states(1_024, 1_027) == "lllr"


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_without_its_mark_a_queue_begins_with_the_first_message(start: str) -> None:
    rig = Rig(end=5, start="earliest")
    assert offsets(rig.lease("a", 3)) == [0, 1, 2]
    rig.alter(start=start)
    lose(rig, MARK_KEY)
    assert offsets(rig.lease("b", 10)) == [0, 1, 2, 3, 4]
    rig.wake()
    assert rig.states(0, 4) == "lllll"
