"""The coordination seam in memory: one tree that outlives its sessions, as an ensemble of ZooKeepers keeps it.

Rule 1: a multi is done at one instant, between two trips: whoever dies while waiting does not know whether it was.
Rule 2: a session reads at one server. Servers learn what was written one after the other, in order: reads may be old,
        but never older than what the same session wrote, and `sync` catches up.
Rule 3: a session is proved by beats. The ensemble ends it when it has heard nothing for `session_s`; its owner gives it
        up when nothing was answered for two thirds of that. An owner that was paused learns of it late.
Rule 4: without `session_s` nothing expires by itself, and nothing takes time unless it is told to.
"""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Protocol, TypeVar

from runnel.cluster.store import Node, Op, OutcomeUnknown, StoreUnavailable
from runnel.cluster.tree import Plan, Tree

PROOF_SHARE, BEAT_SHARE = 2 / 3, 1 / 6  # of a session's time, as in cluster.zookeeper
RESEND_S = 0.25  # how soon something that did not get through is sent again
SERVERS = 3

T = TypeVar("T")


class Link(Protocol):
    """The way between one host and the ensemble."""

    def is_cut(self, *, outward: bool) -> bool: ...


class OpenLink:
    """A way that is never cut."""

    def is_cut(self, *, outward: bool) -> bool:
        return False


class _Server:
    """One server's view: a tree that is behind by what is on its way."""

    def __init__(self) -> None:
        self.tree = Tree({})
        self.seen = 0  # how much of the ensemble's log
        self.watches: dict[str, dict[SimWatch, None]] = {}
        self.moved: list[asyncio.Future[None]] = []

    def apply(self, plan: Plan) -> None:
        touched = self.tree.apply(plan)
        self.seen += 1
        for path in sorted(touched & self.watches.keys()):
            for watch in self.watches[path]:
                watch.event.set()
        moved, self.moved = self.moved, []
        for future in moved:
            if not future.done():
                future.set_result(None)

    async def reach(self, position: int) -> None:
        while self.seen < position:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.moved.append(future)
            await future


class Ensemble:
    """What all sessions share."""

    def __init__(self, pace_s: Callable[[], float] | None = None, session_s: float | None = None) -> None:
        self.tree = Tree({})  # as it really is
        self.on_change: Callable[[set[str]], None] | None = None  # told which nodes changed
        self.era = 0  # grows when connections break
        self.stalled = 0  # no leader: how many reasons there are for that
        self.sessions: dict[int, SimStore] = {}
        self.session_s = session_s
        self._pace_s = pace_s
        self._log: list[Plan] = []
        self._servers = [_Server() for _ in range(SERVERS if pace_s else 1)]
        self._numbers = count(1)

    async def open(self, link: Link | None = None) -> "SimStore":
        number = next(self._numbers)
        store = SimStore(self, number, self._servers[number % len(self._servers)], link or OpenLink())
        await store.connect()
        return store

    async def pace(self) -> None:
        await asyncio.sleep(0.0 if self._pace_s is None else self._pace_s())

    # --- what is done to it

    def expire(self, session: int) -> None:
        """End a session, whatever its owner thinks."""
        store = self.sessions.pop(session, None)
        if store is not None:
            self.commit(self.tree.expiry(session))
            store.expired()

    def break_connections(self) -> None:
        """Who waits for the outcome of a multi will not learn it."""
        self.era += 1

    def stall(self) -> Callable[[], None]:
        """No server leads: nothing is answered until the returned function is called. No session ends by it."""
        self.era += 1
        self.stalled += 1

        def end() -> None:
            self.stalled -= 1
            for store in self.sessions.values():
                store.heard()

        return end

    # --- what sessions ask of it

    def multi(self, ops: Sequence[Op], session: int) -> int:
        """Do it; how long the log is then."""
        self.commit(self.tree.plan(ops, session))
        return len(self._log)

    def commit(self, plan: Plan) -> None:
        touched = self.tree.apply(plan)
        self._log.append(plan)
        for server in self._servers:
            self._teach(server)
        if self.on_change is not None:
            self.on_change(touched)

    def _teach(self, server: _Server) -> None:
        if self._pace_s is None:
            server.apply(self._log[server.seen])
        else:  # each timer brings the next plan, so the order is kept whatever the delays are
            loop = asyncio.get_running_loop()
            loop.call_later(2 * self._pace_s(), lambda: server.apply(self._log[server.seen]), context=_WORLD)

    def position(self) -> int:
        return len(self._log)


_WORLD = contextvars.copy_context()  # of no process: the ensemble outlives them all


class SimStore:
    """One session."""

    def __init__(self, ensemble: Ensemble, session: int, server: _Server, link: Link) -> None:
        self._ensemble = ensemble
        self.session = session
        self._server = server
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._mine = contextvars.copy_context()  # of the process whose session this is
        self._out, self._back = asyncio.Lock(), asyncio.Lock()  # a connection is a line, in both directions
        self._registered = self._over = False
        self._lost = asyncio.Event()
        self._watches: dict[SimWatch, None] = {}
        self._heard_at = self._loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self._send()
        self._registered = True
        self._ensemble.sessions[self.session] = self
        if self._ensemble.session_s is not None:
            self._prove(self._loop.time())
            self._beat = self._loop.create_task(self._keep_proving())
            self._expire_later(self._ensemble.session_s)

    # --- the seam

    async def get(self, path: str) -> Node | None:
        return await self._ask(lambda: self._server.tree.get(path))

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        """Each on a trip of its own, as far apart as can be: nothing may rest on their being read together."""
        return await asyncio.gather(*map(self.get, paths))

    async def children(self, path: str) -> list[str]:
        return await self._ask(lambda: self._server.tree.children(path))

    async def multi(self, ops: Sequence[Op]) -> None:
        self.check()
        era = self._ensemble.era
        try:
            await self._send()
            if self._ensemble.era != era and self._ensemble.era % 2:  # of two breaks, one comes before it is done
                raise OutcomeUnknown("the connection broke before the multi arrived")
            position = self._ensemble.multi(ops, self.session)
            await self._server.reach(position)
            await self._receive()
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"{error}: a multi may have been done") from None
        if self._ensemble.era != era:
            raise OutcomeUnknown("the connection broke before the answer to a multi came")

    async def watch(self, path: str) -> "SimWatch":
        watch = SimWatch(self, path, self._server)
        await self._ask(lambda: watch.begin())
        self._watches[watch] = None
        return watch

    async def sync(self) -> None:
        await self._send()
        await self._server.reach(self._ensemble.position())
        await self._receive()

    async def session_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        if not self._over and not self._link.is_cut(outward=True) and not self._ensemble.stalled:
            self._ensemble.expire(self.session)
        self._end()

    # --- trips

    async def _ask(self, work: Callable[[], T]) -> T:
        await self._send()
        result = work()
        await self._receive()
        return result

    async def _send(self) -> None:
        await self._trip(self._out, outward=True)
        self.heard()
        if self._registered and self.session not in self._ensemble.sessions:
            self._lose()
            self.check()

    async def _receive(self) -> None:
        await self._trip(self._back, outward=False)

    async def _trip(self, line: asyncio.Lock, *, outward: bool) -> None:
        async with line:
            self.check()
            await self._ensemble.pace()
            while self._ensemble.stalled or self._link.is_cut(outward=outward):
                self.check()
                await asyncio.sleep(RESEND_S)
            self.check()

    def check(self) -> None:
        if self._over:
            raise StoreUnavailable(f"session {self.session} with the metadata store is over")

    # --- the session, as its owner sees it

    async def _keep_proving(self) -> None:
        assert self._ensemble.session_s is not None
        beat_s = self._ensemble.session_s * BEAT_SHARE
        while not self._over:
            sent = self._loop.time()
            try:
                await self._ask(lambda: None)
            except StoreUnavailable:
                return
            self._prove(sent)
            await asyncio.sleep(max(0.0, sent + beat_s - self._loop.time()))

    def _prove(self, when: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        assert self._ensemble.session_s is not None
        self._deadline = self._loop.call_at(when + self._ensemble.session_s * PROOF_SHARE, self._lose)

    def _lose(self) -> None:
        self._lost.set()
        self._end()

    def _end(self) -> None:
        self._over = True
        for handle in (self._beat, self._deadline):
            if handle is not None:
                handle.cancel()
        for watch in self._watches:
            watch.event.set()

    # --- the session, as the ensemble sees it

    def heard(self) -> None:
        self._heard_at = self._loop.time()

    def expired(self) -> None:
        """The ensemble has ended it: its owner is told, if it can be."""
        if self._ensemble.session_s is None:
            self._lose()
        else:
            self._loop.call_soon(self._learn, context=self._mine)

    def _learn(self) -> None:
        if not self._over:
            self._learning = self._loop.create_task(self._hear_of_it())

    async def _hear_of_it(self) -> None:
        with suppress(StoreUnavailable):
            await self._receive()
            self._lose()

    def _expire_later(self, in_s: float) -> None:
        self._loop.call_later(in_s, self._expire_if_silent, context=_WORLD)

    def _expire_if_silent(self) -> None:
        assert self._ensemble.session_s is not None
        left_s = self._heard_at + self._ensemble.session_s - self._loop.time()
        if self.session in self._ensemble.sessions:
            if left_s > 0 or self._ensemble.stalled:
                self._expire_later(max(left_s, RESEND_S))
            else:
                self._ensemble.expire(self.session)


class SimWatch:
    """Tells that something changed."""

    def __init__(self, store: SimStore, path: str, server: _Server) -> None:
        self._store = store
        self._server = server
        self.path = path
        self.event = asyncio.Event()

    def begin(self) -> None:
        self._server.watches.setdefault(self.path, {})[self] = None

    async def changed(self) -> None:
        await self.event.wait()
        self._store.check()
        self.event.clear()

    def close(self) -> None:
        self._server.watches.get(self.path, {}).pop(self, None)
