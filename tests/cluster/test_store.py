"""The law of the coordination seam: every body passes these tests unchanged."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from runnel.cluster.embedded import Embedded
from runnel.cluster.store import PERSISTENT, Check, Conflict, Create, Delete, Node, Op, Reason, Set, Store, parent_of
from runnel.cluster.zookeeper import ZooKeeper
from runnel.shell.disk import RealDisk
from runnel.testing.store import Ensemble

Body: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Store]]
Law: TypeAlias = Callable[[Store], Awaitable[None]]


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Store]:
    """One session; what was written stays in the folder for the next."""
    disk = RealDisk(str(folder))
    store = await Embedded.open(disk, str(folder))
    try:
        yield store
    finally:
        await store.close()
        disk.close()


ENSEMBLES: dict[Path, Ensemble] = {}


@asynccontextmanager
async def simulated(folder: Path) -> AsyncIterator[Store]:
    """One session with a store in memory, which outlives it."""
    store = await ENSEMBLES.setdefault(folder, Ensemble()).open()
    yield store
    await store.close()


@pytest.fixture(params=["embedded", "simulated", "zookeeper"])
def body(request: pytest.FixtureRequest) -> Body:
    if request.param == "embedded":
        return embedded
    if request.param == "simulated":
        return simulated
    address: str = request.getfixturevalue("zookeeper").address

    @asynccontextmanager
    async def zookeeper(folder: Path) -> AsyncIterator[Store]:
        """One session; what was written stays below the folder's path for the next."""
        store = await ZooKeeper.open(address, str(folder))
        try:
            yield store
        finally:
            await store.close()

    return zookeeper


def hold(body: Body, folder: Path, law: Law) -> None:
    async def run() -> None:
        async with body(folder) as store:
            await law(store)

    asyncio.run(run())


def test_a_node_is_read_as_it_was_written(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        assert await store.get("/a") is None
        await store.multi([Create("/a", b"one")])
        assert await store.get("/a") == Node(b"one", 0)
        await store.multi([Set("/a", b"two", 0)])
        assert await store.get("/a") == Node(b"two", 1)
        await store.multi([Delete("/a", 1)])
        assert await store.get("/a") is None

    hold(body, tmp_path, law)


def test_children_are_names_in_order(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/a", b""), Create("/a/y", b""), Create("/a/x", b""), Create("/a/x/deep", b"")])
        assert await store.children("/a") == ["x", "y"]
        assert await store.children("/a/x") == ["deep"]
        assert await store.children("/nothing") == []
        assert "a" in await store.children("/")

    hold(body, tmp_path, law)


BASE: list[Op] = [Create("/a", b"0"), Create("/a/b", b"0"), Create("/e", b"0", ephemeral=True)]
REFUSED: list[tuple[Op, Reason]] = [
    (Create("/a", b"x"), Reason.EXISTS),
    (Create("/no/parent", b"x"), Reason.MISSING),
    (Create("/e/child", b"x"), Reason.EPHEMERAL),
    (Set("/no", b"x", 0), Reason.MISSING),
    (Set("/a", b"x", 1), Reason.VERSION),
    (Delete("/no", 0), Reason.MISSING),
    (Delete("/a/b", 7), Reason.VERSION),
    (Delete("/a", 0), Reason.NOT_EMPTY),
    (Check("/no", 0), Reason.MISSING),
    (Check("/a", 1), Reason.VERSION),
]


@pytest.mark.parametrize(("op", "reason"), REFUSED, ids=lambda case: str(case))
def test_one_refused_operation_undoes_the_whole_multi(body: Body, tmp_path: Path, op: Op, reason: Reason) -> None:
    async def law(store: Store) -> None:
        await store.multi(BASE)
        with pytest.raises(Conflict) as refused:
            await store.multi([Create("/new", b""), op])
        assert (refused.value.index, refused.value.op, refused.value.reason) == (1, op, reason)
        assert op.path in str(refused.value)
        assert await store.get("/new") is None
        assert await store.get("/a") == Node(b"0", 0)
        assert await store.get("/a/b") == Node(b"0", 0)

    hold(body, tmp_path, law)


def test_operations_see_those_before_them(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/a", b""), Create("/a/b", b"1"), Set("/a/b", b"2", 0), Check("/a/b", 1)])
        assert await store.get("/a/b") == Node(b"2", 1)
        await store.multi([Delete("/a/b", 1), Delete("/a", 0), Create("/a", b"again")])
        assert await store.get("/a") == Node(b"again", 0)
        assert await store.children("/a") == []

    hold(body, tmp_path, law)


def test_of_writers_that_expect_the_same_version_one_wins(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/a", b"")])
        writes = (store.multi([Set("/a", b"%d" % number, 0)]) for number in range(20))
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert results.count(None) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 19
        assert await store.get("/a") == Node(b"%d" % results.index(None), 1)

    hold(body, tmp_path, law)


def test_what_a_session_wrote_outlives_it_but_its_ephemeral_nodes_do_not(body: Body, tmp_path: Path) -> None:
    async def first(store: Store) -> None:
        await store.multi([Create("/kept", b"k"), Create("/mine", b"m", ephemeral=True)])
        mine = await store.get("/mine")
        assert mine == Node(b"m", 0, store.session)
        assert store.session != PERSISTENT
        await store.multi([Set("/mine", b"n", 0)])
        assert await store.get("/mine") == Node(b"n", 1, store.session)

    async def second(store: Store) -> None:
        await store.sync()
        assert await store.get("/kept") == Node(b"k", 0)
        assert await store.get("/mine") is None

    hold(body, tmp_path, first)
    hold(body, tmp_path, second)


def test_a_watch_tells_of_the_node_and_of_its_children(body: Body, tmp_path: Path) -> None:
    changes: list[list[Op]] = [
        [Create("/w", b"")],
        [Set("/w", b"1", 0)],
        [Create("/w/child", b"")],
        [Delete("/w/child", 0)],
        [Delete("/w", 1)],
    ]

    async def law(store: Store) -> None:
        watch = await store.watch("/w")
        for change in changes:
            await store.multi(change)
            await asyncio.wait_for(watch.changed(), 30)
        watch.close()

    hold(body, tmp_path, law)


def test_a_watch_told_late_has_missed_nothing(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/w", b"")])
        watch = await store.watch("/w")
        for version in range(50):
            await store.multi([Set("/w", b"%d" % version, version)])
        seen = b""
        while seen != b"49":  # however many changes are told as one, the last value is seen
            await asyncio.wait_for(watch.changed(), 30)
            node = await store.get("/w")
            assert node is not None
            seen = node.value
        watch.close()

    hold(body, tmp_path, law)


def test_a_watch_is_silent_about_other_nodes(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/w", b""), Create("/other", b"")])
        watch = await store.watch("/w")
        told = asyncio.ensure_future(watch.changed())
        await store.multi([Set("/other", b"1", 0)])
        with pytest.raises(Conflict):
            await store.multi([Set("/w", b"1", 0), Check("/other", 9)])
        await store.sync()
        assert not told.done()
        await store.multi([Set("/w", b"1", 0)])
        await asyncio.wait_for(told, 30)
        watch.close()

    hold(body, tmp_path, law)


def test_many_nodes_are_read_in_their_order(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/t", b""), Create("/mine", b"m", ephemeral=True)])
        await store.multi([Create(f"/t/{number:04}", b"%d" % number) for number in range(300)])
        await store.multi([Set("/t/0007", b"seven", 0), Delete("/t/0008", 0)])
        names = [f"/t/{number:04}" for number in reversed(range(300))]
        found = await store.get_all(["/mine", *names, "/nowhere", "/t/0007"])
        assert found[0] == Node(b"m", 0, store.session)
        assert found[1:] == [await store.get(path) for path in [*names, "/nowhere", "/t/0007"]]
        assert (found[-1], found[-2], found[300 - 8]) == (Node(b"seven", 1), None, None)
        assert await store.get_all([]) == []

    hold(body, tmp_path, law)


def test_a_large_multi_is_one_multi(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        await store.multi([Create("/t", b"")])
        await store.multi([Create(f"/t/{number:04}", b"x" * 900) for number in range(500)])
        assert len(await store.children("/t")) == 500
        with pytest.raises(Conflict) as refused:
            await store.multi([Set(f"/t/{number:04}", b"y", 0) for number in range(499)] + [Check("/t/0499", 3)])
        assert refused.value.index == 499
        assert await store.get("/t/0000") == Node(b"x" * 900, 0)

    hold(body, tmp_path, law)


def test_a_living_session_is_not_lost(body: Body, tmp_path: Path) -> None:
    async def law(store: Store) -> None:
        lost = asyncio.ensure_future(store.session_lost())
        await store.multi([Create("/a", b"")])
        assert not lost.done()
        lost.cancel()

    hold(body, tmp_path, law)


@pytest.mark.parametrize(("path", "parent"), [("/a", "/"), ("/a/b", "/a"), ("/a/b/c", "/a/b")])
def test_the_parent_of_a_path(path: str, parent: str) -> None:
    assert parent_of(path) == parent
