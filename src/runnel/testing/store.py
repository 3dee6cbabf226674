"""The coordination seam in memory: one tree that outlives its sessions, as an ensemble of ZooKeepers does.

Rule 1: a multi is done at one instant, between two waits: whoever dies while waiting does not know whether it was.
Rule 2: a session ends when it is told to: at once with the process, as in the embedded store, or later.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from runnel.cluster.store import Node, Op, StoreUnavailable
from runnel.cluster.tree import Tree


class Ensemble:
    """What all sessions share."""

    def __init__(self, pace_s: Callable[[], float] = lambda: 0.0) -> None:
        self.tree = Tree({})
        self.pace_s = pace_s  # how long a question or an answer is under way
        self.sessions: dict[int, SimStore] = {}
        self._numbers = count(1)
        self._watches: dict[str, dict[SimWatch, None]] = {}

    async def open(self) -> "SimStore":
        await asyncio.sleep(self.pace_s())
        store = SimStore(self, next(self._numbers))
        self.sessions[store.session] = store
        return store

    def expire(self, session: int) -> None:
        """End a session, whatever its owner thinks."""
        store = self.sessions.pop(session, None)
        if store is not None:
            store.lost.set()
            self.tell(self.tree.apply(self.tree.expiry(session)))

    def tell(self, touched: set[str]) -> None:
        for path in sorted(touched & self._watches.keys()):
            for watch in self._watches[path]:
                watch.event.set()

    def watch(self, path: str) -> "SimWatch":
        watch = SimWatch(self, path)
        self._watches.setdefault(path, {})[watch] = None
        return watch

    def unwatch(self, watch: "SimWatch") -> None:
        self._watches.get(watch.path, {}).pop(watch, None)


class SimStore:
    """One session."""

    def __init__(self, ensemble: Ensemble, session: int) -> None:
        self._ensemble = ensemble
        self.session = session
        self.lost = asyncio.Event()

    async def get(self, path: str) -> Node | None:
        await self._ask()
        return self._ensemble.tree.get(path)

    async def children(self, path: str) -> list[str]:
        await self._ask()
        return self._ensemble.tree.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._ask()
        tree = self._ensemble.tree
        self._ensemble.tell(tree.apply(tree.plan(ops, self.session)))
        await asyncio.sleep(self._ensemble.pace_s())

    async def watch(self, path: str) -> "SimWatch":
        await self._ask()
        return self._ensemble.watch(path)

    async def sync(self) -> None:
        await self._ask()

    async def session_lost(self) -> None:
        await self.lost.wait()

    async def close(self) -> None:
        self._ensemble.expire(self.session)

    async def _ask(self) -> None:
        await asyncio.sleep(self._ensemble.pace_s())
        if self.lost.is_set():
            raise StoreUnavailable(f"session {self.session} with the metadata store is over")


class SimWatch:
    """Tells that something changed."""

    def __init__(self, ensemble: Ensemble, path: str) -> None:
        self._ensemble = ensemble
        self.path = path
        self.event = asyncio.Event()

    async def changed(self) -> None:
        await self.event.wait()
        self.event.clear()

    def close(self) -> None:
        self._ensemble.unwatch(self)
