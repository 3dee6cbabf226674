"""Share sessions (KIP-932): a member of a share group says once what it reads from this broker, then only what changed.

    epoch 0   a new session; takes the place of the one that the member had
    epoch n   the next request of the session; each is one further
    epoch -1  the last one: whatever the member still holds is free for others then

Rule 1: a session belongs to one connection, and ends with it. So do its leases.
Rule 2: the number of sessions is bounded; who comes when there are too many is told so.
Rule 3: leases belong to a member on a connection (`owner`): a session that is begun anew on the same one keeps them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

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

    def serve_last(self, partition: PartitionKey) -> None:
        """Let the others come first next time: an answer is bounded, and must not always go to the same partitions."""
        if partition in self.wanted:
            self.wanted[partition] = self.wanted.pop(partition)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


@dataclass(slots=True, eq=False)
class Connection:
    """The sessions of one connection."""

    number: int
    sessions: dict[SessionKey, ShareSession] = field(default_factory=dict)


class ShareSessions:
    """The sessions of one door."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[SessionKey, tuple[Connection, ShareSession]] = {}
        self._connections = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def connect(self) -> Connection:
        self._connections += 1
        return Connection(self._connections)

    def begin(self, key: SessionKey, connection: Connection) -> tuple[ShareSession, ShareSession | None]:
        """A new session, and the one whose leases are to end: the member's on another connection."""
        old = self._sessions.get(key)
        if old is None and len(self._sessions) >= self._sessions_max:
            raise TooManyShareSessions(f"this broker has {self._sessions_max} share sessions already: try again later")
        session = ShareSession(key, f"{key.member_id}/{connection.number}")
        left = None
        if old is not None:
            left = self.end(old[1])
            if left.owner == session.owner:
                session.touched, left = left.touched, None
        self._sessions[key] = connection, session
        connection.sessions[key] = session
        return session, left

    def resume(self, key: SessionKey, epoch: int, connection: Connection) -> ShareSession:
        """The session of a request that is not its first, one epoch further; unchanged if this is the last one."""
        session = connection.sessions.get(key)
        if session is None:
            raise ShareSessionNotFound(f"member {key.member_id!r} has no share session on this connection: begin one")
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(
                f"the share session of {key.member_id!r} is at epoch {session.epoch}, not {epoch}: begin a new one"
            )
        session.advance()
        return session

    def end(self, session: ShareSession) -> ShareSession:
        """The session is over, if it is not already; whoever ends it releases its leases."""
        connection, present = self._sessions.get(session.key, (None, None))
        if connection is not None and present is session:
            del self._sessions[session.key]
            del connection.sessions[session.key]
        return session

    def disconnect(self, connection: Connection) -> list[ShareSession]:
        """A connection is gone: these were its sessions."""
        return [self.end(session) for session in list(connection.sessions.values())]
