"""One request, as an operation sees it."""

from typing import TYPE_CHECKING

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.net.http import Peer, Scope

if TYPE_CHECKING:
    from runnel.doors.http.door import HttpDoor


class Call:
    """Who asks, and whom to ask."""

    __slots__ = ("_headers", "broker", "door", "peer", "scope")

    def __init__(self, door: "HttpDoor", scope: Scope) -> None:
        self.door = door
        self.broker: Broker = door.broker
        self.scope = scope
        self.peer: Peer = scope["state"]["peer"]
        self._headers: dict[bytes, bytes] | None = None

    @property
    def headers(self) -> dict[bytes, bytes]:
        """By their names in small letters; of those with one name, the last."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    def waits(self) -> "PeerWaits":
        """What this request may wait for: it ends with the client, and when the broker stops."""
        return PeerWaits(self.peer)


class PeerWaits(Waits):
    """Waits that end with a peer; used as a block, so that a connection does not collect those of its past."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    def __enter__(self) -> "PeerWaits":
        self._peer.when_over(self.end)
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.forget(self.end)
