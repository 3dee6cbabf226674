"""Calls between brokers: values and errors arrive as they were sent, and one that waits holds up no other."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from runnel.broker import calls as calls_module
from runnel.broker.calls import Calls, failure_of
from runnel.broker.fetch import Waits
from runnel.broker.peers import Peers
from runnel.client.errors import BrokerUnreachable
from runnel.client.outcome import error_of_failure
from runnel.cluster.image import Broker, Delta, Endpoint, Image
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.runnel_call import runnel_call
from runnel.model.calls import NamedQueue, Nothing, Purge, Verb
from runnel.model.errors import (
    Corruption,
    Fatal,
    FencedEpoch,
    InvalidRequest,
    LeaseLost,
    MemberIdRequired,
    RunnelError,
    StorageFailed,
    TooBusy,
    UnsupportedVersion,
)
from runnel.model.ids import BrokerId, Epoch
from runnel.net.connection import Connection
from runnel.net.listener import FramedListener, ListenerLimits
from runnel.wire.kafka import codec
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

ME, OTHER = BrokerId(1), BrokerId(2)
ECHO = Verb("test.echo", Purge, NamedQueue)
QUICK = Verb("test.quick", NamedQueue, Nothing)
WAIT = Verb("test.wait", NamedQueue, Nothing, waits=True)


class Other:
    """A broker as far as calls go: its door, and what it serves."""

    def __init__(self) -> None:
        self.calls = Calls(OTHER, Peers(OTHER))
        self.opened = 0
        self.listener = FramedListener(self._open, ListenerLimits(), print)

    def _open(self, connection: Connection) -> "Session":
        self.opened += 1
        return Session(self, connection)


class Session:
    def __init__(self, other: Other, connection: Connection) -> None:
        self._other = other
        self._connection = connection
        self._waits = Waits()

    async def handle(self, frame: memoryview) -> Any:
        header, position = codec.read_request_header(frame)
        answer: Any = m.ApiVersionsResponse(
            api_keys=[
                m.ApiVersionsResponse.ApiVersion(api_key=key, max_version=high)
                for key, high in ((Api.API_VERSIONS, 4), (Api.RUNNEL_CALL, 0))
            ]
        )
        if header.api_key == Api.RUNNEL_CALL:
            request = codec.decode_request(header.api_key, header.api_version, frame, position)
            door = SimpleNamespace(broker=self._other, let_pass=self._connection.let_pass, waits=self._waits)
            call = cast(Call, door)
            answer = await runnel_call(request, call)
        return codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer)

    def closed(self) -> None:
        self._waits.end()


def run(scenario: Callable[[Calls, Other], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        other = Other()
        host, port = await other.listener.bind("127.0.0.1", 0)
        await other.listener.accept()
        peers = Peers(ME)
        peers.follow(Image("c").apply(Delta(brokers={OTHER: Broker(OTHER, {"kafka": Endpoint(host, port)})})))
        await asyncio.wait_for(scenario(Calls(ME, peers), other), 60)
        peers.close()
        await other.listener.stop(0)

    asyncio.run(main())


async def echo(request: Purge) -> NamedQueue:
    return NamedQueue(f"{request.queue}/{request.partition}/{request.dry_run}")


def raising(error: RunnelError) -> Callable[[Any], Awaitable[Any]]:
    async def handler(_: Any) -> Any:
        raise error

    return handler


@pytest.mark.parametrize("broker", [ME, OTHER])
def test_values_arrive_as_they_were_sent(broker: BrokerId) -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        for each in (calls, other.calls):
            each.serve(ECHO, echo)
        assert await calls.ask(broker, ECHO, Purge("q", 3, True)) == NamedQueue("q/3/True")

    run(scenario)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (LeaseLost("gone"), LeaseLost("gone")),
        (FencedEpoch("old"), FencedEpoch("old")),
        (Fatal("the disk lies"), StorageFailed("the disk lies")),  # that broker must end, not this one
        (MemberIdRequired("join again", member_id="m"), RunnelError("join again")),
    ],
)
def test_an_error_is_raised_here_as_it_was_there(raised: RunnelError, told: RunnelError) -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        other.calls.serve(ECHO, raising(raised))
        with pytest.raises(type(told), match=str(told)) as caught:
            await calls.ask(OTHER, ECHO, Purge("q"))
        assert not isinstance(caught.value, Fatal | Corruption)

    run(scenario)


def test_a_call_that_nobody_serves_is_refused() -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        for broker in (ME, OTHER):
            with pytest.raises(UnsupportedVersion, match=r"test\.echo"):
                await calls.ask(broker, ECHO, Purge("q"))

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode([7]), msgspec.msgpack.encode({"queue": "q"})])
def test_a_body_that_is_no_value_of_the_verb_is_refused(body: bytes) -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        other.calls.serve(ECHO, echo)
        with pytest.raises(InvalidRequest):
            await other.calls.answer(ECHO.name, memoryview(body), Waits())

    run(scenario)


def test_an_older_broker_leaves_fields_out_and_a_newer_one_adds_some() -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        other.calls.serve(ECHO, echo)
        for fields in (["q"], ["q", None, False, "new"]):
            body = await other.calls.answer(ECHO.name, msgspec.msgpack.encode(fields), Waits())
            assert msgspec.msgpack.decode(body) == ["q/None/False"]

    run(scenario)


def test_a_call_that_waits_holds_up_neither_its_like_nor_others() -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        gates = {name: asyncio.Event() for name in "ab"}

        async def wait(request: NamedQueue) -> Nothing:
            await gates[request.queue].wait()
            return Nothing()

        other.calls.serve(WAIT, wait)
        other.calls.serve(ECHO, echo)
        loop = asyncio.get_running_loop()
        first, second = (loop.create_task(calls.ask(OTHER, WAIT, NamedQueue(name))) for name in "ab")
        gates["b"].set()
        await second
        await calls.ask(OTHER, ECHO, Purge("q"))
        assert not first.done()
        gates["a"].set()
        await first
        lanes = other.opened
        await calls.ask(OTHER, WAIT, NamedQueue("a"))
        assert other.opened == lanes  # a connection that is free is used again

    run(scenario)


def test_a_call_that_takes_long_holds_up_no_other_as_long_as_there_are_connections() -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        gate = asyncio.Event()

        async def slowly(request: Purge) -> NamedQueue:
            await gate.wait()
            return NamedQueue("slow")

        async def at_once(request: NamedQueue) -> Nothing:
            return Nothing()

        other.calls.serve(ECHO, slowly)
        other.calls.serve(QUICK, at_once)
        slow = asyncio.get_running_loop().create_task(calls.ask(OTHER, ECHO, Purge("q")))
        while not other.opened:
            await asyncio.sleep(0)
        for _ in range(3):
            await calls.ask(OTHER, QUICK, NamedQueue("q"))
        assert other.opened == 2  # and no more connections than that takes
        gate.set()
        assert await slow == NamedQueue("slow")

    run(scenario)


def test_no_more_calls_wait_at_a_broker_than_there_may_be_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "LANES_MAX", 2)

    async def scenario(calls: Calls, other: Other) -> None:
        gate = asyncio.Event()

        async def wait(_: NamedQueue) -> Nothing:
            await gate.wait()
            return Nothing()

        other.calls.serve(WAIT, wait)
        loop = asyncio.get_running_loop()
        waiting = [loop.create_task(calls.ask(OTHER, WAIT, NamedQueue("q"))) for _ in range(2)]
        while other.opened < 2:
            await asyncio.sleep(0)
        with pytest.raises(TooBusy, match="2 calls wait"):
            await calls.ask(OTHER, WAIT, NamedQueue("q"), timeout_ms=1)
        third = loop.create_task(calls.ask(OTHER, WAIT, NamedQueue("q")))
        gate.set()
        await asyncio.gather(*waiting, third)
        assert other.opened == 2

    run(scenario)


class Told:
    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        self.ended.set_result(None)


@pytest.mark.parametrize("broker", [ME, OTHER])
def test_who_waits_for_a_caller_learns_that_it_went_away(broker: BrokerId) -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        begun = asyncio.Event()

        async def wait(_: NamedQueue, waits: Waits) -> Nothing:
            told = Told()
            waits.begin(told)
            begun.set()
            await told.ended
            return Nothing()

        for each in (calls, other.calls):
            each.serve_waiting(WAIT, wait)
        caller = Waits()
        asked = asyncio.get_running_loop().create_task(calls.ask(broker, WAIT, NamedQueue("q"), waits=caller))
        await begun.wait()
        assert not asked.done()
        caller.end()
        if broker == ME:
            await asked
        else:
            with pytest.raises(BrokerUnreachable):
                await asked

    run(scenario)


def test_a_failure_is_an_error_as_a_value() -> None:
    assert failure_of(None) is None
    assert error_of_failure(None) is None
    error = error_of_failure(failure_of(LeaseLost("gone")))
    assert isinstance(error, LeaseLost)
    assert str(error) == "gone"


def test_the_life_of_a_broker_ends_its_lanes() -> None:
    async def scenario(calls: Calls, other: Other) -> None:
        other.calls.serve(ECHO, echo)
        await calls.ask(OTHER, ECHO, Purge("q"))
        before = other.opened
        broker = calls._peers._lives[OTHER]
        there = {"kafka": Endpoint(broker.host, broker.port)}
        calls._peers.follow(Image("c").apply(Delta(brokers={OTHER: Broker(OTHER, there, epoch=Epoch(9))})))
        await calls.ask(OTHER, ECHO, Purge("q"))
        assert other.opened == before + 1

    run(scenario)
