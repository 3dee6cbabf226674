"""Connections to other brokers: made when needed, gone with the life that they were made to."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runnel.broker.peers import NAME, Peers
from runnel.client.errors import BrokerUnreachable
from runnel.cluster.image import Broker, Delta, Endpoint, Image
from runnel.model.ids import BrokerId, Epoch
from runnel.net.connection import Connection
from runnel.net.listener import FramedListener, ListenerLimits
from runnel.wire.kafka import codec
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

ME, OTHER = BrokerId(1), BrokerId(2)


class Other:
    """A broker that answers ApiVersions and Heartbeat, and notes who asks."""

    def __init__(self) -> None:
        self.names: set[str | None] = set()
        self.opened = 0
        self.closes = 0
        self.listener = FramedListener(self._open, ListenerLimits(), print)

    def _open(self, connection: Connection) -> "Other":
        self.opened += 1
        return self

    async def handle(self, frame: memoryview) -> Any:
        header, _ = codec.read_request_header(frame)
        self.names.add(header.client_id)
        answer: Any = m.HeartbeatResponse()
        if header.api_key == Api.API_VERSIONS:
            keys = [(Api.API_VERSIONS, 4), (Api.HEARTBEAT, 4)]
            entries = [m.ApiVersionsResponse.ApiVersion(api_key=key, max_version=high) for key, high in keys]
            answer = m.ApiVersionsResponse(api_keys=entries)
        return codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer)

    def closed(self) -> None:
        self.closes += 1


def run(scenario: Callable[[Peers, Other, Callable[[int], Image]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        other = Other()
        host, port = await other.listener.bind("127.0.0.1", 0)
        await other.listener.accept()
        peers = Peers(ME)

        def image(epoch: int) -> Image:
            broker = Broker(OTHER, {"kafka": Endpoint(host, port)}, epoch=Epoch(epoch))
            return Image("c").apply(Delta(brokers={OTHER: broker}))

        await asyncio.wait_for(scenario(peers, other, image), 60)
        peers.close()
        await other.listener.stop(0)

    asyncio.run(main())


async def ask(peers: Peers, lane: str = "main") -> None:
    await peers.ask(OTHER, Api.HEARTBEAT, m.HeartbeatRequest(), m.HeartbeatResponse, timeout_ms=5_000, lane=lane)


def test_each_lane_has_one_connection_under_the_name_of_a_broker() -> None:
    async def scenario(peers: Peers, other: Other, image: Callable[[int], Image]) -> None:
        peers.follow(image(1))
        for lane in ("main", "replica-0", "main"):
            await ask(peers, lane)
        assert other.opened == 2
        assert other.names == {f"{NAME}{ME}"}

    run(scenario)


def test_who_is_not_in_the_image_can_not_be_asked() -> None:
    async def scenario(peers: Peers, other: Other, image: Callable[[int], Image]) -> None:
        for work in (ask(peers), peers.reach(OTHER)):
            with pytest.raises(BrokerUnreachable, match="broker 2 is not alive"):
                await work
        assert other.opened == 0

    run(scenario)


def test_a_connection_ends_with_the_life_it_was_made_to() -> None:
    async def scenario(peers: Peers, other: Other, image: Callable[[int], Image]) -> None:
        peers.follow(image(1))
        await peers.reach(OTHER)
        peers.follow(image(1))
        await ask(peers)
        assert other.opened == 1
        peers.follow(image(2))
        await ask(peers)
        assert other.opened == 2
        peers.follow(Image("c"))
        while other.closes < 2:
            await asyncio.sleep(0.001)

    run(scenario)
