"""The application behind the listener: bodies, streams, WebSockets and errors of operations."""

import asyncio
import http.client
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, cast

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from runnel.doors.http.app import HttpApp
from runnel.doors.http.call import Call
from runnel.doors.http.hosts import Hosts
from runnel.doors.http.operation import SOCKET, Operation, Stream, operation_of
from runnel.doors.http.pages import Pages
from runnel.doors.http.socket import Socket
from runnel.model.errors import Fatal, PolicyViolation
from runnel.net.bounds import Bounds
from runnel.net.http import HttpLimits, HttpListener
from runnel.net.traffic import Traffic

from .api import Answer

LIMIT_S = 30.0


class Stage:
    """What operations do here, and as much of a door as the application needs."""

    def __init__(self) -> None:
        self.broker = None
        self.body_bytes_max = 1_000
        self.bounds = Bounds(bodies=1_500)
        self.traffic = Traffic()
        self.hosts = Hosts()
        self.pages = Pages()
        self.go_on = asyncio.Event()
        self.under_way = 0
        self.ended: list[str] = []
        self.fatal: list[BaseException] = []
        self.port = 0

    def operations(self) -> list[Operation]:
        async def hold(call: Call, body: bytes) -> dict[str, int]:
            """Hold a body.

            POST /hold {}
            """
            self.under_way += 1
            await self.go_on.wait()
            return {"bytes": len(body)}

        async def tick(call: Call) -> Annotated[Stream, "text/plain"]:
            """Tick.

            GET /tick
            """
            return Stream(self._ticks(), "text/plain")

        async def end(call: Call) -> None:
            """End the broker.

            GET /end
            """
            raise Fatal("a failed sync")

        async def echo(call: Call, socket: Socket, first: str, fail: bool = False) -> None:
            """Say what was said.

            GET /echo?first=a
            """
            await socket.accept()
            await socket.send(first)
            if fail:
                raise PolicyViolation("enough")
            try:
                while True:
                    await socket.send(await socket.receive())
            finally:
                self.ended.append("echo")

        return [
            operation_of("POST", "/hold", hold, 200), operation_of("GET", "/tick", tick, 200),
            operation_of("GET", "/end", end, 200), operation_of(SOCKET, "/echo", echo, 101),
        ]  # fmt: skip

    async def _ticks(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.005)
        finally:
            self.ended.append("tick")

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        def blocking() -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
            connection.request(method, path, body)
            answer = connection.getresponse()
            told = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
            connection.close()
            return told

        return await asyncio.to_thread(blocking)


@asynccontextmanager
async def served() -> AsyncIterator[Stage]:
    stage = Stage()
    listener = HttpListener(HttpApp(cast(Any, stage), stage.operations()), HttpLimits(), stage.fatal.append)
    _, stage.port = await listener.bind("127.0.0.1", 0)
    await listener.accept()
    try:
        yield stage
    finally:
        stage.go_on.set()
        await listener.stop(LIMIT_S)


def run(play: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with served() as stage:
            await play(stage)

    asyncio.run(main())


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.005)


def test_the_bodies_of_all_requests_are_bounded_together() -> None:
    async def play(stage: Stage) -> None:
        first = asyncio.ensure_future(stage.ask("POST", "/hold", b"x" * 900))
        await until(lambda: stage.under_way == 1)
        refused = await stage.ask("POST", "/hold", b"x" * 900)
        assert (refused.code, refused.headers["retry-after"]) == ("too-busy", "1")
        small = asyncio.ensure_future(stage.ask("POST", "/hold", b"x" * 300))
        await until(lambda: stage.under_way == 2)
        stage.go_on.set()
        assert [(await one).json for one in (first, small)] == [{"bytes": 900}, {"bytes": 300}]
        assert (await stage.ask("POST", "/hold", b"x" * 900)).status == 200, "what was held is given back"

    run(play)


def test_a_stream_comes_as_it_goes_and_ends_with_its_client() -> None:
    async def play(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(b"GET /tick HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        assert b"transfer-encoding: chunked" in head
        for _ in range(3):
            assert await asyncio.wait_for(reader.readuntil(b"tick\n\r\n"), LIMIT_S) == b"5\r\ntick\n\r\n"
        writer.close()
        await until(lambda: stage.ended == ["tick"])
        head_alone = await stage.ask("HEAD", "/tick")
        assert (head_alone.status, head_alone.content) == (200, b"")
        assert stage.traffic.bytes_out >= 15

    run(play)


def test_what_is_fatal_ends_the_broker_and_is_answered() -> None:
    async def play(stage: Stage) -> None:
        assert (await stage.ask("GET", "/end")).code == "internal"
        assert [str(error) for error in stage.fatal] == ["a failed sync"]

    run(play)


def test_a_websocket_has_parameters_and_ends_with_its_client() -> None:
    async def play(stage: Stage) -> None:
        async with connect(f"ws://127.0.0.1:{stage.port}/echo?first=hello") as socket:
            assert await socket.recv() == "hello"
            await socket.send(b"bytes")
            assert await socket.recv() == b"bytes"
        await until(lambda: stage.ended == ["echo"])

    run(play)


def test_a_websocket_that_fails_says_why() -> None:
    async def play(stage: Stage) -> None:
        async with connect(f"ws://127.0.0.1:{stage.port}/echo?first=hello&fail=true") as socket:
            await socket.recv()
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "enough")
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{stage.port}/echo")
        assert refused.value.response.status_code == 422
        assert "first" in json.loads(refused.value.response.body)["detail"]

    run(play)


def test_a_page_of_another_site_gets_no_websocket() -> None:
    async def play(stage: Stage) -> None:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{stage.port}/echo?first=a", origin=cast(Any, "http://evil.example"))
        assert refused.value.response.status_code == 403

    run(play)
