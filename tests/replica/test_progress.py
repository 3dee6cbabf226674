"""What a leader concludes from what its replicas hold; each test fails when its rule is switched off."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runnel.cluster.image import Partition
from runnel.model.ids import BrokerId, Epoch, Millis, Offset
from runnel.replica.progress import Progress, Proposal

ONE, TWO, THREE, STRANGER = BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(9)
LIVES: Mapping[BrokerId, Epoch] = {ONE: Epoch(11), TWO: Epoch(12), THREE: Epoch(13)}
LAG_MS = 1_000


def image(*isr: BrokerId, epoch: int = 0) -> Partition:
    return Partition(ONE, Epoch(5), Epoch(epoch), (ONE, TWO, THREE), isr)


def leading(*isr: BrokerId, high: int = 0, start: int = 0, minimum: int = 1) -> Progress:
    return Progress(
        ONE, image(*isr), epoch_start=Offset(start), high_watermark=Offset(high), minimum=minimum, now_ms=Millis(0)
    )


def fetch(
    progress: Progress, who: BrokerId, offset: int, *, end: int = 100, now: int = 0, life: int | None = None
) -> bool:
    epoch = LIVES.get(who, Epoch(1)) if life is None else Epoch(life)
    return progress.fetched(who, epoch, Offset(offset), Offset(end), Millis(now))


def propose(progress: Progress, now: int = 0, lives: Mapping[BrokerId, Epoch] = LIVES) -> Proposal | None:
    return progress.propose(lives, Millis(now), LAG_MS)


def test_one_replica_alone_decides() -> None:
    progress = leading(ONE, high=5)
    assert progress.own(Offset(8))
    assert progress.high_watermark == 8
    assert not progress.own(Offset(8))


def test_the_slowest_member_decides() -> None:
    progress = leading(ONE, TWO)
    assert not progress.own(Offset(10))
    assert fetch(progress, TWO, 4)
    assert progress.high_watermark == 4


def test_who_has_not_asked_yet_holds_nothing() -> None:
    progress = leading(ONE, TWO, THREE, high=3)
    progress.own(Offset(10))
    fetch(progress, TWO, 10)
    assert progress.high_watermark == 3


def test_who_is_not_in_sync_has_no_say() -> None:
    progress = leading(ONE)
    progress.own(Offset(10))
    assert not fetch(progress, TWO, 4)
    assert not fetch(progress, STRANGER, 50)
    assert progress.high_watermark == 10


def test_below_the_minimum_nothing_is_committed() -> None:
    progress = leading(ONE, minimum=2)
    assert not progress.enough
    assert not progress.own(Offset(10))
    assert progress.high_watermark == 0


def test_while_the_controller_keeps_somebody_eligible_nothing_is_committed() -> None:
    """Its minimum may be another than this broker's: then 2 may lead, so 2 must have all that is committed."""
    progress = leading(ONE, TWO)
    progress.own(Offset(10))
    fetch(progress, TWO, 4)
    assert not progress.see(replace(image(ONE, epoch=1), elr=(TWO,)))
    assert not progress.enough
    assert not progress.own(Offset(20))
    assert progress.high_watermark == 4
    assert progress.see(image(ONE, epoch=2))
    assert progress.high_watermark == 20


def test_a_leader_with_a_higher_minimum_than_the_controller_commits_nothing_either() -> None:
    progress = leading(ONE, TWO, minimum=2)
    fetch(progress, TWO, 4)
    progress.own(Offset(10))
    assert not progress.see(image(ONE, epoch=1))
    assert not progress.enough
    assert progress.high_watermark == 4


def test_a_minimum_above_the_number_of_replicas_counts_as_all_of_them() -> None:
    progress = Progress(
        ONE, Partition(ONE, Epoch(0), Epoch(0), (ONE,), (ONE,)),
        epoch_start=Offset(0), high_watermark=Offset(0), minimum=2, now_ms=Millis(0),
    )  # fmt: skip
    assert progress.own(Offset(10))


def test_who_is_proposed_counts_at_once() -> None:
    progress = leading(ONE)
    progress.own(Offset(10))
    fetch(progress, TWO, 10, end=10)
    assert propose(progress) is not None
    assert progress.maximal_isr == {ONE, TWO}
    assert not progress.own(Offset(20))
    assert progress.high_watermark == 10


def test_who_is_to_leave_counts_until_the_image_says_that_it_left() -> None:
    progress = leading(ONE, TWO)
    fetch(progress, TWO, 4, end=10)
    progress.own(Offset(10))
    assert propose(progress, now=LAG_MS + 1) == Proposal(Epoch(5), Epoch(0), ((ONE, Epoch(-1)),))
    assert progress.high_watermark == 4
    assert progress.see(image(ONE, epoch=1))
    assert progress.high_watermark == 10


def test_a_refused_proposal_no_longer_counts() -> None:
    progress = leading(ONE)
    progress.own(Offset(10))
    fetch(progress, TWO, 10, end=10)
    proposal = propose(progress)
    assert proposal is not None
    assert not progress.own(Offset(20))
    assert progress.withdraw(proposal)
    assert progress.high_watermark == 20


def test_one_proposal_at_a_time() -> None:
    progress = leading(ONE)
    progress.own(Offset(10))
    fetch(progress, TWO, 10, end=10)
    assert propose(progress) is not None
    fetch(progress, THREE, 10, end=10)
    assert propose(progress) is None
    progress.see(image(ONE, TWO, epoch=1))
    second = propose(progress)
    assert second is not None
    assert second.members == {ONE, TWO, THREE}
    assert second.partition_epoch == 1


def test_an_image_that_is_older_than_the_proposal_leaves_it_under_way() -> None:
    progress = leading(ONE)
    progress.see(image(ONE, epoch=4))
    progress.own(Offset(10))
    fetch(progress, TWO, 10, end=10)
    propose(progress)
    progress.see(image(ONE, epoch=4))
    assert progress.maximal_isr == {ONE, TWO}


def test_who_lacks_committed_messages_may_not_join() -> None:
    progress = leading(ONE)
    progress.own(Offset(10))
    fetch(progress, TWO, 9, end=10)
    assert propose(progress) is None


def test_who_lacks_what_this_epoch_began_with_may_not_join() -> None:
    """KAFKA-7128: the high watermark of a new leader may be far behind what was committed."""
    progress = leading(ONE, THREE, high=2, start=10)
    progress.own(Offset(10))
    fetch(progress, TWO, 5, end=5)  # caught up as far as time goes, and past the high watermark
    assert propose(progress) is None
    fetch(progress, TWO, 10, end=10)
    assert propose(progress) is not None


def test_who_began_another_life_must_show_it_first() -> None:
    progress = leading(ONE)
    progress.own(Offset(10))
    fetch(progress, TWO, 10, end=10)
    assert propose(progress, lives={**LIVES, TWO: Epoch(99)}) is None
    fetch(progress, TWO, 10, end=10, life=99)
    proposal = propose(progress, lives={**LIVES, TWO: Epoch(99)})
    assert proposal is not None
    assert (TWO, Epoch(99)) in proposal.isr


def test_what_an_earlier_life_said_late_counts_for_nothing() -> None:
    progress = leading(ONE, TWO)
    progress.own(Offset(10))
    fetch(progress, TWO, 2, life=99)
    assert not fetch(progress, TWO, 10, life=98)
    assert progress.high_watermark == 2


def test_who_keeps_up_with_what_there_was_does_not_lag() -> None:
    progress = leading(ONE, TWO)
    for now in range(0, 10 * LAG_MS, LAG_MS // 2):
        fetch(progress, TWO, now, end=now + 10, now=now)  # always one step behind: had all of it at the last fetch
        fetch(progress, TWO, now + 10, end=now + 20, now=now + 1)
    assert not progress.lags(TWO, Millis(10 * LAG_MS - 1), LAG_MS)


def test_who_falls_behind_lags_although_it_asks() -> None:
    progress = leading(ONE, TWO)
    for now in range(0, 3 * LAG_MS, LAG_MS // 10):
        fetch(progress, TWO, now, end=10 * now + 100, now=now)
    assert progress.lags(TWO, Millis(3 * LAG_MS), LAG_MS)


def test_a_leader_never_leaves_by_lagging() -> None:
    progress = leading(ONE, TWO)
    proposal = propose(progress, now=LAG_MS + 1)
    assert proposal is not None
    assert proposal.members == {ONE}
    progress.see(image(ONE, epoch=1))
    assert propose(progress, now=100 * LAG_MS) is None


def test_a_leader_whose_copy_is_damaged_asks_for_an_isr_of_the_others() -> None:
    progress = leading(ONE, TWO)
    proposal = progress.resign()
    assert proposal is not None
    assert proposal.members == {TWO}
    assert leading(ONE).resign() is None


def test_a_damaged_leader_alone_in_the_isr_hands_over_to_one_who_is_eligible_and_there() -> None:
    """Nobody would ever get what is damaged, and join."""
    progress = leading(ONE, high=4, minimum=2)
    progress.see(replace(image(ONE, epoch=1), elr=(THREE,)))
    assert progress.resign() is None
    fetch(progress, TWO, 4)
    assert progress.resign() is None
    fetch(progress, THREE, 4)
    proposal = progress.resign()
    assert proposal is not None
    assert proposal.isr == ((THREE, LIVES[THREE]),)
    assert progress.resign() is None


def test_new_replicas_of_a_reassignment_are_followed_and_old_ones_forgotten() -> None:
    progress = leading(ONE, TWO)
    four = BrokerId(4)
    progress.see(replace(image(ONE, TWO, epoch=1), replicas=(ONE, TWO, four)))
    progress.own(Offset(10))
    fetch(progress, four, 10, end=10, life=14)
    fetch(progress, THREE, 10, end=10)
    proposal = propose(progress, lives={**LIVES, four: Epoch(14)})
    assert proposal is not None
    assert proposal.members == {ONE, TWO, four}


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, THREE]), st.integers(0, 50))))
def test_it_never_goes_back_and_never_passes_a_member(reports: list[tuple[BrokerId, int]]) -> None:
    progress = leading(ONE, TWO)
    held = {ONE: 0, TWO: 0}
    best = 0
    for replica, offset in reports:
        if replica in held:
            held[replica] = offset
        if replica == ONE:
            progress.own(Offset(offset))
        else:
            fetch(progress, replica, offset)
        best = max(best, min(held.values()))
        assert progress.high_watermark == best


def test_who_has_all_and_was_heard_of_does_not_lag() -> None:
    progress = leading(ONE, TWO)
    fetch(progress, TWO, 100, now=0)
    progress.heard(TWO, LIVES[TWO], Offset(100), Millis(5_000))
    assert not progress.lags(TWO, Millis(5_500), LAG_MS)
    progress.heard(TWO, Epoch(99), Offset(100), Millis(9_000))  # another life of it
    progress.heard(TWO, LIVES[TWO], Offset(101), Millis(9_000))  # there is more than it has
    assert progress.lags(TWO, Millis(9_500), LAG_MS)
