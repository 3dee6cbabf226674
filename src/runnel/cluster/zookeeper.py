"""The store of a cluster: ZooKeeper, through kazoo. This module and `multiread` alone know kazoo.

Rule 1: threads stop here. What kazoo's threads call does nothing but hop to the loop. All state belongs to the loop,
        except for the moment of the last proof, which belongs to the thread that proves.
Rule 2: a session counts as alive only while that is proved. A `sync` goes to ZooKeeper's leader every sixth of the
        session's time; the session is given up when two thirds of it have passed since the last answered one was
        sent. kazoo itself says that a session is over only once it is connected again, and it notices a silent
        server only when two thirds of the time have passed. The proving has a thread of its own: a loop that comes
        late finds what was proved meanwhile, and is not taken for a session that ended.
Rule 3: a broken connection makes the outcome of a multi unknown. A read is simply done again.
Rule 4: kazoo would begin a new session after the end of one. Here the store is over then, and the client is stopped.
Rule 5: a watch of ZooKeeper tells once. It is set again before anyone is told, so that nothing falls in between.

kazoo counts as shell: it is a user of threads, sockets and clocks.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic  # noqa: TID251  (kazoo counts as shell; the loop's own time stands still while it is held)
from typing import Any, Final, Self, TypeAlias

from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler

from runnel.cluster import multiread
from runnel.cluster.store import Conflict, Create, Delete, Node, Op, OutcomeUnknown, Reason, Set, StoreUnavailable

CONNECT_S: Final = 15.0
TELL_S: Final = 1.0  # who waits for longer should know for what
PROOF_SHARE: Final = 2 / 3  # of the session: how long it counts as alive after the last proof
BEAT_SHARE: Final = 1 / 6  # of the session: how often it is proved
TRY_SHARE: Final = 1 / 4  # of the session: how long one server may take to let us in, before the next is tried
TRY_S_MIN: Final = 1.0
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}

TOO_OLD: Final = "this ZooKeeper is older than 3.6: it can't read many nodes in one request, use 3.6 or newer"

Call: TypeAlias = Callable[[], Any]  # starts something in kazoo, and returns its AsyncResult

logger = logging.getLogger("runnel.zookeeper")
_quiet = logger.getChild("client")  # what kazoo would say with every try; `_state_changed` says what matters
_quiet.setLevel(logging.ERROR)

_BROKEN = (kz.ConnectionLoss, kz.ConnectionClosedError, kz.SessionExpiredError, kz.SessionMovedError)
_ECHOES = (kz.RolledBackError, kz.RuntimeInconsistency)  # what the other operations of a refused multi get
_REASONS: dict[type[Exception], Reason] = {
    kz.NodeExistsError: Reason.EXISTS,
    kz.NoNodeError: Reason.MISSING,
    kz.BadVersionError: Reason.VERSION,
    kz.NotEmptyError: Reason.NOT_EMPTY,
    kz.NoChildrenForEphemeralsError: Reason.EPHEMERAL,
}


class ZooKeeper:
    """One session. Use `ZooKeeper.open`."""

    def __init__(self, hosts: str, chroot: str, session_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._hosts = hosts
        self._chroot = chroot.rstrip("/")
        self._session_s = session_ms / 1000
        self._client = _client(hosts, self._session_s)
        self._client.add_listener(self._state_changed)
        self._learn_session_s()
        self._session = 0
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._lost = asyncio.Event()
        self._over: str | None = None  # why this store can't be used any more
        self._waiting: set[asyncio.Future[Any]] = set()
        self._watches: set[_Watch] = set()
        self._proved = -math.inf  # when the last `sync` was sent that was answered
        self._ended = self._client.handler.event_object()  # as `_over`, for the thread that proves
        self._deadline: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, hosts: str, chroot: str = "", *, session_ms: int = 6_000) -> Self:
        """Begin a session with the ZooKeeper at "host:port,host:port"; everything lies below `chroot`."""
        store = cls(hosts, chroot, session_ms)
        try:
            await store._connect()
        except BaseException:
            await store.close()
            raise
        return store

    async def _connect(self) -> None:
        self._client.start_async()
        waiting = self._loop.call_later(TELL_S, logger.warning, "waiting for ZooKeeper at %s", self._hosts)
        try:
            await asyncio.wait_for(asyncio.shield(self._connected), CONNECT_S)
        except TimeoutError:
            advice = "see that it runs and that its address is right"
            raise StoreUnavailable(
                f"no ZooKeeper answered at {self._hosts} within {CONNECT_S:.0f} s: {advice}"
            ) from None
        finally:
            waiting.cancel()
        await self._make_chroot()
        await self.get_all(["/"])  # a server that is too old for this says so now, not in the middle of work
        sent = monotonic()
        await self.sync()
        self._proved = sent
        self._look_at_proof()
        self._client.handler.spawn(self._keep_proving)

    async def _make_chroot(self) -> None:
        parts = self._chroot.split("/")[1:]
        for count in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:count])
            with suppress(kz.NodeExistsError):
                await self._read(partial(self._client.create_async, path))

    @property
    def session(self) -> int:
        return self._session

    @property
    def session_s(self) -> float:
        """How long ZooKeeper waits for a sign of life: what was asked for, within the limits of the server."""
        return self._session_s

    # --- reading and writing

    async def get(self, path: str) -> Node | None:
        try:
            value, stat = await self._read(lambda: self._client.get_async(self._path(path)))
        except kz.NoNodeError:
            return None
        return Node(value, stat.version, stat.ephemeralOwner)

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        if not paths:
            return []
        full = [self._path(path) for path in paths]
        found = await self._read(lambda: multiread.start(self._client, full))
        for path, result in zip(full, found, strict=True):
            if isinstance(result, kz.KazooException):
                raise StoreUnavailable(f"ZooKeeper refused to read {path}: {result!r}")
        return list(found)

    async def children(self, path: str) -> list[str]:
        try:
            return sorted(await self._read(lambda: self._client.get_children_async(self._path(path))))
        except kz.NoNodeError:
            return []

    async def multi(self, ops: Sequence[Op]) -> None:
        self._check()
        transaction = self._client.transaction()
        for op in ops:
            self._add(transaction, op)
        try:
            results = await self._result(transaction.commit_async)
        except _BROKEN:
            raise OutcomeUnknown(
                "the connection to ZooKeeper broke while metadata was written: read it again"
            ) from None
        except kz.KazooException as error:
            raise StoreUnavailable(f"ZooKeeper refused to write metadata: {error!r}") from error
        for index, (op, result) in enumerate(zip(ops, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, _ECHOES):
                raise _conflict(index, op, result)

    def _add(self, transaction: Any, op: Op) -> None:
        path = self._path(op.path)
        match op:
            case Create():
                transaction.create(path, op.value, ephemeral=op.ephemeral)
            case Set():
                transaction.set_data(path, op.value, op.version)
            case Delete():
                transaction.delete(path, op.version)
            case _:
                transaction.check(path, op.version)

    async def sync(self) -> None:
        await self._read(lambda: self._client.sync_async(self._path("/")))

    async def watch(self, path: str) -> "_Watch":
        watch = _Watch(self, self._path(path))
        self._watches.add(watch)
        try:
            await watch.arm()
        except BaseException:
            watch.close()
            raise
        return watch

    def _path(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or "/"

    async def _read(self, call: Call) -> Any:
        """The result of what can be done again, however often the connection breaks before it comes."""
        while True:
            self._check()
            try:
                return await self._result(call)
            except _BROKEN:
                continue  # kazoo holds the next try back until it is connected
            except (kz.NoNodeError, kz.NodeExistsError):
                raise
            except kz.UnimplementedError:
                raise StoreUnavailable(TOO_OLD) from None
            except kz.KazooException as error:
                raise StoreUnavailable(f"ZooKeeper refused to answer: {error!r}") from error

    def _check(self) -> None:
        if self._over is not None:
            raise StoreUnavailable(self._over)

    async def _result(self, call: Call) -> Any:
        """What kazoo answers; ConnectionLoss if the store is over before it does."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        try:
            call().rawlink(lambda result: self._hop(_settle, future, result))
            return await future
        finally:
            self._waiting.discard(future)

    # --- the session

    async def session_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        self._end("the metadata store is closed: the broker is stopping")
        assert self._stopped is not None
        await asyncio.shield(self._stopped)

    def _look_at_proof(self) -> None:
        """Rule 2: whether the session lives, as far as is proved; then when to look again."""
        silence_s = self._session_s * PROOF_SHARE
        left_s = self._proved + silence_s - monotonic()
        if left_s > 0:
            self._deadline = self._loop.call_later(left_s, self._look_at_proof)
        else:
            self._lose(f"ZooKeeper gave no sign of life for {silence_s:.1f} s: the session can't be proved to live")

    def _has_connected(self, session: int) -> None:
        logger.info("connected to ZooKeeper, session %x", session)
        self._session = self._session or session  # there is but one: rule 4
        _release(self._connected)

    def _lose(self, why: str) -> None:
        if not self._lost.is_set() and self._stopped is None:
            logger.error("the session with ZooKeeper is over: %s", why)
        self._lost.set()
        self._end(f"the session with ZooKeeper is over: {why}")

    def _end(self, why: str) -> None:
        """Nothing goes in or out any more; kazoo is stopped by a thread of its own, because that waits for others."""
        self._over = self._over or why
        if self._stopped is not None:
            return
        self._stopped = self._loop.create_future()
        self._ended.set()
        if self._deadline is not None:
            self._deadline.cancel()
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(kz.ConnectionLoss())
        for watch in self._watches:
            watch.told.set()
        self._client.handler.spawn(self._stop_client)

    # --- what threads do

    def _keep_proving(self) -> None:
        """Rule 2."""
        while not self._ended.is_set():
            sent, beat_s = monotonic(), self._session_s * BEAT_SHARE
            try:
                self._client.sync_async(self._path("/")).get()
            except kz.KazooException:
                self._ended.wait(beat_s / 100)  # the next one waits in kazoo until it is connected
            else:
                self._proved = sent
                self._ended.wait(max(0.0, sent + beat_s - monotonic()))

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except (kz.KazooException, OSError) as error:
            logger.warning("the client of ZooKeeper did not stop cleanly: %r", error)
        finally:
            self._hop(_release, self._stopped)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._hop(self._has_connected, self._client.client_id[0])
        elif state == KazooState.SUSPENDED:
            logger.warning("the connection to ZooKeeper is broken: trying to get it back before the session ends")
        elif state == KazooState.LOST and self._over is None:
            self._over = "the session with ZooKeeper expired"  # at once: kazoo goes on with a new one (rule 4)
            self._hop(self._lose, self._over)

    def _hop(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            logger.debug("the loop ended before the client of ZooKeeper did")

    def _learn_session_s(self) -> None:
        """Servers bound the time of a session; kazoo learns the result with each connection, and keeps it to itself."""
        connection = self._client._connection
        connect = connection._connect

        def connect_and_tell(*arguments: object) -> tuple[float, float]:
            read_ms, connect_ms = connect(*arguments)
            self._session_s = read_ms * 1.5 / 1000  # kazoo reads for two thirds of the session
            return read_ms, connect_ms

        connection._connect = connect_and_tell


class _Watch:
    def __init__(self, store: ZooKeeper, path: str) -> None:
        self._store = store
        self._path = path
        self._arming: asyncio.Task[None] | None = None
        self._fired_again = False
        self._error: StoreUnavailable | None = None
        self.told = asyncio.Event()

    async def changed(self) -> None:
        await self.told.wait()
        self._store._check()
        if self._error is not None:
            raise self._error
        self.told.clear()

    def close(self) -> None:
        self._store._watches.discard(self)

    async def arm(self) -> None:
        """Watch the node, whether or not it exists, and its children if it does."""
        client = self._store._client
        if await self._store._read(lambda: client.exists_async(self._path, self._fired)) is not None:
            try:
                await self._store._read(lambda: client.get_children_async(self._path, self._fired))
            except kz.NoNodeError:
                self._fired_again = True  # it vanished in between, which the first watch tells

    def _fired(self, event: object) -> None:
        """Called by kazoo's thread; also when the connection breaks, which ends all watches."""
        self._store._hop(self._arm_again)

    def _arm_again(self) -> None:
        self._fired_again = True
        if self._arming is None and self in self._store._watches:
            self._arming = asyncio.get_running_loop().create_task(self._arm_until_quiet())

    async def _arm_until_quiet(self) -> None:
        """Rule 5."""
        try:
            while self._fired_again:
                self._fired_again = False
                await self.arm()
                self.told.set()
        except StoreUnavailable as error:
            self._error = error  # nothing is watched any more: who waits must not wait for ever
            self.told.set()
        finally:
            self._arming = None


def _client(hosts: str, session_s: float) -> Any:
    """kazoo waits for a silent server for the whole session, then it is too late for another: bound each try.

    It divides the session's time by the number of hosts, so each is named several times; and it asks its handler for
    connections.
    """
    try_s = max(TRY_S_MIN, session_s * TRY_SHARE)
    handler = SequentialThreadingHandler()
    connect = handler.create_connection
    handler.create_connection = lambda *where, **how: connect(*where, **{**how, "timeout": try_s})
    times = math.ceil(session_s / try_s / len(hosts.split(",")))
    named = ",".join([hosts] * times)
    return KazooClient(named, session_s, handler=handler, connection_retry=RECONNECT, logger=_quiet)


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    if future.done():
        return
    if result.successful():
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)


def _release(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _conflict(index: int, op: Op, error: Exception) -> Exception:
    reason = _REASONS.get(type(error))
    if reason is None:
        return StoreUnavailable(f"ZooKeeper refused {type(op).__name__} {op.path}: {error!r}")
    return Conflict(index, op, reason)
