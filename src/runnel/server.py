"""The composition root: settings become objects, objects are started and stopped in order. No logic."""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import uvloop

from runnel.broker import identity
from runnel.broker.broker import Broker
from runnel.broker.config import HTTP_BY_DEFAULT, Address, BrokerConfig
from runnel.cluster.embedded import Embedded
from runnel.cluster.image import Broker as BrokerImage
from runnel.cluster.image import Endpoint
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.store import OutcomeUnknown, Store, StoreUnavailable
from runnel.cluster.topic_rules import Defaults
from runnel.doors.kafka.api_versions import FEATURES
from runnel.doors.kafka.door import KafkaDoor
from runnel.model.errors import InvalidConfig, PlaceLost, RetriableError, RunnelError
from runnel.model.ids import Epoch
from runnel.model.schedule import OpenDueIndex
from runnel.model.seams import Clock, Disk, Rng
from runnel.net.listener import FramedListener, ListenerLimits
from runnel.shell import due_index
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.memory import LongLived, collect_seldom, give_back_freed_memory, keep_freed_memory
from runnel.shell.rng import SystemRng

if TYPE_CHECKING:
    from runnel.doors.http.serving import HttpDoorway

STOP_GRACE_S = 5.0  # requests under way may answer within it
LEAVE_S = 10.0  # others may take over what this broker leads within it
AGAIN_S, AGAIN_S_MAX = 0.25, 5.0  # pauses between tries to begin the next life
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
    note_open: Callable[[int], None] = lambda _: None  # so many partitions are open, more or fewer
    open_due: OpenDueIndex = due_index.in_memory


class Server:
    """A broker with its doors, from start to stop: one life of it."""

    def __init__(self, config: BrokerConfig, machine: Machine, on_fatal: Callable[[BaseException], None]) -> None:
        self._config = config
        self._machine = machine
        self._on_fatal = on_fatal
        self.broker: Broker
        self.kafka: Address
        self.http: Address | None = None
        self._listener: FramedListener
        self._http: HttpDoorway | None = None
        self._metadata: Metadata
        self._identity: Identity
        self._epoch: Epoch
        self.connected = False  # whether the metadata could ever be read
        self._undo = AsyncExitStack()  # whatever has begun, the last first

    async def start(self) -> None:
        try:
            await self._start()
        except (Exception, asyncio.CancelledError):
            await self.abandon()  # others need not wait until the session of a broker that never was times out
            raise

    async def _start(self) -> None:
        config, machine = self._config, self._machine
        store = await machine.open_store()
        self._undo.push_async_callback(store.close)
        defaults = Defaults(config.default_partitions, config.default_replication, config.topic)
        self._metadata = metadata = await Metadata.open(store, rng=machine.rng, defaults=defaults, features=FEATURES)
        self._undo.push_async_callback(metadata.close)
        self.connected = True
        self.broker = Broker(
            config, metadata,
            disk=machine.disk, files_max=machine.files_max, clock=machine.clock, rng=machine.rng,
            on_fatal=self._on_fatal, open_due=machine.open_due, note_open=machine.note_open,
        )  # fmt: skip
        door = KafkaDoor(self.broker, machine.rng)
        self._listener = FramedListener(door.open, _limits(config), self._on_fatal, self.broker.bounds)
        host, port = await self._bind()
        self.kafka = Address(config.advertise or _reachable(host), port)
        await self._bind_http()
        await self._register(BrokerImage(self.broker.id, self._listeners(), config.rack or None))
        self._undo.push_async_callback(self._close_logs)
        await self.broker.start()
        await metadata.ready(self.broker.partitions.damaged)
        await self.broker.topics.caught_up()
        self._undo.push_async_callback(self._listener.stop, 0)
        with _told("kafka", config.kafka):
            await self._listener.accept()
        await self._accept_http()

    def _listeners(self) -> dict[str, Endpoint]:
        listeners = {"kafka": Endpoint(self.kafka.host, self.kafka.port)}
        if self.http is not None:
            listeners["http"] = Endpoint(self.http.host, self.http.port)
        return listeners

    async def _register(self, broker: BrokerImage) -> None:
        machine, metadata = self._machine, self._metadata
        self._identity = await identity.claim(machine.disk, metadata.image.cluster_id, broker.id, machine.rng)
        self._epoch = (await metadata.register(broker, self._identity)).epoch
        place = asyncio.get_running_loop().create_task(self._end_when_replaced(metadata))
        self._undo.callback(place.cancel)

    async def _end_when_replaced(self, metadata: Metadata) -> None:
        """Once the session is over, another may lead what this broker led: this life of it has to end."""
        try:
            await metadata.session_lost()
            self._on_fatal(PlaceLost("the cluster may take this broker for dead: it has to begin a new life"))
        except RunnelError as error:
            self._on_fatal(error)

    async def _bind(self) -> tuple[str, int]:
        address = self._config.kafka
        with _told("kafka", address):
            bound = await self._listener.bind(address.host, address.port)
        self._undo.callback(self._listener.stop_accepting)
        return bound

    async def _bind_http(self) -> None:
        address = self._config.http
        if address is None:
            return
        from runnel.doors.http.serving import HttpDoorway  # a broker without this door does not pay for its import

        machine = self._machine
        doors = {"kafka": self._listener}
        doorway = HttpDoorway(self.broker, machine.clock, machine.rng, self._on_fatal, doors)
        try:
            with _told("http", address):
                host, port = await doorway.bind(address.host, address.port)
        except AddressRefused as refused:
            self._do_without_http(refused)
            return
        self._undo.callback(doorway.stop_accepting)
        self._http, self.http = doorway, Address(self._config.advertise or _reachable(host), port)
        doorway.advertise(self.http.host)

    async def _accept_http(self) -> None:
        if self._http is None:
            return
        self._undo.push_async_callback(self._http.stop, 0)
        try:
            with _told("http", self._config.http):
                await self._http.accept()
        except AddressRefused as refused:  # another broker that began at the same time was quicker
            self._do_without_http(refused)

    def _do_without_http(self, refused: "AddressRefused") -> None:
        """Nobody asked for this address by name: a second broker on a machine is no mistake."""
        if self._config.http is not HTTP_BY_DEFAULT:
            raise refused
        logger.warning("the broker serves without HTTP: %s", refused)
        self._http = self.http = None

    async def _close_logs(self) -> None:
        # A life that was never let in has not told what it lost: the next one must not seem to follow a clean one.
        if await self.broker.stop() and self._metadata.admitted:
            await identity.mark_clean(self._machine.disk, self._identity, self._epoch)

    async def stop(self) -> None:
        """Stop in order: let others lead, answer what is under way, close the logs."""
        if self._http is not None:
            self._http.stopping()
        await self.broker.members.stop()  # while there is somebody to take leave of
        await self._metadata.leave(LEAVE_S)
        self._listener.stop_accepting()
        if self._http is not None:
            self._http.stop_accepting()
        self.broker.wake_waiters()
        stops = [self._listener.stop(STOP_GRACE_S)]
        if self._http is not None:
            stops.append(self._http.stop(STOP_GRACE_S))
        await asyncio.gather(*stops)
        await self.abandon()

    async def abandon(self) -> None:
        """End what has begun, without a word to others. What is on disk is whole all the same."""
        await self._undo.aclose()


class AddressRefused(InvalidConfig):
    """The system does not let the broker listen where it was told to."""


@contextmanager
def _told(door: str, address: Address | None) -> Iterator[None]:
    """Whoever starts the broker learns which address the system refused, and how to give another."""
    try:
        yield
    except OSError as error:
        other = ", or --http off" if door == "http" else ""
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise AddressRefused(
            f"{door} can't be '{address}': {why};"
            f" give an address of this machine with a free port: --{door} HOST:PORT{other}"
        ) from None


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
        address_connections_max=config.connections_of_an_address_max,
        arrival_s=config.request_arrival_ms / 1000,
        idle_s=config.idle_ms / 1000,
    )


def _reachable(host: str) -> str:
    """Where clients find a broker that listens on every address, if nobody says."""
    return socket.gethostname() if host in EVERY_ADDRESS else host


def run(config: BrokerConfig, ready: Callable[[Server], None]) -> int:
    """Serve until told to stop; returns the process's exit code."""
    keep_freed_memory()
    give_back_freed_memory()
    collect_seldom()
    files_max = _raise_file_limit() // 2  # the other half is for connections
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, files_max, ready))


class _Ending:
    """Why a life is to end: an error, or None for a stop that was asked for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_asked = False
        self.begin_life()

    def begin_life(self) -> None:
        self.reason: asyncio.Future[BaseException | None] = self._loop.create_future()
        if self._stop_asked:
            self.reason.set_result(None)

    def stop(self) -> None:
        self._stop_asked = True
        self.fail(None)

    def fail(self, error: BaseException | None) -> None:
        if not self.reason.done():
            self.reason.set_result(error)


async def _serve(config: BrokerConfig, files_max: int, ready: Callable[[Server], None]) -> int:
    ending = _Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.stop)
    disk = RealDisk(config.data)
    machine = Machine(
        disk, SystemClock(), SystemRng(), lambda: _open_store(config, disk), files_max, LongLived().note,
        due_index.below(config.data),
    )  # fmt: skip
    try:
        return await _live(config, machine, ending, ready)
    finally:
        disk.close()


async def _live(config: BrokerConfig, machine: Machine, ending: _Ending, ready: Callable[[Server], None]) -> int:
    """One life after another, until told to stop: a life ends with its session, the process need not."""
    server = await _begin(config, machine, ending)
    if server is None:
        error = ending.reason.result()
        return 0 if error is None else _give_up(error)
    ready(server)
    again = _where_it_was(config, server)
    while server is not None:
        error = await ending.reason
        if error is None:
            await server.stop()
            return 0
        if not isinstance(error, PlaceLost):
            return _give_up(error)
        logger.warning("%s", error)
        await server.abandon()
        server = None  # and all that it held: the next life takes as much
        server = await _begin_again(again, machine, ending)
    return 0


def _where_it_was(config: BrokerConfig, server: Server) -> BrokerConfig:
    """The next life of a broker is where its clients look for it."""
    http = Address(config.http.host, server.http.port) if config.http is not None and server.http is not None else None
    return replace(config, kafka=Address(config.kafka.host, server.kafka.port), http=http)


async def _begin(config: BrokerConfig, machine: Machine, ending: _Ending) -> Server | None:
    """The first life; None if it was told to end meanwhile.

    If it can't begin, somebody should hear of it at once; if its session ends, it tries again.
    """
    server = Server(config, machine, ending.fail)
    starting = await _start(server, ending)
    if starting.cancelled():
        lost = isinstance(ending.reason.result(), PlaceLost)
        return await _begin_again(config, machine, ending) if lost else None
    try:
        starting.result()
    except (StoreUnavailable, OutcomeUnknown) as error:
        if not server.connected:
            raise
        logger.warning("%s", error)
        return await _begin_again(config, machine, ending)
    return server


async def _begin_again(config: BrokerConfig, machine: Machine, ending: _Ending) -> Server | None:
    """The next life, once the metadata can be reached; None if the broker was told to stop meanwhile."""
    pause_s = AGAIN_S
    while True:
        ending.begin_life()
        server = Server(config, machine, ending.fail)
        starting = await _start(server, ending)
        if not starting.cancelled() and starting.exception() is None:
            logger.info("broker %d serves again", server.broker.id)
            return server
        if ending.reason.done() and ending.reason.result() is None:
            return None
        if not starting.cancelled() and not isinstance(starting.exception(), RetriableError):
            starting.result()
        logger.warning("the next life could not begin, trying again in %g s: %s", pause_s, _why(starting, ending))
        await asyncio.wait([ending.reason], timeout=pause_s)
        pause_s = min(2 * pause_s, AGAIN_S_MAX)


async def _start(server: Server, ending: _Ending) -> "asyncio.Future[None]":
    """Start it, and cancel that if its life is to end before it began; returns how it went."""
    starting = asyncio.ensure_future(server.start())
    either: set[asyncio.Future[Any]] = {starting, ending.reason}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    return starting


def _why(starting: "asyncio.Future[None]", ending: _Ending) -> BaseException | None:
    return ending.reason.result() if starting.cancelled() else starting.exception()


def _give_up(error: BaseException) -> int:
    """End at once: what is in memory can't be trusted any more, what is on disk is recovered at the next start."""
    logger.critical("the broker ends: %s", error, exc_info=None if isinstance(error, RunnelError) else error)
    return 70  # EX_SOFTWARE


def _raise_file_limit() -> int:
    """Partitions and connections are files: use as many as the system allows; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
