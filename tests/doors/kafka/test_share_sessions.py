"""Share sessions: epochs, replacement, bounds, and the end with the connection that began them."""

import uuid

import pytest

from runnel.doors.kafka.share_sessions import EPOCH_MAX, FINAL_EPOCH, Connection, SessionKey, ShareSessions
from runnel.model.errors import InvalidShareSessionEpoch, ShareSessionNotFound, TooManyShareSessions
from runnel.model.ids import PartitionKey, TopicId

KEY = SessionKey("g", "m")
PARTITIONS = [PartitionKey(TopicId(uuid.UUID(int=1)), number) for number in range(3)]


def test_each_request_of_a_session_is_one_epoch_further() -> None:
    sessions = ShareSessions()
    session = sessions.begin(KEY, Connection())
    assert sessions.resume(KEY, 1) is session
    assert sessions.resume(KEY, 2) is session
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.resume(KEY, 2)
    session.epoch = EPOCH_MAX
    sessions.resume(KEY, EPOCH_MAX)
    assert session.epoch == 1


def test_the_last_request_may_come_at_any_epoch_and_changes_none() -> None:
    sessions = ShareSessions()
    session = sessions.begin(KEY, Connection())
    assert sessions.resume(KEY, FINAL_EPOCH) is session
    assert session.epoch == 1
    assert sessions.end(session)
    assert session.waits.over
    assert not sessions.end(session)  # it was over already: its leases are nobody's any more
    with pytest.raises(ShareSessionNotFound):
        sessions.resume(KEY, FINAL_EPOCH)
    assert len(sessions) == 0


def test_a_session_is_that_of_its_group_and_its_member() -> None:
    sessions = ShareSessions()
    sessions.begin(KEY, Connection())
    for other in (SessionKey("h", "m"), SessionKey("g", "n")):
        with pytest.raises(ShareSessionNotFound):
            sessions.resume(other, 1)


def test_a_session_that_is_begun_anew_has_the_leases_of_the_old_one() -> None:
    sessions = ShareSessions()
    before, after = Connection(), Connection()
    old = sessions.begin(KEY, before)
    old.touched.add(PARTITIONS[0])
    new = sessions.begin(KEY, after)
    assert (new.owner, new.touched) == (old.owner, {PARTITIONS[0]})
    assert (new.epoch, new.wanted) == (1, {})
    assert old.waits.over, "what the old one waited for was forgotten"
    assert not new.waits.over
    assert len(sessions) == 1
    assert sessions.disconnect(before) == []  # the new one is not touched when the old connection ends at last
    assert sessions.resume(KEY, 1) is new
    assert sessions.disconnect(after) == [new]


def test_the_leases_of_a_session_that_ended_are_not_those_of_the_next() -> None:
    sessions = ShareSessions()
    connection = Connection()
    old = sessions.begin(KEY, connection)
    sessions.end(old)
    assert sessions.begin(KEY, connection).owner != old.owner


def test_sessions_end_with_the_connection_that_began_them() -> None:
    sessions = ShareSessions()
    one, other = Connection(), Connection()
    first = sessions.begin(KEY, one)
    second = sessions.begin(SessionKey("h", "m"), one)
    sessions.begin(SessionKey("g", "n"), other)
    assert sessions.disconnect(one) == [first, second]
    assert first.waits.over
    assert len(sessions) == 1


def test_there_are_only_so_many_sessions() -> None:
    sessions = ShareSessions(2)
    connection = Connection()
    sessions.begin(KEY, connection)
    sessions.begin(SessionKey("g", "n"), connection)
    with pytest.raises(TooManyShareSessions):
        sessions.begin(SessionKey("g", "o"), connection)
    sessions.begin(KEY, Connection())  # that is none more


def test_partitions_are_served_in_turn() -> None:
    sessions = ShareSessions()
    session = sessions.begin(KEY, Connection())
    session.wanted = dict.fromkeys(PARTITIONS)
    session.serve_last(PARTITIONS[0])
    assert list(session.wanted) == [PARTITIONS[1], PARTITIONS[2], PARTITIONS[0]]
    del session.wanted[PARTITIONS[1]]
    session.serve_last(PARTITIONS[1])
    assert list(session.wanted) == [PARTITIONS[2], PARTITIONS[0]]
