"""The simulated loop and network: time, order, processes that die, connections as TCP has them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runnel.testing.loop import Deadlock, SimLoop

PORT = 7


class Peer(asyncio.Protocol):
    """Writes down what happens to it; the server's side echoes."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.received = b""
        self.events: list[str] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.echo:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Stage:
    """A server with its echo, and a client."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.server, self.client = loop.host("server"), loop.host("client")
        self.servers: list[Peer] = []
        self.peer: Peer

    async def serve(self, echo: bool = True) -> None:
        def accept() -> Peer:
            self.servers.append(Peer(echo))
            return self.servers[-1]

        async def listen() -> None:
            await self.loop.create_server(accept, "server", PORT)

        await self.server.start(listen)

    async def connect(self) -> None:
        async def connect() -> None:
            _, protocol = await self.loop.create_connection(Peer, "server", PORT)
            assert isinstance(protocol, Peer)
            self.peer = protocol

        await self.client.start(connect)
        await asyncio.sleep(1)


def simulate(test: Callable[[Stage], Awaitable[None]], seed: int = 1) -> SimLoop:
    with SimLoop(seed) as loop:
        loop.run_until_complete(test(Stage(loop)))
        assert loop.mishaps == []
        return loop


def test_time_jumps_to_the_next_timer() -> None:
    async def test(stage: Stage) -> None:
        await asyncio.sleep(3600)
        assert stage.loop.time() >= 3600

    simulate(test)


def test_callbacks_keep_their_order() -> None:
    async def test(stage: Stage) -> None:
        stage.loop.lag_chance, stage.loop.lag_s = 0.5, 0.1
        ran: list[int] = []
        for number in range(100):
            stage.loop.call_soon(ran.append, number)
        for number in range(100, 110):
            stage.loop.call_later(number, ran.append, number)
        await asyncio.sleep(200)
        assert ran == list(range(110))

    simulate(test)


def test_who_waits_for_ever_is_found() -> None:
    async def test(stage: Stage) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        simulate(test)


def test_there_is_no_escape() -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(RuntimeError, match="escape"):
            await asyncio.to_thread(print)

    simulate(test)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_whole_and_in_order(seed: int) -> None:
    async def test(stage: Stage) -> None:
        stage.loop.network.conditions.chop_chance = 0.8
        stage.loop.network.conditions.window_bytes = 100
        await stage.serve()
        await stage.connect()
        sent = bytes(range(256)) * 5
        for position in range(0, len(sent), 61):
            stage.peer.transport.writelines([sent[position : position + 61], b""])
        await asyncio.sleep(30)
        assert stage.peer.received == sent

    simulate(test, seed)


def test_a_slow_reader_holds_up_the_writer() -> None:
    async def test(stage: Stage) -> None:
        stage.loop.network.conditions.window_bytes = 1_000
        await stage.serve(echo=False)
        await stage.connect()
        stage.peer.transport.set_write_buffer_limits(high=500)
        stage.servers[0].transport.pause_reading()
        stage.peer.transport.write(bytes(5_000))
        await asyncio.sleep(1)
        assert stage.peer.events == ["pause"]
        stage.servers[0].transport.resume_reading()
        await asyncio.sleep(1)
        assert stage.peer.events == ["pause", "resume"]
        assert len(stage.servers[0].received) == 5_000

    simulate(test)


def test_close_sends_what_waits_and_abort_does_not() -> None:
    async def test(stage: Stage) -> None:
        await stage.serve(echo=False)
        await stage.connect()
        stage.peer.transport.write(b"last words")
        stage.peer.transport.close()
        await asyncio.sleep(1)
        assert (stage.servers[0].received, stage.servers[0].events) == (b"last words", ["lost"])
        stage.client.kill()
        await stage.connect()
        stage.peer.transport.write(b"unsaid")
        stage.peer.transport.abort()
        await asyncio.sleep(1)
        assert (stage.servers[1].received, stage.servers[1].events) == (b"", ["ConnectionResetError"])

    simulate(test)


def test_a_cut_holds_up_one_way_until_it_is_healed() -> None:
    async def test(stage: Stage) -> None:
        await stage.serve()
        await stage.connect()
        heal = stage.loop.network.cut("server", "client")
        stage.peer.transport.write(b"hello")
        await asyncio.sleep(5)
        assert (stage.servers[0].received, stage.peer.received) == (b"hello", b"")
        heal()
        await asyncio.sleep(5)
        assert stage.peer.received == b"hello"

    simulate(test)


def test_a_killed_process_hangs_up_and_runs_no_more() -> None:
    ran: list[str] = []

    async def program() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ran.append("a last effect")

    async def test(stage: Stage) -> None:
        await stage.serve()
        await stage.connect()
        stage.server.process.context.run(lambda: stage.loop.create_task(program()))  # type: ignore[union-attr]
        await asyncio.sleep(1)
        stage.server.kill()
        await asyncio.sleep(60)
        assert stage.peer.events == ["lost"]
        assert ran == []

    simulate(test)


def test_a_host_without_power_says_nothing_until_it_is_back() -> None:
    async def test(stage: Stage) -> None:
        await stage.serve()
        await stage.connect()
        stage.server.cut_power()
        stage.peer.transport.write(b"anybody there?")
        await asyncio.sleep(60)
        assert stage.peer.events == []
        await stage.serve()
        await asyncio.sleep(5)
        assert stage.peer.events == ["ConnectionResetError"]

    simulate(test)


def test_nobody_listens_where_nobody_listens() -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(ConnectionRefusedError):
            await stage.connect()

    simulate(test)


def test_a_paused_host_does_nothing_and_loses_nothing() -> None:
    async def test(stage: Stage) -> None:
        await stage.serve()
        await stage.connect()
        stage.server.pause()
        stage.peer.transport.write(b"wake up")
        await asyncio.sleep(60)
        assert stage.servers[0].received == b""
        stage.server.resume()
        await asyncio.sleep(1)
        assert stage.peer.received == b"wake up"

    simulate(test)


def test_a_buffer_that_is_changed_before_it_is_sent_is_sent_changed() -> None:
    """As with real transports: who gives a buffer away must leave it alone."""

    async def test(stage: Stage) -> None:
        await stage.serve(echo=False)
        await stage.connect()
        buffer = bytearray(b"before")
        stage.peer.transport.write(buffer)
        buffer[:] = b"after."
        await asyncio.sleep(1)
        assert stage.servers[0].received == b"after."

    simulate(test)


def test_the_same_seed_gives_the_same_trace() -> None:
    async def test(stage: Stage) -> None:
        await stage.serve()
        await stage.connect()
        for _ in range(50):
            stage.peer.transport.write(b"x" * 100)
            await asyncio.sleep(0.001)

    hashes = [simulate(test, seed).trace_hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_hosts_have_wall_clocks_of_their_own() -> None:
    async def test(stage: Stage) -> None:
        stage.server.clock.offset_ms = -5_000
        assert stage.client.clock.wall_ms() - stage.server.clock.wall_ms() == 5_000
        assert stage.client.clock.monotonic_ms() == stage.server.clock.monotonic_ms()

    simulate(test)
