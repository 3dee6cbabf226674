"""The sessions of share groups that a connection began: they end with it, and so do their leases."""

from runnel.broker.broker import Broker
from runnel.doors.kafka.share_sessions import Connection, SessionKey, ShareSession, ShareSessions


class ShareConnection:
    def __init__(self, broker: Broker, sessions: ShareSessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._connection = Connection()

    def begin(self, key: SessionKey) -> ShareSession:
        """A new session for a member."""
        return self._sessions.begin(key, self._connection)

    def resume(self, key: SessionKey, epoch: int) -> ShareSession:
        """The member's session, one epoch further, whichever connection began it."""
        return self._sessions.resume(key, epoch)

    def end(self, session: ShareSession) -> None:
        """The member said that this was its last request."""
        if self._sessions.end(session):
            self._release(session, closed=True)

    def close(self) -> None:
        """The connection is gone."""
        for session in self._sessions.disconnect(self._connection):
            self._release(session, closed=False)

    def _release(self, session: ShareSession, *, closed: bool) -> None:
        self._broker.sharing.release(session.key.group_id, session.touched, session.owner, closed=closed)
