"""What a hot request leaves behind: nothing."""

from typing import Any, cast

from runnel.broker.inbox import Inbox
from runnel.doors.http.inbox import hot_receive
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.net.hot import Exchange
from runnel.net.http import Peer


class Refusing:
    """An inbox that takes no question."""

    def poll(self, *asked: Any, **more: Any) -> None:
        raise InvalidRequest("this is not the id of a message")


class Failing:
    """An exchange that only hears of failures."""

    def __init__(self) -> None:
        self.peer = Peer("a client")
        self.errors: list[RunnelError] = []

    def fail(self, error: RunnelError) -> None:
        self.errors.append(error)


def test_a_connection_does_not_collect_the_waits_of_questions_that_were_refused() -> None:
    exchange = Failing()
    hot = hot_receive(cast(Inbox, Refusing()))
    for _ in range(3):
        hot.begin(b"", ("bob", "nonsense", 1_000, 10), cast(Exchange, exchange))
    assert [type(error) for error in exchange.errors] == [InvalidRequest] * 3
    assert not exchange.peer._told
