"""The door of a real broker: its limits, its end, where it is, and who may use it."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from runnel.testing.process import BrokerProcess

from .api import LIMIT_S, Answer, Api

MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_and_costs_no_memory(
    api: Api, broker: BrokerProcess, chunked: bool
) -> None:
    before = resident_bytes(broker.pid)
    host, _, port = api.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {60 * MIB}"
        connection.sendall(f"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
        piece = b"x" * MIB
        for _ in range(60):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        head, _, content = connection.recv(65_536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert json.loads(content)["code"] == "body-too-large"
    assert resident_bytes(broker.pid) - before < (24 if chunked else 8) * MIB, "at most one body as large as is allowed"


def test_who_asks_first_does_not_send_a_body_that_is_too_large(api: Api) -> None:
    host, _, port = api.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        expect = f"Expect: 100-continue\r\nContent-Length: {60 * MIB}"
        connection.sendall(f"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\n{expect}\r\n\r\n".encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_paths_and_methods_that_are_not_there(api: Api) -> None:
    assert api.get("/v1/nothing").code == "no-such-path"
    refused = api.ask("PUT", "/v1/topics")
    assert (refused.code, refused.headers["allow"]) == ("method-not-allowed", "GET, POST, HEAD")
    assert api.post("/v1/topics", b"{").code == "malformed-body"
    assert api.post("/v1/topics", b"\xff").code == "malformed-body"
    head = api.ask("HEAD", "/v1/topics")
    assert (head.status, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics"), ("HEAD", "/v1/topics"), ("GET", "/v1/users/bob/events"), ("GET", "/health"),
        ("DELETE", "/v1/topics/body-less"), ("POST", "/v1/queues/body-less/receive"),
        ("POST", "/v1/queues/body-less/purge"),
    ],
)  # fmt: skip
def test_a_body_where_none_is_taken_is_refused_and_nothing_is_done(api: Api, method: str, path: str) -> None:
    if api.get("/v1/queues/body-less").status == 404:
        api.ok("POST", "/v1/queues", {"name": "body-less"})
    for _ in range(2):
        refused = api.ask(method, path, {"limit": 10})
        assert refused.status == 422
        assert method == "HEAD" or refused.code == "unexpected-body"
    host, _, port = api.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"2\r\n{}\r\n0\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 422 ")
    assert api.get("/v1/topics/body-less").status == 200
    assert api.ask("POST", "/v1/queues/body-less/receive", b"").status == 200, "an empty one says nothing"


def test_a_page_of_another_site_gets_nothing_done(api: Api) -> None:
    for origin in ("http://evil.example", "null"):
        assert api.post("/v1/topics", {"name": "evil"}, Origin=origin).code == "cross-origin"
    assert api.get("/v1/topics/evil").status == 404
    assert api.get("/health", Origin=f"http://{api.address}").status == 200


def test_a_websocket_is_refused_where_there_is_none(api: Api) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{api.address}/v1/topics")
        assert refused.value.response.status_code == 404
        assert json.loads(refused.value.response.body)["code"] == "no-such-path"

    asyncio.run(main())


# --- Java's client


def test_a_post_of_java_arrives_with_its_body(api: Api) -> None:
    """As it is, the JDK's client asks for HTTP/2 with every POST over plain text."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java on this machine")
    url, message = f"http://{api.address}/v1/topics/java/messages", '{"value":"from Java"}'
    source = Path(__file__).parent / "Post.java"
    ran = subprocess.run([java, str(source), url, message], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [line.split(" ", 2)[:2] for line in ran.stdout.splitlines()] == [["200", "HTTP_1_1"]] * 2
    got = api.ok("GET", "/v1/topics/java/partitions/0/messages")["messages"]
    assert [each["value"] for each in got] == ["from Java", "from Java"]


# --- where it is


def test_the_door_can_be_left_shut(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--http", "off") as broker:
        assert broker.http == "off"


def test_an_address_that_was_asked_for_and_is_taken_ends_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "runnel.cli.main", "serve", "--data", str(tmp_path / "data")]
        command += ["--kafka", "127.0.0.1:0", "--http", address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 1
    assert f"http can't be '{address}'" in ended.stderr
    assert "--http off" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_usual_address_may_be_taken_and_the_broker_says_what_to_do(tmp_path: Path) -> None:
    """Two brokers on one machine, or another program on 8080: Kafka's clients are served all the same."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        except OSError:
            pass  # somebody else has taken it: as good
        command = [sys.executable, "-m", "runnel.cli.main", "serve", "--data", str(tmp_path / "data")]
        with subprocess.Popen(
            [*command, "--kafka", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as broker:
            assert broker.stdout is not None
            printed = ""
            while "data" not in (line := broker.stdout.readline()) and line:
                printed += line
            broker.terminate()
    assert "off: 127.0.0.1:8080 is taken; give another address with --http HOST:PORT" in printed


# --- its end


def test_a_stop_answers_who_waits_and_says_so_to_who_asks(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    try:
        api = Api(broker.http)
        api.ok("POST", "/v1/topics", {"name": "t"})
        api.ok("POST", "/v1/queues", {"name": "q"})
        answers: list[Answer] = []
        waiting = [
            threading.Thread(target=lambda path=path, method=method: answers.append(api.ask(method, path)))
            for method, path in (
                ("GET", "/v1/topics/t/partitions/0/messages?wait_ms=60000"),
                ("POST", "/v1/queues/q/receive?wait_ms=60000"),
            )
        ]
        for thread in waiting:
            thread.start()
        while b'door="http"} 2.0' not in open_connections(api):
            pass
        assert broker.stop() == 0
        for thread in waiting:
            thread.join(LIMIT_S)
        assert [(each.status, each.json["messages"]) for each in answers] == [(200, [])] * 2
    finally:
        broker.kill()


def open_connections(api: Api) -> bytes:
    """Of the door, but for the one that asks."""
    lines = api.get("/metrics").content.splitlines()
    [line] = [line for line in lines if line.startswith(b'runnel_door_open_connections{door="http"}')]
    count = float(line.rpartition(b" ")[2]) - 1
    return b'door="http"} %.1f' % count


def test_a_client_that_goes_away_ends_its_wait(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "gone"})
    host, _, port = api.address.partition(":")
    idle = open_connections(api)
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        path = "/v1/topics/gone/partitions/0/messages?wait_ms=60000"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while open_connections(api) == idle:
            pass
    while open_connections(api) != idle:
        pass
