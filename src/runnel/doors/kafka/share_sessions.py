"""Share sessions (KIP-932): a member of a share group says once what it reads from this broker, then only what changed.

    epoch 0   a new session; takes the place of the one that the member had
    epoch n   the next request of the session, on whatever connection it comes; each is one further
    epoch -1  the last one: whatever the member still holds is free for others then

Rule 1: a session is found by its group and its member. Clients may fetch on one connection and acknowledge on another.
Rule 2: a session ends with the connection that began it, and so do its leases.
Rule 3: the number of sessions is bounded; a member that comes when there are too many is told so.
Rule 4: leases belong to the member (`owner`): a session that is begun anew while the old one lives takes them over.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from runnel.broker.fetch import Waits
from runnel.model.errors import InvalidShareSessionEpoch, ShareSessionNotFound, TooManyShareSessions
from runnel.model.ids import PartitionKey

SESSIONS_MAX = 2_000  # Kafka's group.share.max.share.sessions
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    key: SessionKey
    owner: str  # of the leases
    epoch: int = 1  # that the next request has
    wanted: dict[PartitionKey, None] = field(default_factory=dict)  # in the order in which they are served
    touched: set[PartitionKey] = field(default_factory=set)  # where it may hold leases
    waits: Waits = field(default_factory=Waits)  # of its fetches: they end with it

    def serve_last(self, partition: PartitionKey) -> None:
        """Let the others come first next time: an answer is bounded, and must not always go to the same partitions."""
        if partition in self.wanted:
            self.wanted[partition] = self.wanted.pop(partition)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


@dataclass(slots=True, eq=False)
class Connection:
    """The sessions that were begun on one connection."""

    sessions: dict[SessionKey, ShareSession] = field(default_factory=dict)


class ShareSessions:
    """The sessions of one door."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[SessionKey, tuple[Connection, ShareSession]] = {}
        self._owners = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, key: SessionKey, connection: Connection) -> ShareSession:
        """A new session; it has the leases of the one whose place it takes."""
        old = self._sessions.get(key)
        if old is not None:
            session = ShareSession(key, old[1].owner, touched=old[1].touched)
            self.end(old[1])
        elif len(self._sessions) < self._sessions_max:
            self._owners += 1
            session = ShareSession(key, f"{key.member_id}/{self._owners}")
        else:
            raise TooManyShareSessions(f"this broker has {self._sessions_max} share sessions already: try again later")
        self._sessions[key] = connection, session
        connection.sessions[key] = session
        return session

    def resume(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session of a request that is not its first, one epoch further; unchanged if this is the last one."""
        _, session = self._sessions.get(key, (None, None))
        if session is None:
            raise ShareSessionNotFound(f"member {key.member_id!r} has no share session on this broker: begin one")
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(
                f"the share session of {key.member_id!r} is at epoch {session.epoch}, not {epoch}: begin a new one"
            )
        session.advance()
        return session

    def end(self, session: ShareSession) -> bool:
        """The session is over, and its fetches with it; False if it was already. The caller releases its leases."""
        connection, present = self._sessions.get(session.key, (None, None))
        if connection is None or present is not session:
            return False
        del self._sessions[session.key]
        del connection.sessions[session.key]
        session.waits.end()
        return True

    def disconnect(self, connection: Connection) -> list[ShareSession]:
        """A connection is gone: the sessions that ended with it."""
        return [session for session in list(connection.sessions.values()) if self.end(session)]
