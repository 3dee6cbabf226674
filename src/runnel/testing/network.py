"""A network in memory: connections between hosts that are slow, cut, reset, and chop what is sent.

Rule 1: each direction of a connection is a stream: nothing overtakes, nothing is lost while both ends live.
Rule 2: bytes that wait at the sender are not copied: who changes a buffer that it gave away, changes what is sent.
Rule 3: a cut holds up what was sent (it is sent again and again, as TCP does) until it is healed.
Rule 4: the system of a killed process closes its connections. A host without power says nothing; once it is back, it
        answers what belongs to no connection with a reset.
"""

import asyncio
import errno
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.model.limits import KIB
from runnel.model.seams import Buffer
from runnel.testing.clock import SeededRng

if TYPE_CHECKING:
    from runnel.testing.loop import Process, SimLoop

FIN, RESET = "fin", "reset"  # what can be sent besides bytes
RESEND_S = (0.2, 0.6)  # how soon TCP tries again
EPHEMERAL_PORTS = 40_000


@dataclass(slots=True)
class Conditions:
    """What the network is like; may change at any time."""

    latency_s: tuple[float, float] = (0.0002, 0.002)
    chop_chance: float = 0.1  # that what is sent arrives in pieces
    window_bytes: int = 256 * KIB  # sent and not read yet, at most


class _Address(NamedTuple):
    host: str
    port: int

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def fileno(self) -> int:
        """It listens as long as it is there."""
        return self.port


class Server(asyncio.AbstractServer):
    """A listening address."""

    def __init__(
        self, network: "Network", process: "Process", factory: Callable[[], asyncio.BaseProtocol], address: _Address
    ) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self.sockets = [address]
        self.serving = False

    async def start_serving(self) -> None:
        self.serving = True

    def is_serving(self) -> bool:
        return self.serving

    def close(self) -> None:
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        pass

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    async def serve_forever(self) -> None:
        raise NotImplementedError("start_serving, and wait for something else")


class Network:
    """All connections of a simulation."""

    def __init__(self, loop: "SimLoop", rng: SeededRng) -> None:
        self.loop = loop
        self.rng = rng
        self.conditions = Conditions()
        self.delivered_bytes = 0
        self._servers: dict[tuple[str, int], Server] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._ports = EPHEMERAL_PORTS

    # --- faults

    def cut(self, sender: str, receiver: str) -> Callable[[], None]:
        """Let nothing pass from one host to another; returns what heals it."""
        way = (sender, receiver)
        self._cuts[way] = self._cuts.get(way, 0) + 1

        def heal() -> None:
            self._cuts[way] -= 1

        return heal

    def reset_all(self, process: "Process") -> int:
        """Break every connection of a process, as a firewall or a load balancer would."""
        ends = list(process.connections)
        for end in ends:
            end.break_off()
        return len(ends)

    def is_cut(self, sender: str, receiver: str) -> bool:
        return self._cuts.get((sender, receiver), 0) > 0

    def hang_up(self, process: "Process") -> None:
        for end in list(process.connections):
            end.die(tell=True)
        self._drop_servers(process)

    def forget(self, process: "Process") -> None:
        for end in list(process.connections):
            end.die(tell=False)
        self._drop_servers(process)

    def _drop_servers(self, process: "Process") -> None:
        for server in [server for server in self._servers.values() if server.process is process]:
            self.unlisten(server)

    # --- connecting

    def listen(
        self, process: "Process", factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, serve: bool
    ) -> Server:
        if host != process.host.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {process.host.name}")
        if (host, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        server = self._servers[host, port] = Server(self, process, factory, _Address(host, port))
        server.serving = serve
        return server

    def unlisten(self, server: Server) -> None:
        server.serving = False
        address = server.sockets[0]
        if self._servers.get((address.host, address.port)) is server:
            del self._servers[address.host, address.port]

    async def connect(
        self, process: "Process", factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> "tuple[asyncio.Transport, asyncio.BaseProtocol]":
        me = process.host.name
        await asyncio.sleep(2 * self.latency_s())
        while self._is_silent(me, host):  # noqa: ASYNC110  (TCP asks again and again)
            await asyncio.sleep(self.rng.uniform(*RESEND_S))
        server = self._servers.get((host, port))
        if server is None or not server.serving or server.process.dead:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        self._ports += 1
        near = Transport(self, process, (host, port))
        far = Transport(self, server.process, (me, self._ports))
        near.out, far.out = Stream(self, near, far), Stream(self, far, near)
        self.loop.trace(f"connect {me} {host}")
        self.loop.call_soon(far.adopt, server.factory, context=server.process.context)
        return near, near.adopt(factory)

    def _is_silent(self, me: str, other: str) -> bool:
        return self.is_cut(me, other) or self.is_cut(other, me) or not self.loop.host(other).powered

    def latency_s(self) -> float:
        return self.rng.uniform(*self.conditions.latency_s)

    def chop(self, data: bytes) -> Iterable[bytes]:
        """The pieces in which something arrives."""
        if len(data) < 2 or not self.rng.chance(self.conditions.chop_chance):
            return (data,)
        places = sorted({1 + self.rng.below(len(data) - 1) for _ in range(1 + self.rng.below(3))})
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


class Stream:
    """One direction: what is under way, in order."""

    def __init__(self, network: Network, sender: "Transport", receiver: "Transport") -> None:
        self._network = network
        self.sender = sender
        self.receiver = receiver
        self._queue: deque[tuple[float, bytes | str]] = deque()
        self._last = 0.0
        self._armed = False
        self.unread_bytes = 0  # sent, and not read by the receiver

    def put(self, item: bytes | str) -> None:
        loop = self._network.loop
        self._last = max(self._last, loop.time() + self._network.latency_s())
        self._queue.append((self._last, item))
        if isinstance(item, bytes):
            self.unread_bytes += len(item)
        self._arm(self._queue[0][0])

    def _arm(self, at: float) -> None:
        if not self._armed:
            self._armed = True
            self._network.loop.call_at(at, self._arrive, context=self._network.loop.world)

    def _arrive(self) -> None:
        self._armed = False
        loop, network = self._network.loop, self._network
        source, target = self.sender.process.host, self.receiver.process.host
        if network.is_cut(source.name, target.name) or not target.powered:
            self._arm(loop.time() + network.rng.uniform(*RESEND_S))
            return
        _, item = self._queue.popleft()
        size = zlib.crc32(item) if isinstance(item, bytes) else item
        loop.trace(f"{source.name}>{target.name} {size}")
        self.receiver.arrived(item)
        if self._queue:
            self._arm(max(loop.time(), self._queue[0][0]))


class Transport(asyncio.Transport):
    """One end of a connection."""

    out: Stream

    def __init__(self, network: Network, process: "Process", peer: tuple[str, int]) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self.process = process
        self._peer = peer
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[bytes] = deque()
        self._outbox: deque[Buffer] = deque()
        self._outbox_bytes = 0
        self._high, self._low = 64 * KIB, 16 * KIB
        self._reading = True
        self._read_due = False
        self._pump_due = False
        self._ended = False  # the peer sends no more
        self._closing = False
        self._lost = False
        self._writes_paused = False
        process.connections[self] = None

    def adopt(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """The connection stands: give it to its protocol."""
        protocol = self._protocol = factory()
        protocol.connection_made(self)
        self._read_soon()
        return protocol

    # --- the protocol of asyncio

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * KIB if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._outbox_bytes

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._closing or self.process.dead:
            return
        if self.process.host.on_answer is not None:
            self.process.host.on_answer()
        for data in list_of_data:
            if len(data):
                self._outbox.append(memoryview(data))
                self._outbox_bytes += len(data)
        self._pump_soon()
        if self._outbox_bytes > self._high and not self._writes_paused:
            self._writes_paused = True
            self.get_protocol().pause_writing()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Send what waits, then end."""
        if not self._closing:
            self._closing = True
            self._pump_soon()

    def abort(self) -> None:
        """End at once: what waits is thrown away, and the peer sees a reset."""
        if not self._lost and not self.process.dead:
            self._drop(None)
            self.out.put(RESET)

    # --- what the network does

    def break_off(self) -> None:
        """Both ends see a reset."""
        self.out.put(RESET)
        self.out.receiver.out.put(RESET)

    def die(self, *, tell: bool) -> None:
        """The process is gone; its system says so, or is gone too."""
        if tell and not self._lost:
            self.out.put(RESET if self._inbox else FIN)
        self._lost = self._closing = True
        self._inbox.clear()
        self._outbox.clear()
        self.process.connections.pop(self, None)

    def arrived(self, item: bytes | str) -> None:
        if self._lost:
            if item != RESET:
                self.out.put(RESET)
        elif item == RESET:
            self._drop(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        else:
            if isinstance(item, bytes):
                self._inbox.append(item)
            else:
                self._ended = True
            self._read_soon()

    def _drop(self, error: Exception | None) -> None:
        self._closing = self._lost = True
        self._inbox.clear()
        self._outbox.clear()
        self._outbox_bytes = 0
        self.process.connections.pop(self, None)
        self._loop.call_soon(self._tell_lost, error, context=self.process.context)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # --- receiving

    def _read_soon(self) -> None:
        if self._reading and not self._read_due and not self._closing and (self._inbox or self._ended):
            self._read_due = True
            self._loop.call_soon(self._read, context=self.process.context)

    def _read(self) -> None:
        """Hand over what came, as much as the protocol has room for."""
        self._read_due = False
        if not self._reading or self._closing or self._protocol is None:
            return
        if self._inbox:
            self._hand_over(self._protocol, self._inbox[0])
        elif self._ended and not self.get_protocol().eof_received():  # type: ignore[attr-defined]
            self.close()
            return
        else:
            self._ended = False
        self._read_soon()

    def _hand_over(self, protocol: asyncio.BaseProtocol, data: bytes) -> None:
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = memoryview(protocol.get_buffer(-1))
            size = min(len(room), len(data))
            if not size:
                raise RuntimeError("get_buffer() returned an empty buffer")
            room[:size] = data[:size]
            self._took(data, size)
            protocol.buffer_updated(size)
        else:
            self._took(data, len(data))
            protocol.data_received(data)  # type: ignore[attr-defined]

    def _took(self, data: bytes, size: int) -> None:
        self._inbox.popleft()
        if size < len(data):
            self._inbox.appendleft(data[size:])
        self._network.delivered_bytes += size
        sender = self.out.receiver
        sender.out.unread_bytes -= size
        sender._pump_soon()

    # --- sending

    def _pump_soon(self) -> None:
        if not self._pump_due and not self._lost and (self._outbox or self._closing):
            self._pump_due = True
            delay_s = self._network.rng.uniform(0, 0.00005)
            self._loop.call_later(delay_s, self._pump, context=self._loop.world)

    def _pump(self) -> None:
        """The system takes what it has room for, and sends it."""
        self._pump_due = False
        if self._lost:
            return
        room = self._network.conditions.window_bytes - self.out.unread_bytes
        if taken := self._take(room):
            for piece in self._network.chop(taken):
                self.out.put(piece)
        if self._writes_paused and self._outbox_bytes <= self._low:
            self._writes_paused = False
            self._loop.call_soon(self.get_protocol().resume_writing, context=self.process.context)
        if self._closing and not self._outbox:
            self._drop(None)
            self.out.put(FIN)

    def _take(self, room: int) -> bytes:
        parts: list[Buffer] = []
        while self._outbox and room > 0:
            first = self._outbox.popleft()
            if len(first) > room:
                self._outbox.appendleft(first[room:])
                first = first[:room]
            parts.append(first)
            room -= len(first)
            self._outbox_bytes -= len(first)
        return b"".join(parts)
