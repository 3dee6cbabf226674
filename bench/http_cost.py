"""What a request over HTTP costs a server, beside the least that uvicorn can cost: python -m bench.http_cost

Rule 1: the yardstick is an application of ASGI's three callables on uvicorn as it comes; it does the same work as the
        operations beside it: decode 1 KB of JSON or two parameters, answer 60 bytes of JSON.
Rule 2: CPU of the server's process is counted, not time: the machine may be busy. Each server is measured in every
        round, in turn; what counts is the median of the ratios within a round.
"""

import asyncio
import json
import multiprocessing
import statistics
import sys
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Annotated, Any, cast
from urllib.parse import parse_qs

import msgspec
import uvicorn
import uvloop
from msgspec import Meta

from bench.machine import cpu_of
from runnel.doors.http.app import HttpApp
from runnel.doors.http.call import Call
from runnel.doors.http.hosts import Hosts
from runnel.doors.http.operation import Struct, View, operation_of
from runnel.doors.http.pages import Pages
from runnel.net.bounds import Bounds
from runnel.net.http import HttpLimits, HttpListener
from runnel.net.traffic import Traffic

CONNECTIONS = 32
REQUESTS = 6_000
ROUNDS = 11
ANSWER = {"status": "success", "message_id": "0123456789012345678901234567"}
BODY = json.dumps({"from_user": "alice", "to_user": "bob", "message": "x" * 970}).encode()
HEAD = b"Host: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\n"
REQUESTED = {
    "send": b"POST /send HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HEAD, len(BODY), BODY),
    "receive": b"GET /receive?user_id=alice&limit=10 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
}


# --- the yardstick


async def raw(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    if scope["path"] == "/send":
        message = msgspec.json.decode((await receive())["body"])
        assert message["to_user"] == "bob"
    else:
        query = parse_qs(scope["query_string"].decode())
        assert int(query["limit"][0]) == 10
    content = msgspec.json.encode(ANSWER)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


# --- operations that do the same


class Message(Struct):
    from_user: str
    to_user: str
    message: str


class Sent(View, omit_defaults=False):
    status: str
    message_id: str


async def send(call: Call, body: Message) -> Sent:
    """Send.

    POST /send {"from_user": "a", "to_user": "b", "message": "c"}
    """
    return Sent(**ANSWER)


async def receive(call: Call, user_id: str, limit: Annotated[int, Meta(ge=1, le=1_000)] = 100) -> Sent:
    """Receive.

    GET /receive?user_id=a
    """
    return Sent(**ANSWER)


class _Door:
    """As much of a door as the application needs."""

    broker = None
    body_bytes_max = 1 << 24
    bounds = Bounds()
    traffic = Traffic()
    hosts = Hosts()
    pages = Pages()


OPERATIONS = [operation_of("POST", "/send", send, 200), operation_of("GET", "/receive", receive, 200)]


# --- servers


def serve_raw(told: Connection) -> None:
    async def main() -> None:
        config = uvicorn.Config(
            cast(Any, raw), port=0, http="httptools", lifespan="off", log_config=None, access_log=False,
            date_header=False, server_header=False,
        )  # fmt: skip
        server = uvicorn.Server(config)
        serving = asyncio.get_running_loop().create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  uvicorn tells it to nobody
            await asyncio.sleep(0.01)
        told.send(server.servers[0].sockets[0].getsockname()[1])
        await serving

    uvloop.run(main())


def serve_typed(told: Connection) -> None:
    async def main() -> None:
        listener = HttpListener(HttpApp(cast(Any, _Door()), OPERATIONS), HttpLimits(), print)
        _, port = await listener.bind("127.0.0.1", 0)
        await listener.accept()
        told.send(port)
        await asyncio.Event().wait()

    uvloop.run(main())


SERVERS = {"raw": serve_raw, "typed": serve_typed}


# --- load


class Line(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self, request: bytes, left: list[int], done: "asyncio.Future[None]") -> None:
        self._request = request
        self._left = left
        self._done = done
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._got.endswith(b"}"):
            return
        assert self._got.startswith(b"HTTP/1.1 200"), self._got
        self._got = b""
        self._left[0] -= 1
        if self._left[0] > 0:
            self._transport.write(self._request)
        elif not self._done.done():
            self._done.set_result(None)


async def load(port: int, request: bytes, count: int) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    left = [count]
    lines = [
        await loop.create_connection(lambda: Line(request, left, done), "127.0.0.1", port) for _ in range(CONNECTIONS)
    ]
    await done
    for transport, _ in lines:
        transport.close()


def measure(pid: int, port: int, request: bytes) -> float:
    """CPU of one request, in microseconds."""
    uvloop.run(load(port, request, REQUESTS // 10))
    before = cpu_of(pid)
    uvloop.run(load(port, request, REQUESTS))
    return (cpu_of(pid) - before).total_s / REQUESTS * 1e6


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ports: dict[str, tuple[int, int]] = {}
    processes = []
    for name, serve in SERVERS.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        assert process.pid is not None
        ports[name] = process.pid, ours.recv()
        processes.append(process)
    for case, request in REQUESTED.items():
        rounds = [{name: measure(*ports[name], request) for name in SERVERS} for _ in range(ROUNDS)]
        middle = {name: statistics.median(each[name] for each in rounds) for name in SERVERS}
        ratios = sorted(each["typed"] / each["raw"] for each in rounds)
        told = ", ".join(f"{name} {value:.1f} µs" for name, value in middle.items())
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f} in {ROUNDS} rounds)"
        sys.stdout.write(f"{case}: {told}; ratio {spread}\n")
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    main()
