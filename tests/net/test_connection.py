"""Connections over real sockets, on the event loop that the broker uses."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest
import uvloop

from runnel.model.errors import Fatal, InvalidRequest
from runnel.model.limits import MIB
from runnel.model.seams import Buffer
from runnel.net.connection import PIPELINE_MAX, WRITE_BUFFER_BYTES, Connection
from runnel.net.listener import FramedListener, ListenerLimits

Answer = Callable[[bytes, Connection], Awaitable[Sequence[Buffer] | None]]
LIMIT_S = 30.0  # a hang ends as a failure


class Door:
    """A door whose answers a test writes itself."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connection: Connection
        self.closed_count = 0

    def __call__(self, connection: Connection) -> "Door":
        self.connection = connection
        return self

    async def handle(self, frame: memoryview) -> Sequence[Buffer] | None:
        return await self.answer(bytes(frame), self.connection)

    def closed(self) -> None:
        self.closed_count += 1


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(map(framed, bodies)))

    async def receive(self) -> bytes:
        size = await self.reader.readexactly(4)
        return await self.reader.readexactly(int.from_bytes(size, "big"))

    async def ended(self) -> bool:
        """True once the broker has closed the connection."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Rig:
    """A listener with a scripted door, and clients of it."""

    def __init__(self, answer: Answer, **limits: Any) -> None:
        self.fatal: list[BaseException] = []
        self.door = Door(answer)
        self.listener = FramedListener(self.door, ListenerLimits(**limits), self.fatal.append)
        self.address = ("", 0)
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.listener.stop(1.0)


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]], answer: Answer, **limits: Any) -> None:
    async def main() -> None:
        rig = Rig(answer, **limits)
        rig.address = await rig.listener.bind("127.0.0.1", 0)
        await rig.listener.accept()
        try:
            await asyncio.wait_for(scenario(rig), LIMIT_S)
        finally:
            await rig.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def echo(body: bytes, connection: Connection) -> Sequence[Buffer] | None:
    return [framed(body)]


def test_frames_are_answered_whatever_pieces_they_arrive_in() -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        for piece in (b"\x00", b"\x00\x00\x03a", b"bc\x00\x00", b"\x00\x01d"):
            client.writer.write(piece)
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await client.receive() == b"abc"
        assert await client.receive() == b"d"

    run(scenario, echo)


@pytest.mark.parametrize("size", [65_532, 65_533, 65_536, 300_000, 3_000_000])
def test_frames_larger_than_a_buffer_arrive_whole(size: int) -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        body = bytes(range(256)) * (size // 256 + 1)
        client.send(body[:size], b"after")
        assert await client.receive() == body[:size]
        assert await client.receive() == b"after"

    run(scenario, echo)


def test_a_request_holds_up_those_behind_it_until_it_answers() -> None:
    started: list[bytes] = []
    gate: asyncio.Future[None]

    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        started.append(body)
        if body == b"slow":
            await gate
        return [framed(body)]

    async def scenario(rig: Rig) -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        client, other = await rig.connect(), await rig.connect()
        client.send(b"slow", b"next")
        await client.writer.drain()
        other.send(b"other")
        assert await other.receive() == b"other"
        assert started == [b"slow", b"other"]
        gate.set_result(None)
        assert [await client.receive(), await client.receive()] == [b"slow", b"next"]

    run(scenario, answer)


def test_a_request_that_lets_pass_is_overtaken_at_work_but_not_in_the_answer() -> None:
    gate: asyncio.Future[None]
    started: list[bytes] = []

    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        started.append(body)
        if body == b"first":
            connection.let_pass()
            await gate
        elif body == b"second":
            gate.set_result(None)
        return [framed(body)]

    async def scenario(rig: Rig) -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        client = await rig.connect()
        client.send(b"first", b"second")
        assert [await client.receive(), await client.receive()] == [b"first", b"second"]
        assert started == [b"first", b"second"]

    run(scenario, answer)


def test_no_more_than_so_many_requests_of_one_connection_are_under_way() -> None:
    gate: asyncio.Future[None]
    started = 0

    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        nonlocal started
        started += 1
        connection.let_pass()
        await gate
        return [framed(body)]

    async def scenario(rig: Rig) -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        client = await rig.connect()
        client.send(*[b"x"] * (PIPELINE_MAX + 10))
        while started < PIPELINE_MAX:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert started == PIPELINE_MAX
        gate.set_result(None)
        for _ in range(PIPELINE_MAX + 10):
            await client.receive()

    run(scenario, answer)


@pytest.mark.parametrize("size", [0, -1, 101, 2**31 - 1])
def test_a_frame_of_a_size_that_is_not_allowed_closes_the_connection(size: int) -> None:
    async def scenario(rig: Rig) -> None:
        client, other = await rig.connect(), await rig.connect()
        client.writer.write(size.to_bytes(4, "big", signed=True) + b"body")
        assert await client.ended()
        other.send(b"still served")
        assert await other.receive() == b"still served"

    run(scenario, echo, frame_bytes_max=100)


def test_bytes_in_flight_are_bounded_over_all_connections() -> None:
    gate: asyncio.Future[None]
    started = 0

    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        nonlocal started
        started += 1
        await gate
        return [framed(body[:1])]

    async def scenario(rig: Rig) -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        clients = [await rig.connect() for _ in range(5)]
        for client in clients:
            client.send(b"x" * 996)
        while started < 2:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert started == 2  # two frames of 1,000 bytes fit into 2,500, a third does not
        assert rig.listener.budget.used == 2_000
        gate.set_result(None)
        for client in clients:
            assert await client.receive() == b"x"
        assert rig.listener.budget.used == 0

    run(scenario, answer, inflight_bytes_max=2_500)


def test_what_is_only_promised_costs_nothing_and_keeps_nobody_waiting() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(50):
            liar = await rig.connect()
            liar.writer.write((90_000_000).to_bytes(4, "big") + b"x" * 1_000)
            await liar.writer.drain()
        honest = await rig.connect()
        honest.send(b"small")
        assert await honest.receive() == b"small"
        while sum(connection.receiving for connection in rig.listener.connections) < 50:
            await asyncio.sleep(0.001)
        assert rig.listener.budget.used == 0

    run(scenario, echo, inflight_bytes_max=10_000_000)


def test_small_requests_are_served_while_large_ones_wait_for_memory() -> None:
    async def scenario(rig: Rig) -> None:
        large = [await rig.connect() for _ in range(3)]
        for client in large:  # half of each arrives: together more than the budget
            client.writer.write((1_000_000).to_bytes(4, "big") + b"x" * 500_000)
        while rig.listener.budget.used < 1_000_000:
            await asyncio.sleep(0.001)
        honest = await rig.connect()
        for _ in range(10):
            honest.send(b"small")
            assert await honest.receive() == b"small"
        assert rig.listener.budget.used <= 3_000_000  # the limit and one request
        for client in large:  # each in its turn
            client.writer.write(b"x" * 500_000)
        for client in large:
            assert await client.receive() == b"x" * 1_000_000
        assert rig.listener.budget.used == 0

    run(scenario, echo, inflight_bytes_max=2_000_000)


def test_a_stream_of_large_frames_gets_large_buffers_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        for _ in range(5):
            client.send(b"x" * 900_000)
            assert len(await client.receive()) == 900_000
        assert rig.listener.budget.used == 0
        assert rig.door.connection._inbox._usual_bytes == 1 << 20

    run(scenario, echo)


def test_a_connection_that_ends_gives_its_bytes_back() -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.writer.write((1_000_000).to_bytes(4, "big") + b"x" * 500_000)
        while rig.listener.budget.used == 0:
            await asyncio.sleep(0.001)
        await client.close()
        while rig.listener.connections:
            await asyncio.sleep(0.001)
        assert rig.listener.budget.used == 0
        assert rig.door.closed_count == 1

    run(scenario, echo)


def test_a_client_that_does_not_take_its_answers_gets_no_more_requests_started() -> None:
    started = 0

    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        nonlocal started
        started += 1
        return [framed(b"y" * WRITE_BUFFER_BYTES)]

    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.send(*[b"x"] * 200)
        await client.writer.drain()
        seen = -1
        while seen != started:  # until it starts no more
            seen = started
            await asyncio.sleep(0.05)
        assert started < 100
        for _ in range(200):
            await client.receive()
        assert started == 200

    run(scenario, answer)


def test_a_failing_handler_costs_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        if body == b"bug":
            raise ZeroDivisionError
        if body == b"late bug":
            await asyncio.sleep(0)
            raise ZeroDivisionError
        if body == b"bad":
            raise InvalidRequest("the frame makes no sense")
        return [framed(body)]

    async def scenario(rig: Rig) -> None:
        good = await rig.connect()
        for body in (b"bug", b"late bug", b"bad"):
            client = await rig.connect()
            client.send(body)
            assert await client.ended()
            good.send(b"good")
            assert await good.receive() == b"good"
        assert rig.fatal == []

    run(scenario, answer)
    assert "the frame makes no sense" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_fatal_error_is_told_to_the_server() -> None:
    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        raise Fatal("fsync failed")

    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.send(b"x")
        assert await client.ended()
        assert [str(error) for error in rig.fatal] == ["fsync failed"]

    run(scenario, answer)


def test_more_connections_than_allowed_are_closed_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.connect()
        first.send(b"a")
        assert await first.receive() == b"a"
        second = await rig.connect()
        assert await second.ended()

    run(scenario, echo, connections_max=1)


def test_a_request_without_an_answer_leaves_the_line_to_the_next() -> None:
    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer] | None:
        return None if body == b"silent" else [framed(body)]

    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.send(b"silent", b"loud")
        assert await client.receive() == b"loud"

    run(scenario, answer)


def test_stopping_lets_a_request_under_way_answer() -> None:
    gate: asyncio.Future[None]
    entered = False

    async def answer(body: bytes, connection: Connection) -> Sequence[Buffer]:
        nonlocal entered
        entered = True
        await gate
        return [framed(body)]

    async def scenario(rig: Rig) -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        client, idle = await rig.connect(), await rig.connect()
        client.send(b"last")
        while not entered:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(rig.listener.stop(20.0))
        assert await idle.ended()
        gate.set_result(None)
        assert await client.receive() == b"last"
        assert await client.ended()
        await stopping

    run(scenario, answer)


def test_a_frame_kept_by_its_handler_is_never_overwritten() -> None:
    """Buffers go round; a view that somebody keeps must take its buffer out of the round."""
    kept: list[memoryview] = []

    class Keeper(Door):
        async def handle(self, frame: memoryview) -> Sequence[Buffer] | None:
            kept.append(frame[:])
            return [framed(bytes(frame))]

    async def scenario(rig: Rig) -> None:
        rig.listener._door = Keeper(echo)
        client = await rig.connect()
        for number in range(50):
            client.send(b"%05d" % number * 100)
            await client.receive()
        assert [bytes(view) for view in kept] == [b"%05d" % number * 100 for number in range(50)]

    run(scenario, echo)


def test_half_a_frame_and_then_silence_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.net.listener.SWEEP_S", 0.05)

    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.writer.write((100).to_bytes(4, "big") + b"half")
        assert await client.ended()

    run(scenario, echo, stalled_s=0.1)


def test_a_silent_connection_is_closed_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.net.listener.SWEEP_S", 0.05)

    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.send(b"a")
        assert await client.receive() == b"a"
        assert await client.ended()

    run(scenario, echo, idle_s=1.0)


def test_answers_that_are_not_taken_are_charged_until_they_are_or_their_client_goes() -> None:
    size = 32 * MIB  # more than sockets hold

    async def large(body: bytes, connection: Connection) -> Sequence[Buffer] | None:
        return [framed(bytes(size))]

    async def scenario(rig: Rig) -> None:
        answers = rig.listener.bounds.answers
        taking, leaving = await rig.connect(), await rig.connect()
        for client in (taking, leaving):
            client.send(b"?")
        while answers.used < size:  # the kernel has the rest of both
            await asyncio.sleep(0.001)
        await taking.receive()
        while answers.used > size:
            await asyncio.sleep(0.001)
        await leaving.close()
        while answers.used:
            await asyncio.sleep(0.001)

    run(scenario, large)


def test_where_answers_have_no_room_left_who_takes_none_is_closed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.net.listener.SWEEP_S", 0.05)

    async def large(body: bytes, connection: Connection) -> Sequence[Buffer] | None:
        return [framed(bytes(32 * MIB))]

    async def scenario(rig: Rig) -> None:
        rig.listener.bounds.answers.limit = MIB
        client = await rig.connect()
        client.send(b"?")
        while rig.door.closed_count == 0:
            await asyncio.sleep(0.01)
        assert rig.listener.bounds.answers.used == 0

    run(scenario, large, stalled_s=LIMIT_S * 10)


def test_a_frame_has_a_deadline_as_a_whole_whatever_trickles_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.net.listener.SWEEP_S", 0.05)

    async def scenario(rig: Rig) -> None:
        client = await rig.connect()
        client.send(b"whole")
        assert await client.receive() == b"whole"
        client.writer.write((1_000_000).to_bytes(4, "big"))
        while rig.door.closed_count == 0:
            client.writer.write(b"x")
            await asyncio.sleep(0.01)
        assert rig.listener.bounds.met["request-arrival-ms"] == 1

    run(scenario, echo, stalled_s=LIMIT_S * 10, arrival_s=0.3)


def test_one_address_has_no_more_connections_than_it_may() -> None:
    async def scenario(rig: Rig) -> None:
        first, second, third = [await rig.connect() for _ in range(3)]
        assert await third.ended()
        assert rig.listener.bounds.met["address-connections-max"] == 1
        await first.close()
        while rig.listener.open_connections > 1:
            await asyncio.sleep(0.001)
        fourth = await rig.connect()
        for client in (second, fourth):
            client.send(b"a")
            assert await client.receive() == b"a"

    run(scenario, echo, address_connections_max=2)
