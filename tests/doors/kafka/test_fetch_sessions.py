"""Fetch sessions (KIP-227): rules of the cache, told as a conversation."""

from uuid import UUID

import pytest

from runnel.doors.kafka.fetch_sessions import EPOCH_MAX, SESSIONS_MAX, FetchSessions, SessionPartition, Wanted
from runnel.model.errors import FetchSessionNotFound, InvalidFetchSessionEpoch
from runnel.model.ids import TopicId
from runnel.testing.clock import SeededRng

A = SessionPartition("t", TopicId(UUID(int=1)), 0)
B = SessionPartition("t", TopicId(UUID(int=1)), 1)
WANT = Wanted(0, 1000, -1, -1)


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(SeededRng(1))


def test_a_session_goes_on_epoch_by_epoch(sessions: FetchSessions) -> None:
    session = sessions.create({A: WANT})
    assert session.id > 0
    assert sessions.resume(session.id, 1) is session
    assert sessions.resume(session.id, 2) is session
    with pytest.raises(InvalidFetchSessionEpoch, match="epoch 3, not 2"):
        sessions.resume(session.id, 2)


def test_after_the_last_epoch_comes_the_first(sessions: FetchSessions) -> None:
    session = sessions.create({A: WANT})
    session.epoch = EPOCH_MAX
    sessions.resume(session.id, EPOCH_MAX)
    assert sessions.resume(session.id, 1) is session


def test_an_unknown_or_ended_session_has_to_start_anew(sessions: FetchSessions) -> None:
    session = sessions.create({A: WANT})
    sessions.end(session.id)
    with pytest.raises(FetchSessionNotFound, match=str(session.id)):
        sessions.resume(session.id, 1)


def test_only_news_are_told(sessions: FetchSessions) -> None:
    session = sessions.create({A: WANT})
    assert session.has_news(A, (5, 5, 0), notable=False)
    assert not session.has_news(A, (5, 5, 0), notable=False)
    assert session.has_news(A, (5, 5, 0), notable=True)
    assert session.has_news(A, (6, 6, 0), notable=False)
    assert session.has_news(A, (6, 6, 1), notable=False)


def test_who_got_something_comes_last_next_time(sessions: FetchSessions) -> None:
    session = sessions.create({A: WANT, B: WANT})
    session.serve_last(A)
    assert list(session.wanted) == [B, A]


def test_a_partition_that_is_named_again_counts_once(sessions: FetchSessions) -> None:
    session = sessions.create({A: WANT})
    assert [session.count_with(named) for named in ([], [A], [B], [A, B])] == [1, 1, 2, 2]


def test_the_number_of_sessions_is_bounded_and_the_oldest_goes(sessions: FetchSessions) -> None:
    first, second = sessions.create({A: WANT}), sessions.create({A: WANT})
    sessions.resume(first.id, 1)  # so the second is the one unused for longest
    for _ in range(SESSIONS_MAX - 1):
        sessions.create({A: WANT})
    assert len(sessions) == SESSIONS_MAX
    assert sessions.resume(first.id, 2) is first
    with pytest.raises(FetchSessionNotFound):
        sessions.resume(second.id, 1)
