"""HTTP/1.1 as the broker serves it: what clients of all kinds do to a connection, and what must come of it."""

import asyncio
import json
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from runnel.model.errors import Fatal
from runnel.net.http import PIPELINED_MAX, App, HttpLimits, HttpListener, Peer, Receive, Scope, Send

LIMIT_S = 30.0
H2C = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
)


class Stage:
    """An application that says what it was asked, and waits where it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.peers: list[Peer] = []
        self.go_on = asyncio.Event()
        self.answer_bytes = 0
        self.failure: Exception | None = None
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._echo(receive, send)
            return
        path = scope["path"]
        self.peers.append(scope["state"]["peer"])
        self.asked.append(path)
        body = b"" if path == "/early" else await _body(receive)
        if path.startswith("/wait"):
            await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        content = f"{scope['method']} {path} {len(body)}".encode() + b"." * self.answer_bytes
        headers = [(b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        self.ended.append(path)

    async def _echo(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


class Client:
    """A connection of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """The next answer: status and content."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:-2])
        content = await self.reader.readexactly(int(headers.get(b"content-length", b"0")))
        return int(lines[0].split()[1]), content

    async def closed(self) -> bool:
        """Whether the server closes it, having sent nothing more."""
        try:
            return await asyncio.wait_for(self.reader.read(1), LIMIT_S) == b""
        except ConnectionResetError:
            return True


class Server:
    def __init__(self, stage: Stage, listener: HttpListener, port: int, fatal: list[BaseException]) -> None:
        self.stage = stage
        self.listener = listener
        self.port = port
        self.fatal = fatal
        self.clients: list[Client] = []

    async def client(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]


@asynccontextmanager
async def served(app: App | None = None, **limits: Any) -> AsyncIterator[Server]:
    stage, fatal = Stage(), list[BaseException]()
    listener = HttpListener(app or stage, HttpLimits(**limits), fatal.append)
    _, port = await listener.bind("127.0.0.1", 0)
    await listener.accept()
    server = Server(stage, listener, port, fatal)
    try:
        yield server
    finally:
        stage.go_on.set()
        for client in server.clients:
            client.writer.transport.abort()
        await listener.stop(LIMIT_S)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.005)


def get(path: str, *headers: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{''.join(h + chr(13) + chr(10) for h in headers)}\r\n".encode()


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


# --- requests of all shapes


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(post("/wait", b"x") + b"".join(post(f"/{n}", b"x" * n) for n in range(8)))
            await until(lambda: server.stage.asked)
            server.stage.go_on.set()
            assert await client.answer() == (200, b"POST /wait 1")
            assert [await client.answer() for _ in range(8)] == [(200, b"POST /%d %d" % (n, n)) for n in range(8)]

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 7, 50])
def test_a_request_may_come_in_pieces(size: int) -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            data = post("/a", b"hello") + get("/b")
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert [await client.answer(), await client.answer()] == [(200, b"POST /a 5"), (200, b"GET /b 0")]

    asyncio.run(main())


def test_an_answer_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would be two packets, and a client that wakes twice."""
    written: list[bytes] = []
    write = _SelectorSocketTransport.write

    def noted(transport: Any, data: bytes) -> None:
        written.append(bytes(data))
        write(transport, data)

    monkeypatch.setattr(_SelectorSocketTransport, "write", noted)

    async def main() -> None:
        async with served() as server:
            client = await server.client()
            for request in (get("/a"), b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n", get("/a")):
                client.send(request)
                await asyncio.wait_for(client.reader.read(65_536), LIMIT_S)
            answers = [data for data in written if not data.startswith((b"GET", b"HEAD"))]
            assert [answer.rpartition(b"\r\n\r\n")[2] for answer in answers] == [b"GET /a 0", b"", b"GET /a 0"]

    asyncio.run(main())


CHUNKS = b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


def test_a_body_may_be_chunked() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + get("/b"))
            assert [await client.answer(), await client.answer()] == [(200, b"POST /a 5"), (200, b"GET /b 0")]

    asyncio.run(main())


def test_who_asks_whether_to_go_on_is_told_so() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
            assert await client.answer() == (100, b"")
            client.send(b"hello")
            assert await client.answer() == (200, b"POST /a 5")

    asyncio.run(main())


def test_who_asks_and_is_not_told_to_go_on_begins_a_new_connection() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(b"POST /early HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 500\r\n\r\n")
            head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), LIMIT_S)
            assert b"connection: close" in head
            await client.reader.readexactly(len(b"POST /early 0"))
            assert await client.closed(), "its next request would be taken for the body"

    asyncio.run(main())


@pytest.mark.parametrize(
    "request_", [get("/a", "Connection: close"), b"GET /a HTTP/1.0\r\n\r\n"], ids=["close", "HTTP/1.0"]
)
def test_a_connection_ends_with_the_answer_where_the_client_wants_it(request_: bytes) -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(request_)
            assert await client.answer() == (200, b"GET /a 0")
            assert await client.closed()

    asyncio.run(main())


@pytest.mark.parametrize(
    "nonsense", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_what_is_no_request_is_refused_and_the_connection_closed(nonsense: bytes) -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(nonsense)
            status, content = await client.answer()
            assert (status, json.loads(content)["code"]) == (400, "malformed-request")
            assert await client.closed()
            assert server.stage.asked == []

    asyncio.run(main())


# --- upgrades


def test_a_post_that_would_like_http_2_is_served_in_http_1_with_its_body() -> None:
    """As Java's HttpClient and `curl --http2` send it. The parser alone would lose the body."""

    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(H2C + b"Content-Length: 5\r\n\r\nhello")
            assert await client.answer() == (200, b"POST /a 5")
            client.send(post("/b", b"kept alive"))
            assert await client.answer() == (200, b"POST /b 10")

    asyncio.run(main())


@pytest.mark.parametrize("size", [3, 40, 10_000])
@pytest.mark.parametrize(
    "rest",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS],
    ids=["length", "chunked"],
)
def test_also_in_pieces_and_with_the_next_request_behind_it(rest: bytes, size: int) -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            data = H2C + rest + post("/b", b"xy")
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert [await client.answer(), await client.answer()] == [(200, b"POST /a 5"), (200, b"POST /b 2")]

    asyncio.run(main())


def test_a_post_can_not_become_a_websocket() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(post("/a", b"hello", "Connection: Upgrade", "Upgrade: websocket"))
            assert await client.answer() == (200, b"POST /a 5")

    asyncio.run(main())


@pytest.mark.parametrize("lacking", [["Sec-WebSocket-Version: 13"], ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]])
@pytest.mark.parametrize("key", [[], ["Sec-WebSocket-Key: short"]])
def test_a_handshake_that_lacks_something_is_told_so(lacking: list[str], key: list[str]) -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(get("/echo", "Upgrade: websocket", "Connection: Upgrade", *lacking, *key))
            status, content = await client.answer()
            assert (status, json.loads(content)["code"]) == (400, "malformed-request")
            assert await client.closed()

    asyncio.run(main())


def test_websockets_are_served_on_the_same_port() -> None:
    async def main() -> None:
        async with served() as server, connect(f"ws://127.0.0.1:{server.port}/echo") as socket:
            await socket.send("hello")
            assert await asyncio.wait_for(socket.recv(), LIMIT_S) == "hello"
            client = await server.client()
            client.send(get("/a"))
            assert await client.answer() == (200, b"GET /a 0")

    asyncio.run(main())


# --- limits


def test_a_head_is_bounded_whether_it_comes_at_once_or_not() -> None:
    async def main() -> None:
        async with served(head_bytes_max=2_000) as server:
            for pieces in ([get("/a", "A: " + "a" * 3_000)], [b"GET /a HTTP/1.1\r\nA: ", *[b"a" * 900] * 4]):
                client = await server.client()
                for piece in pieces:
                    client.send(piece)
                    await asyncio.sleep(0.02)
                status, content = await client.answer()
                assert (status, json.loads(content)["code"]) == (431, "head-too-large")
            assert server.stage.asked == []
            client = await server.client()
            client.send(get("/a", "A: " + "a" * 1_500) + post("/b", b"b" * 5_000))
            assert [(await client.answer())[0], (await client.answer())[0]] == [200, 200]

    asyncio.run(main())


def test_connections_are_bounded() -> None:
    async def main() -> None:
        async with served(connections_max=2) as server:
            kept = [await server.client() for _ in range(2)]
            await until(lambda: server.listener.open_connections == 2)
            status, content = await (await server.client()).answer()
            assert (status, json.loads(content)["code"]) == (503, "too-many-connections")
            kept[0].writer.close()
            await until(lambda: server.listener.open_connections == 1)
            client = await server.client()
            client.send(get("/a"))
            assert await client.answer() == (200, b"GET /a 0")

    asyncio.run(main())


def test_a_body_that_nobody_wants_is_dropped_and_the_connection_goes_on() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            assert await client.answer() == (200, b"POST /early 0")
            client.send(b"x" * 1_000_000 + get("/b"))
            assert await client.answer() == (200, b"GET /b 0")

    asyncio.run(main())


def test_but_not_for_ever() -> None:
    async def main() -> None:
        async with served(unwanted_bytes_max=100_000) as server:
            client = await server.client()
            client.send(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            await client.answer()
            client.send(b"x" * 200_000)
            assert await client.closed()

    asyncio.run(main())


@pytest.mark.parametrize("half", [b"", b"GET /a HT", post("/a", b"x" * 100)[:-50]], ids=["nothing", "head", "body"])
def test_half_a_request_is_not_waited_for_for_ever(half: bytes) -> None:
    async def main() -> None:
        async with served(stalled_s=0.1, sweep_s=0.05) as server:
            client = await server.client()
            client.send(half)
            assert await client.closed()

    asyncio.run(main())


def test_a_client_that_never_reads_loses_its_connection() -> None:
    async def main() -> None:
        async with served(stalled_s=1.0, sweep_s=0.05) as server:
            server.stage.answer_bytes = 30_000_000
            client = await server.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(get("/large"))
            await until(lambda: server.stage.asked)
            await until(lambda: server.listener.open_connections == 0)

    asyncio.run(main())


def test_a_request_that_takes_long_keeps_its_connection() -> None:
    async def main() -> None:
        async with served(stalled_s=0.5, sweep_s=0.02, idle_s=0.5) as server:
            client = await server.client()
            client.send(get("/wait"))
            await asyncio.sleep(1.5)  # much longer than who stalls would be given
            server.stage.go_on.set()
            assert await client.answer() == (200, b"GET /wait 0")
            assert await client.closed(), "an idle connection is closed in the end"

    asyncio.run(main())


# --- ends


def test_who_waits_for_a_client_learns_that_it_went_away() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(get("/wait"))
            await until(lambda: server.stage.peers)
            [peer] = server.stage.peers
            told: list[str] = []
            peer.when_over(lambda: told.append("gone"))
            client.writer.close()
            await until(lambda: told)
            assert peer.over
            server.stage.go_on.set()
            await until(lambda: server.stage.ended)  # what is answered to nobody hurts nobody

    asyncio.run(main())


def test_also_with_requests_in_line_behind_it() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(get("/wait"))
            await until(lambda: server.stage.peers)
            client.send(get("/b") + post("/c", b"hello"))
            [connection] = server.listener.state.connections
            await until(lambda: len(connection.pipeline) == 2)  # type: ignore[union-attr]
            client.writer.close()
            await until(lambda: server.stage.peers[0].over)
            server.stage.go_on.set()
            await until(lambda: server.stage.ended)
            assert server.stage.asked == ["/wait"], "nobody is there to be answered"

    asyncio.run(main())


def test_requests_in_line_are_bounded() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(get("/wait"))
            await until(lambda: server.stage.peers)
            [connection] = server.listener.state.connections
            for number in range(PIPELINED_MAX + 1):
                client.send(get(f"/{number}"))
                await until(lambda number=number: len(connection.pipeline) == number + 1)  # type: ignore[misc, union-attr]
            assert connection.flow.read_paused  # type: ignore[union-attr]
            server.stage.go_on.set()
            for path in ("wait", *range(PIPELINED_MAX + 1)):
                assert await client.answer() == (200, f"GET /{path} 0".encode())

    asyncio.run(main())


def test_a_stop_lets_what_is_under_way_answer_and_closes_the_rest() -> None:
    async def main() -> None:
        async with served() as server:
            idle, busy = await server.client(), await server.client()
            idle.send(get("/a"))
            await idle.answer()
            busy.send(get("/wait"))
            await until(lambda: len(server.stage.peers) == 2)
            server.stage.peers[1].when_over(server.stage.go_on.set)
            await server.listener.stop(LIMIT_S)
            assert await busy.answer() == (200, b"GET /wait 0")
            assert await idle.closed()
            assert await busy.closed()
            with pytest.raises(ConnectionRefusedError):
                await server.client()

    asyncio.run(main())


def test_a_stop_is_bounded_whatever_is_under_way() -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            client.send(get("/wait"))
            await until(lambda: server.stage.peers)
            async with asyncio.timeout(LIMIT_S):
                await server.listener.stop(0.1)
            assert await client.closed()
            assert server.stage.ended == []

    asyncio.run(main())


def test_a_stop_tells_websockets_that_the_server_restarts() -> None:
    async def main() -> None:
        async with served() as server, connect(f"ws://127.0.0.1:{server.port}/echo") as socket:
            await socket.send("hello")
            await socket.recv()
            await server.listener.stop(LIMIT_S)
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012

    asyncio.run(main())


@pytest.mark.parametrize("failure", [ValueError("a bug"), Fatal("a failed sync")])
def test_whatever_an_application_raises_costs_its_request_alone(failure: Exception) -> None:
    async def main() -> None:
        async with served() as server:
            client = await server.client()
            server.stage.failure = failure
            client.send(get("/a"))
            status, content = await client.answer()
            assert (status, json.loads(content)["code"]) == (500, "internal")
            assert server.fatal == ([failure] if isinstance(failure, Fatal) else [])
            server.stage.failure = None
            client.send(get("/b"))
            assert await client.answer() == (200, b"GET /b 0")

    asyncio.run(main())


def test_an_answer_that_fails_on_its_way_is_cut_off_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("a bug")

    async def main() -> None:
        async with served(half) as server:
            client = await server.client()
            client.send(get("/a"))
            answer = await asyncio.wait_for(client.reader.read(), LIMIT_S)
            assert answer.endswith(b"4\r\nhalf\r\n"), "an answer without an end"

    asyncio.run(main())
    [told] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "while GET /a was answered" in (told.exc_text or "")


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"],
    ids=["nothing", "a head", "a body"],
)
def test_a_request_has_a_deadline_as_a_whole_whatever_trickles_in(begun: bytes) -> None:
    async def main() -> None:
        async with served(arrival_s=0.3, sweep_s=0.05) as server:
            client = await server.client()
            client.send(begun)
            await until(lambda: server.listener.open_connections)
            while server.listener.open_connections:
                client.send(b"x" if begun else b"\r\n")
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_one_address_has_no_more_connections_than_it_may() -> None:
    async def main() -> None:
        async with served(address_connections_max=2) as server:
            clients = [await server.client() for _ in range(2)]
            for client in clients:
                client.send(get("/a"))
                assert (await client.answer())[0] == 200
            third = await server.client()
            assert (await third.answer())[0] == 503
            assert server.listener.bounds.met["address-connections-max"] == 1
            clients[0].writer.transport.abort()
            await until(lambda: server.listener.open_connections == 1)
            fourth = await server.client()
            fourth.send(get("/b"))
            assert (await fourth.answer())[0] == 200

    asyncio.run(main())
