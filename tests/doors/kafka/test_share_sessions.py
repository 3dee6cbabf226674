"""Share sessions: epochs, replacement, bounds, and the end with the connection."""

import uuid

import pytest

from runnel.doors.kafka.share_sessions import EPOCH_MAX, FINAL_EPOCH, SessionKey, ShareSessions
from runnel.model.errors import InvalidShareSessionEpoch, ShareSessionNotFound, TooManyShareSessions
from runnel.model.ids import PartitionKey, TopicId

KEY = SessionKey("g", "m")
PARTITIONS = [PartitionKey(TopicId(uuid.UUID(int=1)), number) for number in range(3)]


def test_each_request_of_a_session_is_one_epoch_further() -> None:
    sessions = ShareSessions()
    connection = sessions.connect()
    session, left = sessions.begin(KEY, connection)
    assert left is None
    assert sessions.resume(KEY, 1, connection) is session
    assert sessions.resume(KEY, 2, connection) is session
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.resume(KEY, 2, connection)
    session.epoch = EPOCH_MAX
    sessions.resume(KEY, EPOCH_MAX, connection)
    assert session.epoch == 1


def test_the_last_request_may_come_at_any_epoch_and_changes_none() -> None:
    sessions = ShareSessions()
    connection = sessions.connect()
    session, _ = sessions.begin(KEY, connection)
    assert sessions.resume(KEY, FINAL_EPOCH, connection) is session
    assert session.epoch == 1
    sessions.end(session)
    with pytest.raises(ShareSessionNotFound):
        sessions.resume(KEY, FINAL_EPOCH, connection)
    assert len(sessions) == 0


def test_a_session_is_not_known_on_another_connection() -> None:
    sessions = ShareSessions()
    sessions.begin(KEY, sessions.connect())
    with pytest.raises(ShareSessionNotFound):
        sessions.resume(KEY, 1, sessions.connect())


def test_a_session_that_is_begun_anew_keeps_the_leases_of_its_connection() -> None:
    sessions = ShareSessions()
    connection = sessions.connect()
    old, _ = sessions.begin(KEY, connection)
    old.touched.add(PARTITIONS[0])
    new, left = sessions.begin(KEY, connection)
    assert left is None
    assert (new.owner, new.touched) == (old.owner, {PARTITIONS[0]})
    assert len(sessions) == 1


def test_a_session_on_another_connection_takes_the_place_of_the_old_one() -> None:
    sessions = ShareSessions()
    before, after = sessions.connect(), sessions.connect()
    old, _ = sessions.begin(KEY, before)
    new, left = sessions.begin(KEY, after)
    assert left is old
    assert new.owner != old.owner
    assert sessions.disconnect(before) == []  # the new one is not touched when the old connection ends at last
    assert sessions.resume(KEY, 1, after) is new


def test_sessions_end_with_their_connection() -> None:
    sessions = ShareSessions()
    one, other = sessions.connect(), sessions.connect()
    first, _ = sessions.begin(KEY, one)
    second, _ = sessions.begin(SessionKey("h", "m"), one)
    sessions.begin(SessionKey("g", "n"), other)
    assert sessions.disconnect(one) == [first, second]
    assert len(sessions) == 1


def test_there_are_only_so_many_sessions() -> None:
    sessions = ShareSessions(2)
    connection = sessions.connect()
    sessions.begin(KEY, connection)
    sessions.begin(SessionKey("g", "n"), connection)
    with pytest.raises(TooManyShareSessions):
        sessions.begin(SessionKey("g", "o"), connection)
    sessions.begin(KEY, connection)  # that is none more


def test_partitions_are_served_in_turn() -> None:
    sessions = ShareSessions()
    session, _ = sessions.begin(KEY, sessions.connect())
    session.wanted = dict.fromkeys(PARTITIONS)
    session.serve_last(PARTITIONS[0])
    assert list(session.wanted) == [PARTITIONS[1], PARTITIONS[2], PARTITIONS[0]]
    del session.wanted[PARTITIONS[1]]
    session.serve_last(PARTITIONS[1])
    assert list(session.wanted) == [PARTITIONS[2], PARTITIONS[0]]
