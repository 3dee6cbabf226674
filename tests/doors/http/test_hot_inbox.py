"""What a hot request leaves behind: nothing."""

from typing import Any, cast

import pytest

from runnel.broker.inbox import Inbox
from runnel.doors.http.inbox import hot_receive
from runnel.model.errors import InvalidRequest
from runnel.net.hot import Exchange
from runnel.net.http import Peer


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
