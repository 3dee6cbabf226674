"""One request, as an operation sees it."""

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.client.errors import BrokerUnreachable
from runnel.model.calls import Verb
from runnel.model.errors import CoordinatorLoading, LeaderNotAvailable, NotCoordinator, NotLeader
from runnel.net.http import Peer, Scope

if TYPE_CHECKING:
    from runnel.doors.http.door import HttpDoor

PATIENCE_S: Final = 5.0
PAUSE_S: Final = 0.05
PASSING: Final = (NotLeader, LeaderNotAvailable, NotCoordinator, CoordinatorLoading, BrokerUnreachable)

Q = TypeVar("Q")
A = TypeVar("A")


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

    async def ask(self, verb: Verb[Q, A], request: Q, waits: Waits | None = None) -> A:
        """Have this broker do a verb of users, with the help of those it needs."""
        return await self.broker.calls.ask(self.broker.id, verb, request, waits=waits)

    async def look(self, verb: Verb[Q, A], request: Q) -> A:
        """The same for a verb that changes nothing: who is just being elected or opened is waited for."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while True:
            try:
                return await self.ask(verb, request)
            except PASSING:
                if loop.time() + PAUSE_S > end:
                    raise
            await asyncio.sleep(PAUSE_S)

    def waits(self) -> "PeerWaits":
        """What this request may wait for: it ends with the client, and when the broker stops."""
        return PeerWaits(self.peer)


class PeerWaits(Waits):
    """Waits that end with a peer; closed after use, so that a connection does not collect those of its past."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer
        peer.when_over(self.end)

    def close(self) -> None:
        self._peer.forget(self.end)

    def __enter__(self) -> "PeerWaits":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
