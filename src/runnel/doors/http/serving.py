"""The door as the server starts and stops it: its operations behind a listener."""

from collections.abc import Callable, Mapping

from runnel.broker.broker import Broker
from runnel.doors.http.app import HttpApp
from runnel.doors.http.door import HttpDoor, Listener
from runnel.doors.http.inbox import hot_receive, hot_send
from runnel.doors.http.resources import operations
from runnel.model.seams import Clock, Rng
from runnel.net.hot import HotHttp, Routes
from runnel.net.http import HttpLimits, HttpListener


class HttpDoorway:
    """One listener with the door behind it."""

    def __init__(
        self, broker: Broker, clock: Clock, rng: Rng,
        on_fatal: Callable[[BaseException], None], doors: Mapping[str, Listener],
    ) -> None:  # fmt: skip
        self.door = HttpDoor(broker, clock, rng)
        config = broker.config
        limits = HttpLimits(
            connections_max=config.connections_max, address_connections_max=config.connections_of_an_address_max,
            idle_s=config.idle_ms / 1000, arrival_s=config.request_arrival_ms / 1000,
            message_bytes_max=config.socket_message_bytes_max,
        )  # fmt: skip
        app = HttpApp(self.door, operations())
        hot = Routes({b"/send": hot_send(broker, clock), b"/receive": hot_receive(broker.inbox)})
        hosts = self.door.hosts.allows
        self._listener = HttpListener(
            app, limits, on_fatal, lambda listener: HotHttp(listener, hot, hosts), broker.bounds
        )
        self.door.traffic = self._listener.traffic
        self.door.doors = {**doors, "http": self._listener}

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        return await self._listener.bind(host, port)

    def advertise(self, host: str) -> None:
        """Clients are told to come to this host."""
        self.door.hosts.advertise(host)

    async def accept(self) -> None:
        await self._listener.accept()

    def stopping(self) -> None:
        """Say so to whoever asks whether the broker is ready."""
        self.door.stopping = True

    def stop_accepting(self) -> None:
        self.door.stopping = True
        self._listener.stop_accepting()

    async def stop(self, grace_s: float) -> None:
        await self._listener.stop(grace_s)
