"""One connection: what it does when the other side is slow, gone, or no broker at all."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop

from runnel.client.connection import Connection, connect
from runnel.client.errors import BrokerUnreachable, NotKafka
from runnel.model.errors import RequestTimedOut, UnsupportedVersion
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import API, Api

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def to_broker(broker: BrokerProcess, work: Callable[[Connection], Awaitable[None]]) -> None:
    async def conversation() -> None:
        host, _, port = broker.kafka.rpartition(":")
        connection = await connect(host, int(port), timeout_ms=10_000)
        try:
            await work(connection)
        finally:
            connection.close()

    asyncio.run(conversation())


def to_peer(peer: Peer, work: Callable[[str, int], Awaitable[None]]) -> None:
    """Connect to something that is not a broker."""

    async def conversation() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await peer(reader, writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            await work(*server.sockets[0].getsockname())
            await ended.wait()

    asyncio.run(conversation())


def test_versions_are_agreed(broker: BrokerProcess) -> None:
    async def work(connection: Connection) -> None:
        assert connection.version_of(Api.METADATA) == API[Api.METADATA].max_version
        assert connection.version_of(Api.METADATA, version_max=5) == 5
        connection.versions.pop(Api.METADATA)
        with pytest.raises(UnsupportedVersion, match=rf"{connection.address} does not offer it, but METADATA"):
            connection.version_of(Api.METADATA)

    to_broker(broker, work)


def test_many_questions_at_once_get_their_own_answers(broker: BrokerProcess) -> None:
    async def work(connection: Connection) -> None:
        def ask(name: str) -> Awaitable[m.MetadataResponse]:
            topics = [m.MetadataRequest.MetadataRequestTopic(name=name)]
            request = m.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            return connection.ask(Api.METADATA, request, m.MetadataResponse, timeout_ms=10_000)

        answers = await asyncio.gather(*(ask(f"none-{n}") for n in range(50)))
        assert [a.topics[0].name for a in answers] == [f"none-{n}" for n in range(50)]

    to_broker(broker, work)


def test_giving_up_one_question_leaves_the_connection_whole(broker: BrokerProcess) -> None:
    async def work(connection: Connection) -> None:
        asked = asyncio.create_task(
            connection.ask(Api.METADATA, m.MetadataRequest(topics=[]), m.MetadataResponse, timeout_ms=10_000)
        )
        await asyncio.sleep(0)
        asked.cancel()
        again = await connection.ask(Api.METADATA, m.MetadataRequest(topics=[]), m.MetadataResponse, timeout_ms=10_000)
        assert again.brokers
        assert not connection.closed

    to_broker(broker, work)


def test_nobody_listens(unused_port: int) -> None:
    with pytest.raises(BrokerUnreachable, match=rf"127.0.0.1:{unused_port} can't be reached \(connection refused\)"):
        asyncio.run(connect("127.0.0.1", unused_port, timeout_ms=5_000))


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_web_server_is_no_broker() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async def work(host: str, port: int) -> None:
        with pytest.raises(NotKafka, match="does not speak the Kafka protocol"):
            await connect(host, port, timeout_ms=5_000)

    to_peer(peer, work)


def test_an_answer_that_was_not_asked_for() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\x00\x00\x00\x06\x00\x01\xff\xff\x00\x00")
        await reader.read()

    async def work(host: str, port: int) -> None:
        with pytest.raises(NotKafka, match="was not asked"):
            await connect(host, port, timeout_ms=5_000)

    to_peer(peer, work)


def test_a_broker_that_never_answers_is_left() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work(host: str, port: int) -> None:
        with pytest.raises(RequestTimedOut, match=rf"127.0.0.1:{port} did not answer API_VERSIONS within 50 ms"):
            await connect(host, port, timeout_ms=50)

    to_peer(peer, work)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_was_given_up_does_not_arrive_later(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The system holds what the broker has no room for; it must not deliver that once nobody waits for the answer."""

    async def work(host: str, port: int) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection("x:1", None), host, port)
        topics = [m.MetadataRequest.MetadataRequestTopic(name="x" * 200) for _ in range(1_000)]
        asked = connection.begin(Api.METADATA, m.MetadataRequest(topics=topics), m.MetadataResponse, version=1)
        assert connection._transport is not None
        while connection._transport.get_write_buffer_size():
            await asyncio.sleep(0.01)
        with pytest.raises(RequestTimedOut):
            await asked.finish(50)
        await asyncio.sleep(0.05)  # the close is up to the loop

    with socket.socket() as server, asyncio.Runner(loop_factory=new_loop) as runner:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        runner.run(work(*server.getsockname()))
        peer, _ = server.accept()
        arrived = 0
        with peer, suppress(ConnectionResetError):
            while piece := peer.recv(1 << 16):
                arrived += len(piece)
        assert arrived < 100_000  # of 200,000


def test_a_broker_that_hangs_up() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)

    async def work(host: str, port: int) -> None:
        with pytest.raises(BrokerUnreachable, match="closed the connection"):
            await connect(host, port, timeout_ms=5_000)

    to_peer(peer, work)


def test_frames_arrive_in_any_pieces() -> None:
    """Frames cut at every byte, several in one read, and one larger than the scratch buffer."""

    async def work() -> None:
        connection = Connection("x:1", None)
        wanted = [b"\x00\x00\x00%c" % n + b"y" * size for n, size in enumerate((0, 5, 100_000, 3), start=1)]
        waiting = [asyncio.get_running_loop().create_future() for _ in wanted]
        connection._pending = dict(enumerate(waiting, start=1))
        stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in wanted)
        position, step = 0, 1
        while position < len(stream):
            buffer = connection.get_buffer(-1)
            piece = stream[position : position + min(step, len(buffer))]
            buffer[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            position += len(piece)
            step = step % 40_000 * 3 + 1
        assert [bytes(future.result()) for future in waiting] == wanted

    asyncio.run(work())
