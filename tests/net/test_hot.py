"""Hot requests: answered as the application would, in order, and left to it when anything about them is unusual."""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runnel.model.errors import InvalidRequest, RunnelError
from runnel.net.hot import Exchange, Failed, Heads, Hot, HotHttp, Routes, answer_later
from runnel.net.http import HttpLimits, HttpListener, Receive, Scope, Send

POST = b"POST /hot HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n%b"


class Door:
    """One hot route, `echo`, whose answers come when they are let go; the application says that it was asked."""

    def __init__(self) -> None:
        self.due: list[tuple[Exchange, bytes]] = []
        self.held = False
        self.asked: list[str] = []
        self.stop: Callable[[float], Awaitable[None]]
        self.hot = Hot(b"POST", self.begin, failed, leaves=(b"leave-it",))

    def begin(self, body: bytes, query: Any, exchange: Exchange) -> None:
        if body == b"bad":
            raise InvalidRequest("bad")
        if body == b"odd":
            raise ValueError("odd")
        if body == b"odd later":
            answer_later(exchange, asyncio.get_running_loop().create_task(_odd()), bytes)
        elif self.held:
            self.due.append((exchange, body))
        elif body == b"late":
            exchange.fail(InvalidRequest("late"))
        else:
            exchange.answer(b"hot:" + body)

    def let_go(self) -> None:
        due, self.due = self.due, []
        for exchange, body in due:
            exchange.answer(b"hot:" + body)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        self.asked.append(scope["method"])
        headers = [(b"content-length", b"%d" % (4 + len(body)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"app:" + body})


async def _odd() -> None:
    raise ValueError("odd")


def failed(error: RunnelError) -> Failed:
    return Failed(400, [(b"x-why", str(error).encode())], b"no")


Talk = Callable[[Door, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talk(scenario: Talk) -> None:
    async def run() -> None:
        door = Door()
        door.stop = lambda grace_s: listener.stop(grace_s)
        routes = Routes({b"/hot": door.hot})
        listener = HttpListener(door.app, HttpLimits(), _fail, lambda one: HotHttp(one, routes))
        host, port = await listener.bind("127.0.0.1", 0)
        await listener.accept()
        reader, writer = await asyncio.open_connection(host, port)
        try:
            await asyncio.wait_for(scenario(door, reader, writer), 30)
        finally:
            writer.close()
            door.let_go()
            await listener.stop(1.0)

    asyncio.run(run())


def _fail(error: BaseException) -> None:
    raise AssertionError(error)


def post(body: bytes, headers: bytes = b"") -> bytes:
    return POST % (len(body), headers, body)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split(b" ")[1]), await reader.readexactly(size)


def test_a_usual_request_is_answered_hot() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for headers in (b"", b"connection: keep-alive\r\n", b"accept: */*\r\n"):
            writer.write(post(b"a", headers))
            assert await answer(reader) == (200, b"hot:a")
        assert door.asked == []

    talk(scenario)


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"a", b"leave-it: 1\r\n"),
        post(b"a", b"origin: http://x\r\n"),
        post(b"a", b"sec-fetch-site: same-origin\r\n"),
        post(b"a", b"host: x\r\n"),
        post(b"a").replace(b"host: x\r\n", b""),
        post(b"a", b"expect: 100-continue\r\n"),
        post(b"a", b"connection: close\r\n"),
        post(b"a").replace(b"HTTP/1.1", b"HTTP/1.0"),
        post(b"a").replace(b"/hot", b"/hot?q=1"),
        post(b"a").replace(b"POST", b"PUT"),
        b"POST /hot HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        post(b"a" * 70_000),
    ],
)
def test_whatever_is_unusual_is_the_applications(request_bytes: bytes) -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request_bytes)
        if b"100-continue" in request_bytes:
            await reader.readuntil(b"\r\n\r\n")
        status, body = await answer(reader)
        assert (status, body[:5]) == (200, b"app:a")

    talk(scenario)


def test_java_posts_with_an_upgrade_and_is_answered() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(b"a", b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"))
        assert (await answer(reader))[1] in (b"hot:a", b"app:a")
        writer.write(post(b"b"))
        assert await answer(reader) == (200, b"hot:b")

    talk(scenario)


def test_requests_in_one_packet_are_answered_in_order() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        door.held = True
        writer.write(b"".join(post(b"%d" % n) for n in range(8)))
        while not door.due:
            await asyncio.sleep(0.01)
        assert len(door.due) == 1  # the others wait in line
        door.held = False
        door.let_go()
        answers = [await answer(reader) for _ in range(8)]
        assert [body.partition(b":")[2] for _, body in answers] == [b"%d" % n for n in range(8)]

    talk(scenario)


def test_a_body_may_come_in_pieces() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (post(b"abcdef")[at : at + 7] for at in range(0, len(post(b"abcdef")), 7)):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)
        assert (await answer(reader))[1].endswith(b"abcdef")

    talk(scenario)


@pytest.mark.parametrize("body", [b"bad", b"late"])
def test_what_can_not_be_done_is_told(body: bytes) -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(body))
        assert await answer(reader) == (400, b"no")
        writer.write(post(b"next"))
        assert await answer(reader) == (200, b"hot:next")

    talk(scenario)


@pytest.mark.parametrize("body", [b"odd", b"odd later"])
def test_what_nobody_foresaw_is_answered_too(body: bytes) -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(body))
        status, content = await answer(reader)
        assert (status, b'"code":"internal"' in content) == (500, True)
        writer.write(post(b"next"))
        assert await answer(reader) == (200, b"hot:next")

    talk(scenario)


def test_a_stop_lets_a_hot_answer_that_is_due_come_and_closes_the_connection() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        door.held = True
        writer.write(post(b"a"))
        while not door.due:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(door.stop(60.0))
        await asyncio.sleep(0)
        assert not stopping.done()
        door.let_go()
        assert await answer(reader) == (200, b"hot:a")
        assert await reader.read() == b""
        await stopping

    talk(scenario)


def test_a_hot_answer_that_does_not_come_holds_no_stop_up() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        door.held = True
        writer.write(post(b"a"))
        while not door.due:
            await asyncio.sleep(0)
        await door.stop(0.01)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        door.let_go()  # which harms nobody

    talk(scenario)


def test_a_client_that_goes_away_before_its_answer_harms_nobody() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        door.held = True
        writer.write(post(b"a"))
        while not door.due:
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.05)
        door.let_go()
        await asyncio.sleep(0.05)
        assert failures == []

    talk(scenario)


# --- rule 5: headers that were parsed once


class Parsed(HotHttp):
    """Counts the requests that the parser read."""

    count = 0

    def on_message_begin(self) -> None:
        Parsed.count += 1
        super().on_message_begin()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> type[Parsed]:
    Parsed.count = 0
    monkeypatch.setitem(globals(), "HotHttp", Parsed)
    return Parsed


def test_the_same_headers_are_parsed_once_and_mean_the_same(parsed: type[Parsed]) -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in (b"a", b"b", b"late", b"bad", b"c"):
            writer.write(post(body))
            assert await answer(reader) == ((200, b"hot:" + body) if len(body) == 1 else (400, b"no"))
        assert parsed.count == 3  # for three sizes
        assert door.asked == []

    talk(scenario)


@pytest.mark.parametrize(
    ("request_bytes", "said"),
    [
        (post(b"a", b"leave-it: 1\r\n"), b"app:a"),
        (post(b"a").replace(b"HTTP/1.1", b"HTTP/1.0"), b"app:a"),
        (post(b"a").replace(b"POST", b"PUT"), b"app:a"),
        (post(b"a").replace(b"/hot", b"/hot?q=1"), b"app:a"),
        (post(b"a").replace(b"/hot", b"/other"), b"app:a"),
        (b"\r\n" + post(b"a"), b"hot:a"),
        (post(b"a")[:-1] + b"b", b"hot:b"),
    ],
)
def test_headers_that_are_known_say_nothing_of_the_rest_of_a_request(request_bytes: bytes, said: bytes) -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(b"a"))
        assert await answer(reader) == (200, b"hot:a")
        writer.write(request_bytes)
        assert (await answer(reader))[1] == said

    talk(scenario)


def test_only_a_request_that_comes_whole_and_alone_is_recognised(parsed: type[Parsed]) -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(b"a") + post(b"b"))
        assert [(await answer(reader))[1][-1:] for _ in range(2)] == [b"a", b"b"]
        assert door.hot.heads.size_of(b"\r\nhost: x\r\ncontent-length: 1") is None, "two came at once"
        writer.write(post(b"c"))
        assert await answer(reader) == (200, b"hot:c")
        before = parsed.count
        writer.write(post(b"d") + post(b"e")[:-1])
        assert (await answer(reader))[1][-1:] == b"d"
        writer.write(b"e")
        assert (await answer(reader))[1][-1:] == b"e"
        assert parsed.count == before + 2

    talk(scenario)


def test_while_an_answer_is_due_a_request_that_is_known_waits_in_line() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post(b"0"))
        await answer(reader)
        door.held = True
        for number in range(1, 4):
            writer.write(post(b"%d" % number))
            await writer.drain()
            await asyncio.sleep(0.02)
        assert len(door.due) == 1
        door.held = False
        door.let_go()
        answers = [(await answer(reader))[1][-1:] for _ in range(3)]
        assert answers == [b"1", b"2", b"3"]

    talk(scenario)


def test_a_connection_may_change_between_hot_requests_and_others() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            for request_bytes, said in ((post(b"a"), b"hot:a"), (post(b"b").replace(b"/hot", b"/x"), b"app:b")):
                writer.write(request_bytes)
                assert (await answer(reader))[1] == said

    talk(scenario)


def test_what_is_remembered_of_headers_is_bounded() -> None:
    heads = Heads()
    for number in range(100_000):
        heads.learn(b"x-request-id: %d" % number, 1)
    assert len(heads) * 100 < 2 * 1024 * 1024
    heads.learn(b"x" * 3_000, 1)
    assert heads.size_of(b"x" * 3_000) is None
    assert heads.size_of(b"x-request-id: 99999") == 1


def test_a_connection_that_is_gone_is_gone_without_the_collector_of_garbage() -> None:
    async def scenario(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("peername")
        gc.collect()
        gc.disable()
        try:
            for path in (b"/hot", b"/other"):
                more, out = await asyncio.open_connection(*address)
                out.write(post(b"a").replace(b"/hot", path))
                await answer(more)
                out.close()
                await out.wait_closed()
            while (left := _connections()) > 1:
                await asyncio.sleep(0.01)
            assert left == 1
        finally:
            gc.enable()

    talk(scenario)


def _connections() -> int:
    return sum(isinstance(one, HotHttp) for one in gc.get_objects())
