"""Posting to other people's servers: the addresses that may be, one deadline, and connections that are used again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runnel.net.posting import Answer, BadAddress, NoAnswer, Place, Poster, is_public, must_be_public, parse_url

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; None: not at all. Counts connections."""

    def __init__(self, *answers: bytes | None, close_after: int = 0) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self._close_after = close_after

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    await asyncio.sleep(30)
                writer.write(answer or b"")
                if self._close_after:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


def talk(server: Server, scenario: Callable[[Poster, str], Awaitable[None]]) -> None:
    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        poster = Poster(allow_private=True)
        try:
            await asyncio.wait_for(scenario(poster, f"http://127.0.0.1:{port}/a?b=c"), 30)
        finally:
            poster.close()
            listening.close()

    asyncio.run(run())


async def post(poster: Poster, url: str, timeout_s: float = 10.0) -> Answer:
    return await poster.post(url, {"X-Test": "1"}, b"body", timeout_s)


def test_a_request_is_posted_whole() -> None:
    server = Server(b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")

    async def scenario(poster: Poster, url: str) -> None:
        answer = await post(poster, url)
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")

    talk(server, scenario)
    [request] = server.requests
    assert request.startswith(b"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert request.endswith(b"Content-Length: 4\r\nX-Test: 1\r\n\r\nbody")


def test_a_connection_is_used_again() -> None:
    server = Server()

    async def scenario(poster: Poster, url: str) -> None:
        for _ in range(5):
            assert (await post(poster, url)).status == 200

    talk(server, scenario)
    assert (len(server.requests), server.connections) == (5, 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    ],
)
def test_a_connection_that_can_not_be_used_again_is_closed(answer: bytes) -> None:
    server = Server(answer, answer)

    async def scenario(poster: Poster, url: str) -> None:
        assert [(await post(poster, url)).status for _ in range(2)] == [200, 200]

    talk(server, scenario)
    assert server.connections == 2


def test_a_connection_that_died_meanwhile_costs_nothing() -> None:
    server = Server(close_after=1)

    async def scenario(poster: Poster, url: str) -> None:
        for _ in range(3):
            assert (await post(poster, url)).status == 200
            await asyncio.sleep(0.02)

    talk(server, scenario)
    assert len(server.requests) == 3


def test_an_interim_answer_is_passed_over() -> None:
    async def scenario(poster: Poster, url: str) -> None:
        assert (await post(poster, url)).status == 200

    talk(Server(b"HTTP/1.1 100 Continue\r\n\r\n" + OK), scenario)


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 2", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 100_000])
def test_no_answer_in_time_and_nonsense_are_no_answer(answer: bytes | None) -> None:
    async def scenario(poster: Poster, url: str) -> None:
        with pytest.raises(NoAnswer):
            await post(poster, url, 0.3)

    talk(Server(answer, close_after=1), scenario)


def test_nobody_there_is_no_answer() -> None:
    async def scenario() -> None:
        with pytest.raises(NoAnswer):
            await post(Poster(allow_private=True), "http://127.0.0.1:1/")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "169.254.169.254", "[::ffff:10.0.0.1]"]
)
def test_private_addresses_are_refused(host: str) -> None:
    async def scenario() -> None:
        with pytest.raises(BadAddress, match="public"):
            await post(Poster(allow_private=False), f"http://{host}/")

    asyncio.run(scenario())
    with pytest.raises(BadAddress, match="public"):
        must_be_public(parse_url(f"http://{host}/"))


def test_what_a_name_means_is_not_known_beforehand() -> None:
    must_be_public(parse_url("http://billing.example.com/"))
    must_be_public(parse_url("http://8.8.8.8/"))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "192.168.0.1", "224.0.0.1", "255.255.255.255", "100.64.0.1", "198.18.0.1", "fe80::1%eth0", "fc00::1",
     "::", "::1", "ff02::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1",
     "64:ff9b::808:808", "64:ff9b:1::7f00:1", "2002:7f00:1::1", "2002:808:808::1",
     "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "3fff::1", "100::1", "4000::1"],
)  # fmt: skip
def test_all_others_are_not(address: str) -> None:
    assert not is_public(address)


def test_a_url_has_its_parts() -> None:
    assert parse_url("https://Example.com/a?b") == Place("https", "example.com", 443, "/a?b")
    assert parse_url("http://[::1]:81").authority == "[::1]:81"
    assert parse_url("http://example.com").target == "/"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://x/",
        "http:///x",
        "http://x:99999/",
        "http://a:b@x/",
        "http://x/\r\nHost: y",
        "http://x/ü",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        parse_url(url)
