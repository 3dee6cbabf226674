"""A listening socket and the connections it accepted: limits, idle clients, orderly end."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from runnel.model.limits import FRAME_BYTES_MAX, MIB
from runnel.net.bounds import Addresses, Bounds
from runnel.net.buffers import BufferPool
from runnel.net.connection import Connection, Handler
from runnel.net.traffic import Traffic

logger = logging.getLogger("runnel.net")

SWEEP_S = 5.0  # how often idle and stuck connections are looked for


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    frame_bytes_max: int = FRAME_BYTES_MAX
    inflight_bytes_max: int = 256 * MIB
    connections_max: int = 10_000
    address_connections_max: int = 10_000  # of one address
    idle_s: float = 600.0  # Kafka's connections.max.idle.ms
    arrival_s: float = 60.0  # a whole frame, whatever trickles in
    stalled_s: float = 30.0  # half a frame, or an answer that is not taken


async def start_listening(server: asyncio.Server) -> None:
    """Let clients in. OSError if somebody else listens by now: two may bind an address, one may listen on it."""
    await server.start_serving()
    if any(opened.fileno() < 0 for opened in server.sockets):  # uvloop swallows the error, and closes the socket
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class FramedListener:
    """Accepts connections on one address and gives each a handler of the door."""

    def __init__(
        self, door: Callable[[Connection], Handler], limits: ListenerLimits, on_fatal: Callable[[BaseException], None],
        bounds: Bounds | None = None,
    ) -> None:  # fmt: skip
        self._door = door
        self._limits = limits
        self._on_fatal = on_fatal
        self.frame_bytes_max = limits.frame_bytes_max
        self.bounds = bounds or Bounds(requests=limits.inflight_bytes_max)
        self.budget = self.bounds.requests
        self.buffers = BufferPool()
        self.connections: dict[Connection, None] = {}  # in the order in which they came
        self._addresses = Addresses(limits.address_connections_max)
        self.traffic = Traffic()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._stopped = False

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address; returns it with the port that the system chose for port 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024, start_serving=False)
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def accept(self) -> None:
        """Let clients in."""
        assert self._server is not None
        await start_listening(self._server)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def stop(self, grace_s: float) -> None:
        """Let requests under way answer within the grace period, then close every connection."""
        self.stop_accepting()
        self._stopped = True
        for connection in list(self.connections):
            connection.close()
        self._empty = asyncio.Event()
        if self.connections:
            try:
                await asyncio.wait_for(self._empty.wait(), grace_s)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()

    @property
    def open_connections(self) -> int:
        return len(self.connections)

    # --- what a connection calls

    def opened(self, connection: Connection) -> Handler | None:
        """Who answers this connection; None: nobody does. Some are let in by the system just when all are closed."""
        if self._stopped:
            return None
        if len(self.connections) >= self._limits.connections_max:
            self._refuse(connection, "connections-max")
            return None
        if not self._addresses.enter(connection.peer):
            self._addresses.leave(connection.peer)
            self._refuse(connection, "address-connections-max")
            return None
        self.connections[connection] = None
        self.traffic.connections += 1
        return self._door(connection)

    def _refuse(self, connection: Connection, bound: str) -> None:
        self.bounds.met[bound] += 1
        logger.warning(
            "refused a connection from %s: %d are open and %s allows no more",
            connection.peer,
            len(self.connections),
            bound,
        )

    def closed(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self._addresses.leave(connection.peer)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def fatal(self, error: BaseException) -> None:
        self._on_fatal(error)

    def _sweep(self) -> None:
        """Close who sent half a frame and stopped, who does not take answers, and who has been silent for long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Where answers have no room left, clients that take nothing have to make some.
        crowded_s = self._limits.stalled_s if self.bounds.answers.left else SWEEP_S
        for connection in list(self.connections):
            stuck = connection.stuck
            quiet_s = now - connection.active_at
            if quiet_s > (crowded_s if stuck else self._limits.stalled_s) and (connection.receiving or stuck):
                logger.warning("closed the connection of %s: it stalled for %.0f s", connection.peer, quiet_s)
                connection.abort()
            elif connection.receiving and now - connection.began_at > self._limits.arrival_s:
                self.bounds.met["request-arrival-ms"] += 1
                logger.warning(
                    "closed the connection of %s: a request did not arrive in %g s",
                    connection.peer,
                    self._limits.arrival_s,
                )
                connection.abort()
            elif quiet_s > self._limits.idle_s and not connection.busy:
                connection.close()
        self.buffers.let_go()
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
