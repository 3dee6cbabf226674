"""The composition root: settings become objects, objects are started and stopped in order. No logic."""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from runnel.broker import identity
from runnel.broker.broker import Broker
from runnel.broker.config import Address, BrokerConfig
from runnel.cluster.embedded import Embedded
from runnel.cluster.image import Broker as BrokerImage
from runnel.cluster.image import Endpoint
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.store import Store
from runnel.cluster.topic_rules import Defaults
from runnel.doors.kafka.api_versions import FEATURES
from runnel.doors.kafka.door import KafkaDoor
from runnel.model.errors import Fatal, InvalidConfig, RunnelError
from runnel.model.ids import Epoch
from runnel.model.seams import Clock, Disk, Rng
from runnel.net.listener import FramedListener, ListenerLimits
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.memory import keep_freed_memory
from runnel.shell.rng import SystemRng

STOP_GRACE_S = 5.0  # requests under way may answer within it
LEAVE_S = 10.0  # others may take over what this broker leads within it
EVERY_ADDRESS = ("0.0.0.0", "::")

logger = logging.getLogger("runnel.server")


@dataclass(frozen=True, slots=True)
class Machine:
    """The seams, as one; the network is the running loop."""

    disk: Disk
    clock: Clock
    rng: Rng
    open_store: Callable[[], Awaitable[Store]]
    files_max: int = 512  # files that logs may have open; connections are files too


class Server:
    """A broker with its doors, from start to stop."""

    def __init__(self, config: BrokerConfig, machine: Machine, on_fatal: Callable[[BaseException], None]) -> None:
        self._config = config
        self._machine = machine
        self._on_fatal = on_fatal
        self.broker: Broker
        self.kafka: Address
        self._listener: FramedListener
        self._place: asyncio.Task[None]
        self._metadata: Metadata
        self._identity: Identity
        self._epoch: Epoch

    async def start(self) -> None:
        store = await self._machine.open_store()
        try:
            await self._start(store)
        except BaseException:
            await store.close()  # others need not wait until the session of a broker that never was times out
            raise

    async def _start(self, store: Store) -> None:
        config, machine = self._config, self._machine
        defaults = Defaults(config.default_partitions, config.default_replication, config.topic)
        self._metadata = metadata = await Metadata.open(store, rng=machine.rng, defaults=defaults, features=FEATURES)
        self.broker = Broker(
            config, metadata,
            disk=machine.disk, files_max=machine.files_max, clock=machine.clock, rng=machine.rng,
            on_fatal=self._on_fatal,
        )  # fmt: skip
        self._listener = FramedListener(KafkaDoor(self.broker, machine.rng).open, _limits(config), self._on_fatal)
        host, port = await self._bind()
        self.kafka = Address(config.advertise or _reachable(host), port)
        endpoint = Endpoint(self.kafka.host, port)
        await self._register(BrokerImage(self.broker.id, {"kafka": endpoint}, config.rack or None))
        self._place = asyncio.get_running_loop().create_task(self._end_when_replaced(metadata))
        await self.broker.start()
        await metadata.ready()
        await self.broker.caught_up()
        await self._listener.accept()

    async def _register(self, broker: BrokerImage) -> None:
        machine, metadata = self._machine, self._metadata
        self._identity = await identity.claim(machine.disk, metadata.image.cluster_id, broker.id, machine.rng)
        self._epoch = (await metadata.register(broker, self._identity)).epoch

    async def _end_when_replaced(self, metadata: Metadata) -> None:
        """Once the session is over, another may lead what this broker led. It ends, and begins a new life when started.

        Its memory is that of the old life, so nothing is saved by going on; and an end can't acknowledge anything.
        """
        try:
            await metadata.session_lost()
            self._on_fatal(Fatal("the cluster may take this broker for dead: start it again"))
        except RunnelError as error:
            self._on_fatal(error)

    async def _bind(self) -> tuple[str, int]:
        address = self._config.kafka
        try:
            return await self._listener.bind(address.host, address.port)
        except OSError as error:
            raise InvalidConfig(
                f"kafka can't be {str(address)!r}: {error.strerror or error};"
                " allowed is an address of this machine with a free port"
            ) from None

    async def stop(self) -> None:
        await self._metadata.leave(LEAVE_S)
        self._place.cancel()
        self._listener.stop_accepting()
        self.broker.wake_waiters()
        await self._listener.stop(STOP_GRACE_S)
        if await self.broker.stop():
            await identity.mark_clean(self._machine.disk, self._identity, self._epoch)
        await self._metadata.close()


async def _open_store(config: BrokerConfig, disk: Disk) -> Store:
    where = config.store
    if not where.hosts:
        return await Embedded.open(disk, config.data)
    from runnel.cluster.zookeeper import ZooKeeper  # a broker that is alone does not pay for its import

    return await ZooKeeper.open(where.hosts, where.chroot, session_ms=config.session_ms)


def _limits(config: BrokerConfig) -> ListenerLimits:
    return ListenerLimits(
        frame_bytes_max=config.request_bytes_max,
        inflight_bytes_max=config.inflight_bytes_max,
        connections_max=config.connections_max,
        idle_s=config.idle_ms / 1000,
    )


def _reachable(host: str) -> str:
    """Where clients find a broker that listens on every address, if nobody says."""
    return socket.gethostname() if host in EVERY_ADDRESS else host


def run(config: BrokerConfig, ready: Callable[[Server], None]) -> int:
    """Serve until told to stop; returns the process's exit code."""
    keep_freed_memory()
    files_max = _raise_file_limit() // 2  # the other half is for connections
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, files_max, ready))


async def _serve(config: BrokerConfig, files_max: int, ready: Callable[[Server], None]) -> int:
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[BaseException | None] = loop.create_future()

    def end(error: BaseException | None = None) -> None:
        if not stopping.done():
            stopping.set_result(error)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    disk = RealDisk(config.data)
    machine = Machine(disk, SystemClock(), SystemRng(), lambda: _open_store(config, disk), files_max)
    server = Server(config, machine, end)
    try:
        await server.start()
        ready(server)
        error = await stopping
        if error is not None:
            return _give_up(error)
        await server.stop()
    finally:
        disk.close()
    return 0


def _give_up(error: BaseException) -> int:
    """End at once: what is in memory can't be trusted any more, what is on disk is recovered at the next start."""
    logger.critical("the broker ends: %s", error, exc_info=None if isinstance(error, RunnelError) else error)
    return 70  # EX_SOFTWARE


def _raise_file_limit() -> int:
    """Partitions and connections are files: use as many as the system allows; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
