"""The high watermark: what every in-sync replica holds, and never back."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.model.ids import BrokerId, Offset
from runnel.replica.progress import Progress

ONE, TWO, STRANGER = BrokerId(1), BrokerId(2), BrokerId(9)


def test_one_replica_alone_decides() -> None:
    progress = Progress([ONE], Offset(5))
    assert progress.advance(ONE, Offset(8))
    assert progress.high_watermark == 8
    assert not progress.advance(ONE, Offset(8))


def test_the_slowest_decides() -> None:
    progress = Progress([ONE, TWO], Offset(0))
    assert not progress.advance(ONE, Offset(10))
    assert progress.advance(TWO, Offset(4))
    assert progress.high_watermark == 4


def test_who_is_not_in_sync_has_no_say() -> None:
    progress = Progress([ONE], Offset(0))
    assert not progress.advance(STRANGER, Offset(10))
    assert progress.in_sync == {ONE}


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 50))))
def test_it_never_goes_back_and_never_passes_anyone(reports: list[tuple[BrokerId, int]]) -> None:
    progress = Progress([ONE, TWO], Offset(0))
    held = {ONE: 0, TWO: 0}
    best = 0
    for replica, offset in reports:
        held[replica] = offset
        progress.advance(replica, Offset(offset))
        best = max(best, min(held.values()))
        assert progress.high_watermark == best
