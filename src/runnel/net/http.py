"""An HTTP/1.1 server in the broker's own loop: uvicorn's protocol, and what it lacks for a broker.

Rule 1: it binds, accepts and stops like every listener here; signals are the server's, and nothing polls.
Rule 2: a request to upgrade to something that is not spoken here is answered in HTTP/1.1, with its body. (Java's
        client and `curl --http2` send `Upgrade: h2c` with a POST; the parser would take the body for another protocol.)
Rule 3: heads, connections, half requests, answers that nobody takes and bodies that nobody wants are bounded.
Rule 4: whatever an application raises costs its request an answer of 500, and nothing else. If an answer has begun, it
        is cut off.
Rule 5: whoever waits for a client learns at once that it went away, or that the server stops: see `Peer`.
"""

import asyncio
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from runnel.model.errors import Fatal, TooBusy
from runnel.model.limits import KIB, MIB
from runnel.net.bounds import Addresses, Bounds, Unsent
from runnel.net.failures import log_failure
from runnel.net.listener import start_listening
from runnel.net.traffic import Traffic

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTINUE: Final = b"HTTP/1.1 100 "
UPGRADE_HEADERS: Final = (b"upgrade", b"connection", b"http2-settings")
PIPELINED_MAX: Final = 8  # requests that wait behind one under way: with more nothing is read, not even that it ended
KEY_BYTES: Final = 16  # of a WebSocket's handshake (RFC 6455)
NEXT: Final = {
    "malformed-request": "send a request of HTTP/1.1",
    "head-too-large": "send fewer or shorter headers",
    "too-many-connections": "close connections that are not used, or try again later",
}
INTERNAL: Final = (
    b'{"type":"/docs#internal","title":"Internal error","status":500,"detail":"the request failed for a reason that'
    b' nobody foresaw: the broker\'s log has it","code":"internal","next":"try again; if it stays, tell who runs it"}'
)

logger = logging.getLogger("runnel.net")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    head_bytes_max: int = 64 * KIB
    connections_max: int = 10_000
    address_connections_max: int = 10_000  # of one address
    idle_s: float = 600.0  # a connection without a request
    arrival_s: float = 60.0  # a whole head, and a whole request, whatever trickles in
    stalled_s: float = 30.0  # half a request, or an answer that is not taken
    unwanted_bytes_max: int = 128 * MIB  # of a body whose request was answered before it had come: read, and dropped
    message_bytes_max: int = MIB  # of a WebSocket
    sweep_s: float = 5.0  # how often stalled connections are looked for


class Peer:
    """Who is at the other end. `over` once it went away, or must be let go because the server stops."""

    __slots__ = ("_told", "address", "over")

    def __init__(self, address: str) -> None:
        self.address = address
        self.over = False
        self._told: dict[Callable[[], None], None] = {}

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call it when it is over, or now if it is."""
        if self.over:
            tell()
        else:
            self._told[tell] = None

    def forget(self, tell: Callable[[], None]) -> None:
        self._told.pop(tell, None)

    def end(self) -> None:
        self.over = True
        told, self._told = self._told, {}
        for tell in told:
            tell()


class _HeadTooLarge(Exception):
    """Raised in the parser's callback to end it."""


class _OneWrite:
    """What an answer is written to: its head waits for the first part of its content, so that both go as one."""

    __slots__ = ("_continued", "_head", "_transport", "_waits")

    def __init__(self, transport: asyncio.Transport, continued: Callable[[], None] | None) -> None:
        self._transport = transport
        self._continued = continued
        self._waits = True
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._waits:
            self._transport.write(data)
        elif self._head:
            self._waits = False
            self._transport.write(self._head + data)
        elif data.startswith(CONTINUE):
            self._transport.write(data)
            if self._continued is not None:
                self._continued()
        else:
            self._head = data

    def close(self) -> None:
        if self._waits and self._head:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Http(HttpToolsProtocol):
    """One connection."""

    def __init__(self, listener: "HttpListener") -> None:
        self._peer = Peer("a client")
        super().__init__(listener.config, listener.state, {"peer": self._peer}, asyncio.get_running_loop())
        self._state = listener.state
        self._limits = listener.limits
        self._traffic = listener.traffic
        self._in_head = False
        self._head_bytes = 0  # of a head that did not come at once
        self._fed = 0
        self._unwanted = 0
        self._unsent = Unsent(listener.bounds)
        self.active_at = 0.0
        self._began_at = 0.0  # of the request that arrives

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if self._state.stopped:  # the system let it in just when all were closed
            return self.transport.abort()
        self.active_at = self._began_at = self.loop.time()
        self._traffic.connections += 1
        if self.client is not None:
            self._peer.address = f"{self.client[0]}:{self.client[1]}"
        may_enter = self._state.addresses.enter(self._peer.address)
        if len(self.connections) > self._limits.connections_max:
            self._refuse_connection("connections-max")
        elif not may_enter:
            self._refuse_connection("address-connections-max")
        return None

    def _refuse_connection(self, bound: str) -> None:
        self._state.bounds.met[bound] += 1
        logger.warning(
            "refused an HTTP connection from %s: %d are open and %s allows no more",
            self._peer.address, len(self.connections) - 1, bound,
        )  # fmt: skip
        self.refuse(503, "too-many-connections", f"as many connections are open as there may be ({bound})")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent.is_now(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent.is_now(0)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unsent.is_now(0)
        self._state.addresses.leave(self._peer.address)
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        self._peer.end()
        self._state.closed()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.active_at = self.loop.time()
        self._traffic.bytes_in += len(data)
        self._feed(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes_max:
                self._refuse_head()

    def _feed(self, data: bytes) -> None:
        self._fed = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self._become_websocket()
            else:
                self._refuse_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            self._refuse_head_of(error.__context__)
        except httptools.HttpParserError as error:
            self.refuse(400, "malformed-request", f"this is not HTTP/1.1: {error}")

    def _become_websocket(self) -> None:
        headers = dict(self.headers)
        if headers.get(b"sec-websocket-version") == b"13" and _is_key(headers.get(b"sec-websocket-key", b"")):
            self.handle_websocket_upgrade()
        else:
            self.refuse(400, "malformed-request", "the handshake of a WebSocket needs a version, 13, and a key")

    def _refuse_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1: the head as it came but for the upgrade, for a parser that has not seen it."""
        if self.scope["method"] == "CONNECT":
            self.refuse(400, "malformed-request", "this is no proxy: CONNECT is not served")
            return
        version = self.parser.get_http_version().encode()
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name not in UPGRADE_HEADERS:
                head += (name, b": ", value, b"\r\n")
        if _wants_close(self.headers):
            head.append(b"connection: close\r\n")
        head.append(b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join(head) + rest)

    # --- what the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._began_at = self.loop.time()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unwanted = 0
        if self._fed > self._limits.head_bytes_max or self._head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._limits.head_bytes_max:
                raise _HeadTooLarge
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            return
        super().on_headers_complete()
        cycle, continued = self.cycle, None
        if self.expect_100_continue and cycle.keep_alive:
            cycle.keep_alive = False  # until it is told to go on: else nobody knows whether its body comes
            continued = partial(setattr, cycle, "keep_alive", True)
        if self.scope["method"] != "HEAD":  # whose answer has a head alone
            cycle.transport = cast(asyncio.Transport, _OneWrite(self.transport, continued))
        if 0 < len(self.pipeline) <= PIPELINED_MAX:
            self.flow.resume_reading()  # else its end would not be seen while the request before it waits

    def on_body(self, body: bytes) -> None:
        if not self.cycle.response_complete:
            super().on_body(body)
            return
        self._unwanted += len(body)
        if self._unwanted > self._limits.unwanted_bytes_max:
            self.transport.abort()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, but without a timer for each request: the listener looks for connections that are idle."""
        self._traffic.requests += 1
        if self.transport.is_closing():
            return
        self.active_at = self.loop.time()
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _should_upgrade(self) -> bool:
        return self.scope["method"] == "GET" and super()._should_upgrade()

    # --- refusing

    def refuse(self, status: int, code: str, detail: str) -> None:
        """Answer without an application, and close."""
        title = code.replace("-", " ").capitalize()
        content = (
            f'{{"type":"/docs#{code}","title":"{title}","status":{status},'
            f'"detail":"{detail}","code":"{code}","next":"{NEXT[code]}"}}'
        ).encode()
        head = b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(content) + content)
        self.transport.close()

    def _refuse_head_of(self, reason: BaseException | None) -> None:
        if isinstance(reason, httptools.HttpParserError | UnicodeDecodeError):
            self.refuse(400, "malformed-request", "the address of the request is not one")
        elif isinstance(reason, _HeadTooLarge):
            self._refuse_head()
        elif reason is not None:
            raise reason

    def _refuse_head(self) -> None:
        detail = f"the head of the request is above {self._limits.head_bytes_max} bytes"
        self.refuse(431, "head-too-large", detail)

    # --- what the listener calls

    def stalled(self, now: float) -> bool:
        """Whether it keeps half a request, or an answer, for longer than is good."""
        before, left = self._unsent.size, self.transport.get_write_buffer_size()
        if left and left < before:
            self.active_at = now  # it takes its answer, if slowly
        self._unsent.is_now(left)
        silent = now - self.active_at > self._limits.stalled_s
        if left and silent:
            return True
        late = now - self._began_at > self._limits.arrival_s
        if not (silent or late):
            return False
        waits_for_body = self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body
        arrives = self._in_head or self.cycle is None or (waits_for_body and not self.flow.read_paused)
        if arrives and not silent:
            self._state.bounds.met["request-arrival-ms"] += 1
        return arrives

    def idle(self, now: float) -> bool:
        """Whether it has asked for nothing since its last answer, for longer than it may."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self._in_head and now - self.active_at > self._limits.idle_s

    def stop(self) -> None:
        self.shutdown()
        self._peer.end()


class _WebSocket(WebSocketsSansIOProtocol):
    """One connection that has become a WebSocket's; its peer stays the same.

    What has come and was not taken by the application is charged to the budget of bodies. Nothing is decompressed:
    a message of 1 MB could come in 1 KB.
    """

    def __init__(self, config: Config, server_state: "_State", app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state, asyncio.get_running_loop())
        self._closed = server_state.closed
        self._bounds = server_state.bounds
        self._addresses = server_state.addresses
        self._held = 0
        self._unsent = Unsent(server_state.bounds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent.is_now(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent.is_now(0)

    def data_received(self, data: bytes) -> None:
        try:
            self._bounds.take_body(len(data))
        except TooBusy:
            self.transport.abort()
            return
        self._held += len(data)
        super().data_received(data)
        self._give_back()

    async def receive(self) -> Any:
        self._give_back()  # the message before is done with
        return await super().receive()

    def _give_back(self) -> None:
        """Once nothing is left of what came: no message, and no part of one."""
        if self._held and self.queue.empty() and not self.frames and not self.conn.reader.buffer:
            self._bounds.bodies.release(self._held)
            self._held = 0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._bounds.bodies.release(self._held)
        self._held = 0
        self._unsent.is_now(0)
        self.frames = []  # what is left of a message would wait for the garbage collector, as the protocol's parts do
        self.conn.reader.buffer = bytearray()
        peer: Peer = self.app_state["peer"]
        peer.end()
        self._addresses.leave(peer.address)
        self._closed()


class _State(ServerState):
    """What uvicorn's protocols share, and whether any is left."""

    def __init__(self, bounds: Bounds, addresses: Addresses) -> None:
        super().__init__()
        self.bounds = bounds
        self.addresses = addresses
        self.empty = asyncio.Event()
        self.stopped = False

    def closed(self) -> None:
        if not self.connections:
            self.empty.set()


class HttpListener:
    """Accepts connections on one address and gives their requests to an ASGI application."""

    def __init__(
        self, app: App, limits: HttpLimits, on_fatal: Callable[[BaseException], None],
        connection: "Callable[[HttpListener], Http] | None" = None, bounds: Bounds | None = None,
    ) -> None:  # fmt: skip
        self.limits = limits
        self.bounds = bounds or Bounds()
        self._connection = connection or Http
        self.state = _State(self.bounds, Addresses(limits.address_connections_max))
        self.traffic = Traffic()
        self.config = Config(
            cast(Any, _Answering(app, on_fatal)), http=Http, ws=_WebSocket, lifespan="off", interface="asgi3",
            log_config=None, log_level="warning", access_log=False, proxy_headers=False, server_header=False,
            date_header=False, ws_max_size=limits.message_bytes_max, ws_per_message_deflate=False,
        )  # fmt: skip
        self.config.load()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address; returns it with the port that the system chose for port 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._connection(self), host, port, backlog=1024, start_serving=False
        )
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def accept(self) -> None:
        """Let clients in."""
        assert self._server is not None
        await start_listening(self._server)
        self._sweeper = asyncio.get_running_loop().call_later(self.limits.sweep_s, self._sweep)

    @property
    def open_connections(self) -> int:
        return len(self.state.connections)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def stop(self, grace_s: float) -> None:
        """Let requests under way answer within the grace period, then close every connection."""
        self.stop_accepting()
        self.state.stopped = True
        for connection in list(self.state.connections):
            connection.stop() if isinstance(connection, Http) else connection.shutdown()  # 1012: restarts
        self.state.empty.clear()
        if self.state.connections:
            try:
                await asyncio.wait_for(self.state.empty.wait(), grace_s)
            except TimeoutError:
                # Tasks are not cancelled: what they wait for may be shared with others, and ends as the broker does.
                for connection in list(self.state.connections):
                    connection.transport.abort()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.state.connections):
            if not isinstance(connection, Http):
                continue
            if connection.stalled(now):
                logger.warning("closed an HTTP connection: it stalled for %.0f s", now - connection.active_at)
                connection.transport.abort()
            elif connection.idle(now):
                connection.transport.close()
        self._sweeper = loop.call_later(self.limits.sweep_s, self._sweep)


class _Answering:
    """An application that always answers."""

    def __init__(self, app: App, on_fatal: Callable[[BaseException], None]) -> None:
        self._app = app
        self._on_fatal = on_fatal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = scope["type"] != "http"

        def noted(message: MutableMapping[str, Any]) -> Awaitable[None]:
            nonlocal begun
            begun = True
            return send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if isinstance(error, Fatal):
                self._on_fatal(error)
            asked = f"{scope.get('method', 'GET')} {scope['path']}"
            if begun:
                error.add_note(f"while {asked} was answered")
                raise  # uvicorn tells the log, and ends the connection
            log_failure(logger, f"{asked} failed", error)
            await _send_failure(send)


async def _send_failure(send: Send) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(INTERNAL))]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": INTERNAL})


def _is_key(value: bytes) -> bool:
    try:
        return len(b64decode(value, validate=True)) == KEY_BYTES
    except ValueError:
        return False


def _wants_close(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"connection" and b"close" in value.lower() for name, value in headers)
