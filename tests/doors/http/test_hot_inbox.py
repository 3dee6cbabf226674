"""What a hot request leaves behind: nothing."""

import json
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from tests.test_inbox import User

from runnel.broker.inbox import Inbox
from runnel.doors.http.inbox import hot_receive
from runnel.model.errors import InvalidRequest
from runnel.net.hot import Exchange
from runnel.net.http import Peer
from runnel.testing.process import BrokerProcess

SEND = b"POST /send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
LIMIT_S = 30.0


class Refusing:
    """An inbox that takes no question."""

    def poll(self, *asked: Any, **more: Any) -> None:
        raise InvalidRequest("this is not the id of a message")


class Connection:
    """A connection that only hears of failures."""

    def __init__(self) -> None:
        self.peer = Peer("a client")
        self.asker: object = None


def test_a_connection_does_not_collect_the_waits_of_its_questions() -> None:
    exchange = Connection()
    hot = hot_receive(cast(Inbox, Refusing()))
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            hot.begin(b"", ("bob", "nonsense", 1_000, 10), cast(Exchange, exchange))
    assert len(exchange.peer._told) == 1, "one that lasts as long as the connection"


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        (b"user_id=bob", ("bob", None, 0, 100)),
        (b"user_id=bob&last_message_id=00ff&wait_ms=5&limit=7", ("bob", "00ff", 5, 7)),
        (b"last_message_id=00ff&user_id=bob", ("bob", "00ff", 0, 100)),
        (b"limit=7&user_id=bob&last_message_id=00ff", ("bob", "00ff", 0, 7)),
        (b"user_id=last_message_id", ("last_message_id", None, 0, 100)),
    ],
)
def test_a_query_as_most_write_it_is_understood(query: bytes, meant: object) -> None:
    assert hot_receive(cast(Inbox, Refusing())).understood(query) == meant


@pytest.mark.parametrize(
    "query",
    [
        b"", b"&", b"user_id", b"user_id=", b"user_id=bob&", b"&user_id=bob", b"user_id=bob&&limit=1", b"limit=1",
        b"user_id=b%20b", b"user_id=bob&user_id=eve", b"user_id=bob&colour=red", b"user_id=bob&limit=0",
        b"user_id=bob&limit=1001", b"user_id=bob&wait_ms=300001", b"user_id=bob&wait_ms=-1",
        b"user_id=bob&last_message_id=", b"user_id=bob&last_message_id=0_0", b"user_id=bob&last_message_id=00ff&",
        b"user_id=bob&my_last_message_id=00ff", b"user_id=bob&last_message_id=00&last_message_id=01",
        b"last_message_id=00ff", b"last_message_id=00ff&", b"user_id=bob&last_message_id=" + b"0" * 2_000,
    ],
)  # fmt: skip
def test_any_other_query_is_the_applications(query: bytes) -> None:
    assert hot_receive(cast(Inbox, Refusing())).understood(query) is None


def send(line: socket.socket, text: str) -> None:
    body = json.dumps({"from_user": "a", "to_user": "stop-bob", "message": text}).encode()
    line.sendall(SEND % (len(body), body))


def rest_of(line: socket.socket) -> bytes:
    """All that comes until the broker closes the line."""
    found = b""
    try:
        while piece := line.recv(65_536):
            found += piece
    except ConnectionResetError:
        pass  # it had closed it before this request
    return found


def test_a_stop_answers_what_was_sent_or_closes_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        host, _, port = broker.http.rpartition(":")
        lines = [socket.create_connection((host, int(port)), LIMIT_S) for _ in range(20)]
        for line in lines:
            send(line, "before")
            assert line.recv(65_536).startswith(b"HTTP/1.1 200")
        for number, line in enumerate(lines):
            send(line, f"m{number}")
        assert broker.stop() == 0
        answers = [rest_of(line) for line in lines]
        for line in lines:
            line.close()
        broker.start()
        with User(broker) as user:
            kept = {each["message"] for each in user.ask("GET", "/receive?user_id=stop-bob&limit=1000")[1]["messages"]}
    for number, answer in enumerate(answers):
        head, _, content = answer.partition(b"\r\n\r\n")
        assert not answer or json.loads(content)["status"], "a whole answer, or none"
        assert f"m{number}" in kept or not head.startswith(b"HTTP/1.1 200")
