"""What a follower does with an answer; each test fails when its rule is switched off."""

from hypothesis import assume, given
from hypothesis import strategies as st

from runnel.log.epochs import Epochs
from runnel.model.ids import Epoch, Offset
from runnel.replica.following import (
    Answer,
    Append,
    AskAgain,
    BeginAt,
    Cut,
    Distrust,
    Question,
    Verdict,
    decide,
    high_watermark,
)

NOW = Epoch(9)


class FakeLog:
    """A log of which only the epochs matter: one letter of `history` is the epoch of one message."""

    def __init__(self, history: list[int], start: int = 0) -> None:
        self.start_offset = Offset(start)
        self.end_offset = Offset(start + len(history))
        self.history = history
        first: dict[int, int] = {}
        for at, epoch in enumerate(history, start):
            first.setdefault(epoch, at)
        self.epochs = Epochs(lambda: self.end_offset, list(first.items()))

    def question(self) -> Question:
        return Question(NOW, self.end_offset, self.epochs.latest)


def answer(verdict: Verdict, *, epoch: int = -1, end: int = -1, start: int = 0, records: bytes = b"") -> Answer:
    return Answer(verdict, Offset(3), Offset(start), memoryview(records), Epoch(epoch), Offset(end))


def test_records_are_appended() -> None:
    log = FakeLog([1, 1])
    assert decide(log, NOW, log.question(), answer(Verdict.OK, records=b"xyz")) == Append(memoryview(b"xyz"))


def test_an_epoch_that_the_leader_has_not_reached_there_never_was() -> None:
    """A bit flipped: 1 became 3. The leader knows 3, from further on, and sees no difference."""
    log = FakeLog([1, 1, 3])
    assert decide(log, NOW, log.question(), answer(Verdict.OK, epoch=1, records=b"xyz")) == Distrust(Epoch(1))
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.OK, epoch=3, records=b"xyz")), Append)
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.OK)), Append)


def test_an_answer_of_another_leader_epoch_is_dropped() -> None:
    log = FakeLog([1, 1])
    assert isinstance(decide(log, Epoch(10), log.question(), answer(Verdict.OK, records=b"xyz")), AskAgain)


def test_an_answer_to_an_older_question_is_dropped() -> None:
    """A "diverged" that arrives twice must not cut again what was fetched meanwhile."""
    log = FakeLog([1, 1])
    old = Question(NOW, Offset(1), Epoch(1))
    assert isinstance(decide(log, NOW, old, answer(Verdict.DIVERGED, epoch=1, end=0)), AskAgain)


def test_an_answer_is_known_by_the_whole_question() -> None:
    """A follower was cut, and has fetched up to the very same offset again, when a second "diverged" arrives."""
    log = FakeLog([1, 1, 9, 9])
    before_the_cut = Question(NOW, Offset(4), Epoch(3))
    assert isinstance(decide(log, NOW, before_the_cut, answer(Verdict.DIVERGED, epoch=1, end=2)), AskAgain)


def test_the_cut_is_where_the_epoch_ends_on_whichever_side_it_is_shorter() -> None:
    log = FakeLog([1, 1, 1, 2, 2])
    asked = log.question()
    assert decide(log, NOW, asked, answer(Verdict.DIVERGED, epoch=1, end=2)) == Cut(Offset(2))
    assert decide(log, NOW, asked, answer(Verdict.DIVERGED, epoch=1, end=8)) == Cut(Offset(3))
    assert decide(log, NOW, asked, answer(Verdict.DIVERGED, epoch=2, end=4)) == Cut(Offset(4))


def test_an_epoch_that_the_follower_never_saw_sends_it_below_its_own_next_one() -> None:
    log = FakeLog([1, 1, 3, 3])
    assert decide(log, NOW, log.question(), answer(Verdict.DIVERGED, epoch=2, end=9)) == Cut(Offset(2))


def test_a_difference_that_is_not_there_cuts_nothing() -> None:
    log = FakeLog([1, 1])
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.DIVERGED, epoch=1, end=5)), AskAgain)
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.DIVERGED, epoch=7, end=1)), AskAgain)
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.DIVERGED)), AskAgain)


def test_it_begins_anew_only_where_the_leader_has_nothing_that_follows() -> None:
    log = FakeLog([1, 1])
    assert decide(log, NOW, log.question(), answer(Verdict.OUT_OF_RANGE, start=7)) == BeginAt(Offset(7))
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.OUT_OF_RANGE, start=1)), AskAgain)
    empty = FakeLog([], start=9)
    assert decide(empty, NOW, empty.question(), answer(Verdict.OUT_OF_RANGE, start=4)) == BeginAt(Offset(4))


def test_a_refusal_changes_nothing() -> None:
    log = FakeLog([1])
    assert isinstance(decide(log, NOW, log.question(), answer(Verdict.REFUSED)), AskAgain)


def test_the_high_watermark_stays_below_the_own_end_and_does_not_go_back_with_a_new_leaders() -> None:
    assert high_watermark(Offset(3), Offset(9), Offset(5)) == 5
    assert high_watermark(Offset(3), Offset(1), Offset(5)) == 3


histories = st.lists(st.integers(0, 4), max_size=12).map(sorted)


@given(histories, histories)
def test_rounds_of_cutting_end_at_the_longest_common_past(mine: list[int], theirs: list[int]) -> None:
    """Two logs with the same epoch at the same offset are the same up to there: a leader writes an offset once."""
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    # An epoch belongs to one leader, whose log is one line: no epoch is on both sides of a fork.
    assume(not set(mine[common:]) & set(theirs[common:]))
    leader, follower = FakeLog(theirs), FakeLog(mine)
    for _ in range(20):
        asked = follower.question()
        if asked.last_epoch < 0:
            break
        epoch, end = _leader_end(leader, asked.last_epoch)
        if epoch == asked.last_epoch and end >= asked.offset:
            break
        action = decide(follower, NOW, asked, answer(Verdict.DIVERGED, epoch=epoch, end=end))
        assert isinstance(action, Cut)
        assert action.offset >= common
        follower = FakeLog(follower.history[: action.offset])
    assert follower.history == mine[:common]


def _leader_end(leader: FakeLog, epoch: int) -> tuple[Epoch, Offset]:
    found = leader.epochs.end_offset(epoch)
    if found[0] >= 0:
        return found
    latest = leader.epochs.latest
    return (latest if latest >= 0 else Epoch(epoch)), leader.end_offset
