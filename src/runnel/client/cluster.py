"""The brokers of one cluster: connections, metadata, coordinators, and when to try again.

Rule 1: a request goes to the broker that leads or coordinates; who that is, is asked anew when an answer says so.
Rule 2: a pause between two attempts grows, has an upper bound, and ends with the caller's deadline.
Rule 3: requests that may wait long on the broker (fetch, join) have a connection (a lane) of their own, because a
        broker answers each connection in order.
Rule 4: what any broker can do is asked of the broker that failed longest ago. So a client learns all brokers before it
        asks anything, and learns them anew when one of them is lost.
Rule 5: a client that has never reached a broker fails at once: its addresses are wrong, or nothing runs there. After
        that, an outage costs time only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar
from uuid import UUID

from runnel.client.connection import Connection, connect
from runnel.client.errors import BrokerUnreachable, Closed, Remedy, TopicMissing, check, error_of, remedy_of
from runnel.client.metadata import BrokerAddress, ClusterView, Partition, Topic, TopicPartition, newer, view_of
from runnel.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    LeaderNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimedOut,
    RetriableError,
)
from runnel.model.seams import Clock, Rng
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

T = TypeVar("T")
R = TypeVar("R")

KAFKA_PORT = 9092
CREATE_ATTEMPTS = 6  # looks at a topic that the broker may be creating because we asked for it
GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
AWAY = (  # passes when enough brokers are back
    BrokerUnreachable, RequestTimedOut, NotLeader, LeaderNotAvailable, NotCoordinator, CoordinatorNotAvailable,
    CoordinatorLoading, NotEnoughReplicas, NotEnoughReplicasAfterAppend,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    client_id: str = "runnel"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    retry_timeout_ms: int = 30_000  # how long calls that may be repeated are repeated
    backoff_ms_min: int = 50
    backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    on_connect: Callable[[BrokerAddress, RetriableError | None], None] = lambda _, __: None  # None: it succeeded


class Leader(NamedTuple):
    """Where one partition is served now."""

    broker: int
    epoch: int
    topic_id: UUID


class Patience:
    """The pauses of one call that is tried again: they grow until its time is up."""

    def __init__(
        self, settings: ClusterSettings, rng: Rng | None, timeout_ms: int, pause_ms: int | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + timeout_ms / 1000
        self._pause_ms = pause_ms or settings.backoff_ms_min
        self._pause_ms_max = settings.backoff_ms_max
        self._rng = rng

    def left_ms(self) -> int:
        return max(0, int((self._end - self._loop.time()) * 1000))

    async def pause(self, error: RetriableError) -> None:
        """Sleep before the next attempt, or raise the error if there is no time for one."""
        if self._pause_ms >= self.left_ms():
            raise error
        jitter_ms = self._rng.below(self._pause_ms // 4 + 1) if self._rng else 0
        await asyncio.sleep((self._pause_ms + jitter_ms) / 1000)
        self._pause_ms = min(2 * self._pause_ms, self._pause_ms_max)


class Node:
    """One broker on one lane: its connection is made when needed, and again after it broke."""

    def __init__(
        self, address: BrokerAddress, settings: ClusterSettings, on_connect: Callable[[], None] = lambda: None
    ) -> None:
        self.address = address
        self._settings = settings
        self._on_connect = on_connect
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._retry_at = 0.0
        self._pause_ms = 0

    def __str__(self) -> str:
        return str(self.address)

    async def connection(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        """Connect, but not sooner after a failure than its pause says."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._retry_at - loop.time()))
        settings = self._settings
        try:
            connection = await connect(
                self.address.host,
                self.address.port,
                client_id=settings.client_id,
                timeout_ms=settings.connect_timeout_ms,
            )
        except RetriableError as error:
            settings.on_connect(self.address, error)
            self._pause_ms = min(max(2 * self._pause_ms, settings.backoff_ms_min), settings.backoff_ms_max)
            self._retry_at = loop.time() + self._pause_ms / 1000
            raise
        settings.on_connect(self.address, None)
        self._on_connect()
        self._pause_ms = 0
        return connection

    async def ask(
        self, api: Api, request: Any, reply: type[R], *, timeout_ms: int | None = None, version_max: int | None = None
    ) -> R:
        connection = await self.connection()
        version = connection.version_of(api, version_max=version_max)
        timeout_ms = timeout_ms or self._settings.request_timeout_ms
        return await connection.ask(api, request, reply, timeout_ms=timeout_ms, version=version)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Cluster:
    """A cluster as its clients see it. Producers, consumers and admin share one."""

    def __init__(
        self, bootstrap: Sequence[str], *, clock: Clock, rng: Rng | None = None, settings: ClusterSettings | None = None
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.settings = settings or ClusterSettings()
        self._bootstrap = [parse_address(text, -2 - n) for n, text in enumerate(bootstrap)]
        if not self._bootstrap:
            raise InvalidConfig("no broker was named: give at least one HOST:PORT")
        self._nodes: dict[tuple[int, str], Node] = {}
        self._lanes = 0
        self._brokers: dict[int, BrokerAddress] = {}
        self._brokers_read_at: float | None = None  # None: they are not known, or one of them was lost since
        self._failed_at: dict[int, float] = {}  # by broker: when it could not be asked, or could not do it
        self._topics: dict[str, Topic] = {}
        self._topic_names: dict[UUID, str] = {}
        self._stale: set[str] = set()
        self._coordinators: dict[tuple[str, int], BrokerAddress] = {}
        self._refreshing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.reached = False  # some broker, at some time
        self.closed = False

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection and let the transports end."""
        self.closed = True
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()
        await asyncio.sleep(0)

    # --- brokers
    @property
    def brokers(self) -> dict[int, BrokerAddress]:
        return dict(self._brokers)

    def knows(self, broker_id: int) -> bool:
        return broker_id in self._brokers

    def node(self, address: BrokerAddress, lane: str = "main") -> Node:
        """The broker at an address; a broker that moved gets a new connection."""
        if self.closed:
            raise Closed("this client was closed: make a new one")
        node = self._nodes.get((address.id, lane))
        if node is None or node.address[:3] != address[:3]:
            if node is not None:
                node.close()
            node = self._nodes[address.id, lane] = Node(address, self.settings, self._connected)
        return node

    def _connected(self) -> None:
        self.reached = True

    def new_lane(self, kind: str) -> str:
        """A lane that nobody else uses; give it back with `close_lane`."""
        self._lanes += 1
        return f"{kind}-{self._lanes}"

    def close_lane(self, lane: str) -> None:
        for key in [key for key in self._nodes if key[1] == lane]:
            self._nodes.pop(key).close()

    def broker(self, broker_id: int, lane: str = "main") -> Node:
        address = self._brokers.get(broker_id)
        if address is None:
            raise LeaderNotAvailable(f"broker {broker_id} is not known in the cluster now: wait until it is back")
        return self.node(address, lane)

    async def ask_any(self, api: Api, request: Any, reply: type[R]) -> R:
        """Ask the first broker that can be reached."""
        _, answer = await self._ask_first(api, request, reply)
        return answer

    async def _ask_first(self, api: Api, request: Any, reply: type[R]) -> tuple[Node, R]:
        async def ask(node: Node) -> tuple[Node, R]:
            return node, await node.ask(api, request, reply)

        return await self._first("main", ask)

    async def any_node(self, lane: str = "main") -> Node:
        """The first broker that can be reached, connected."""
        if self._brokers_are_stale():
            async with self._refreshing:
                if self._brokers_are_stale():
                    await self.view([])

        async def connected(node: Node) -> Node:
            await node.connection()
            return node

        return await self._first(lane, connected)

    def _brokers_are_stale(self) -> bool:
        read_at = self._brokers_read_at
        return read_at is None or (self._loop.time() - read_at) * 1000 >= self.settings.metadata_age_ms_max

    async def _first(self, lane: str, attempt: Callable[[Node], Awaitable[T]]) -> T:
        """The attempt on one broker after the other, until it succeeds: last those that failed a short time ago."""
        failed: RetriableError | None = None
        for address in sorted([*self._brokers.values(), *self._bootstrap], key=self._failed_last):
            node = self.node(address, lane)
            try:
                return await attempt(node)
            except (BrokerUnreachable, RequestTimedOut) as error:
                self.avoid(node)
                failed = error
        assert failed is not None
        raise failed

    def _failed_last(self, address: BrokerAddress) -> float:
        return self._failed_at.get(address.id, 0.0)

    def avoid(self, node: Node) -> None:
        """Ask other brokers first from now on: this one could not be asked, or could not do what others may."""
        self._failed_at[node.address.id] = self._loop.time()

    async def controller(self) -> Node:
        """The broker that changes topics."""
        if self.controller_id not in self._brokers:
            await self.refresh([])
        if self.controller_id in self._brokers:
            return self.broker(self.controller_id)
        return self.node(next(iter(self._brokers.values()), self._bootstrap[0]))

    # --- metadata
    async def view(self, topics: Iterable[str] | None = None, *, create: bool = False) -> ClusterView:
        """Ask for metadata now: of these topics, or of all."""
        wanted = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        _, answer = await self._ask_first(Api.METADATA, request, m.MetadataResponse)
        view = view_of(answer, self._loop.time())
        self._learn(view)
        return view

    def _learn(self, view: ClusterView) -> None:
        if view.brokers:
            self._brokers = dict(view.brokers)
            self._brokers_read_at = self._loop.time()
        self.cluster_id, self.controller_id = view.cluster_id, view.controller_id
        for name, topic in view.topics.items():
            self._topics[name] = newer(self._topics.get(name), topic)
            self._topic_names[topic.id] = name
            self._stale.discard(name)
        for name in view.errors:
            self._topics.pop(name, None)

    async def refresh(self, topics: Iterable[str], *, create: bool = False) -> ClusterView:
        async with self._refreshing:
            return await self.view(topics, create=create)

    def known_topic(self, name: str) -> Topic | None:
        """What is known without asking, unless it is stale."""
        topic = self._topics.get(name)
        if topic is None or name in self._stale:
            return None
        age_s = self._loop.time() - topic.read_at
        return topic if age_s * 1000 < self.settings.metadata_age_ms_max else None

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._topic_names.get(topic_id)

    async def topic(self, name: str, *, create: bool = False) -> Topic:
        """A topic's partitions and leaders; `create` lets the broker create it, if it is set up to."""
        patience = Patience(self.settings, self.rng, self.settings.retry_timeout_ms)
        attempts = CREATE_ATTEMPTS if create else 1
        while True:
            if (known := self.known_topic(name)) is not None:
                return known
            async with self._refreshing:
                if (known := self.known_topic(name)) is not None:
                    return known
                view = await self.view([name], create=create)
            if name not in view.errors:
                return self._topics[name]
            attempts -= 1
            await self._retry_topic(name, view.errors[name], patience, attempts)

    async def _retry_topic(self, name: str, code: int, patience: Patience, attempts: int) -> None:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and attempts <= 0:
            raise TopicMissing(f"topic {name!r} does not exist on {self}: check the name, or create it")
        error = error_of(code, action=f"look up topic {name!r}", broker=str(self))
        if not isinstance(error, RetriableError):
            raise error
        await patience.pause(error)

    def __str__(self) -> str:
        return ", ".join(str(address) for address in self._bootstrap)

    async def partition(self, where: TopicPartition, *, create: bool = False) -> tuple[Topic, Partition]:
        topic = await self.topic(where.topic, create=create)
        partition = topic.partitions.get(where.partition)
        if partition is None:
            count = len(topic.partitions)
            raise InvalidPartitions(
                f"topic {where.topic!r} has no partition {where.partition}: it has {count}, from 0 to {count - 1}"
            )
        return topic, partition

    async def leader(self, where: TopicPartition, *, create: bool = False) -> Leader:
        topic, partition = await self.partition(where, create=create)
        if partition.leader < 0 or partition.leader not in self._brokers:
            self._stale.add(where.topic)
            raise LeaderNotAvailable(f"partition {where} has no leader now: wait until a broker that holds it is back")
        return Leader(partition.leader, partition.leader_epoch, topic.id)

    def forget(self, topic: str) -> None:
        """Ask who leads this topic before the next use."""
        self._stale.add(topic)

    # --- coordinators
    async def coordinator(self, key: str, kind: int = GROUP, lane: str = "main") -> Node:
        address = self._coordinators.get((key, kind))
        if address is None:
            address = self._coordinators[key, kind] = await self._find_coordinator(key, kind)
        return self.node(address, lane)

    async def _find_coordinator(self, key: str, kind: int) -> BrokerAddress:
        request = m.FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        node, answer = await self._ask_first(Api.FIND_COORDINATOR, request, m.FindCoordinatorResponse)
        action = f"find the coordinator of {'group' if kind == GROUP else 'transactional id'} {key!r}"
        found = answer.coordinators[0] if answer.coordinators else answer
        check(found.error_code, action=action, broker=str(node), message=found.error_message)
        if found.node_id < 0:
            raise CoordinatorNotAvailable(f"can't {action}: broker {node} knows none now; try again")
        return BrokerAddress(found.node_id, found.host, found.port)

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        self._coordinators.pop((key, kind), None)

    # --- trying again
    def raise_for(
        self,
        code: int,
        *,
        action: str,
        broker: object,
        message: str | None = None,
        topics: Iterable[str] = (),
        group: str | None = None,
        transactional_id: str | None = None,
    ) -> NoReturn:
        """Raise what a code means, after noting what it says about our knowledge."""
        remedy = remedy_of(code)
        if Remedy.REFRESH in remedy:
            self._stale.update(topics)
        if Remedy.FIND in remedy:
            self._coordinators.pop((group or "", GROUP), None)
            self._coordinators.pop((transactional_id or "", TRANSACTION), None)
        raise error_of(code, action=action, broker=str(broker), message=message)

    def doubt(self) -> None:
        """A broker went away: leaders and coordinators may have moved."""
        self._brokers_read_at = None
        self._stale.update(self._topics)
        self._coordinators.clear()

    async def persist(
        self, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int | None = None, pause_ms: int | None = None
    ) -> T:
        """Make the attempt until it succeeds, fails for good, or time is up; `pause_ms` is the first pause."""
        patience = Patience(self.settings, self.rng, timeout_ms or self.settings.retry_timeout_ms, pause_ms)
        while True:
            try:
                return await attempt()
            except RetriableError as error:
                if isinstance(error, BrokerUnreachable | RequestTimedOut):
                    await self._resume(error, patience)
                else:
                    await patience.pause(error)

    async def _resume(self, error: RetriableError, patience: Patience) -> None:
        """After a lost connection: wait a little (rule 5)."""
        self.doubt()
        if not self.reached:
            raise error
        await patience.pause(error)

    async def outlast(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Like `persist`, for loops that wait without end: no outage ends them, however long it takes."""
        while True:
            try:
                return await self.persist(attempt)
            except AWAY:
                if not self.reached:
                    raise


def split_addresses(brokers: str | Iterable[str]) -> list[str]:
    """Addresses out of a text with commas between them, or out of several such texts."""
    texts = [brokers] if isinstance(brokers, str) else brokers
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def parse_address(text: str, broker_id: int = -2) -> BrokerAddress:
    """HOST:PORT, HOST, or [IPV6]:PORT. Ids below -1 mark brokers whose id is not known yet."""
    host, port = _split_address(text.strip())
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidConfig(f"{text!r} is not the address of a broker: use HOST:PORT, e.g. 127.0.0.1:{KAFKA_PORT}")
    return BrokerAddress(broker_id, host, int(port))


def _split_address(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or str(KAFKA_PORT)
    if text.count(":") > 1:
        return text, str(KAFKA_PORT)
    host, _, port = text.partition(":")
    return host, port or str(KAFKA_PORT)
