"""ZooKeeper as a store, when things go wrong: servers that die, hang and come back, sessions that end."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runnel.cluster import multiread, nodes
from runnel.cluster import zookeeper as body
from runnel.cluster.duties import WATCHED
from runnel.cluster.image import Broker, Endpoint
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.nodes import ChangesNode, Recent
from runnel.cluster.store import Create, Node, OutcomeUnknown, Set, StoreUnavailable
from runnel.cluster.topic_rules import NewTopic
from runnel.cluster.zookeeper import ZooKeeper
from runnel.model.ids import BrokerId
from runnel.testing import zookeeper as real
from runnel.testing.clock import SeededRng

LIMIT_S = 60.0
WATCHES_MAX = 2 * len(WATCHED)  # of one broker: each node, and its children


@pytest.fixture
def own(tmp_path: Path, zookeeper: real.ZooKeeper) -> real.ZooKeeper:
    """A server that a test may hurt; started by the test."""
    return real.ZooKeeper(tmp_path)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), LIMIT_S)

    asyncio.run(bounded())


def test_silence_ends_the_session_before_the_server_would(own: real.ZooKeeper) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(own.address, session_ms=9_000)
        watch = await store.watch("/w")
        await store.multi([Create("/mine", b"", ephemeral=True)])
        lost = asyncio.ensure_future(store.session_lost())
        own.pause()
        began = time.monotonic()
        await lost
        assert 3.0 < time.monotonic() - began < 9.0
        for call in (store.get("/mine"), store.children("/"), store.sync(), watch.changed(), store.multi([])):
            with pytest.raises(StoreUnavailable, match="session"):
                await call
        own.resume()
        await store.close()

    with own:
        run(scene)


def test_ten_thousand_partitions_need_no_more_watches_than_none(own: real.ZooKeeper) -> None:
    async def scene() -> None:
        members = [await member_of(own, number) for number in (1, 2)]
        controller = members[0]  # the first that came
        assert own.watches() <= WATCHES_MAX * len(members)
        for number in range(5):
            await controller.create_topics([NewTopic(f"t{number}", 2_000, 2)])
        while any(len(each.image.topics) < 5 for each in members):
            await asyncio.sleep(0.01)
        assert {len(topic.partitions) for each in members for topic in each.image.topics.values()} == {2_000}
        assert 0 < own.watches() <= WATCHES_MAX * len(members)
        for each in members:
            await each.close()

    with own:
        run(scene)


async def member_of(server: real.ZooKeeper, number: int) -> Metadata:
    store = await ZooKeeper.open(server.address, session_ms=6_000)
    metadata = await Metadata.open(store, rng=SeededRng(number))
    broker = Broker(BrokerId(number), {"kafka": Endpoint("h", 9_000 + number)})
    await metadata.register(broker, Identity(metadata.image.cluster_id, broker.id, f"d{number}"))
    await metadata.ready()
    return metadata


def test_a_loop_that_comes_late_is_not_taken_for_a_session_that_ended(
    zookeeper: real.ZooKeeper, tmp_path: Path
) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(zookeeper.address, str(tmp_path), session_ms=3_000)
        await store.multi([Create("/mine", b"", ephemeral=True)])
        lost = asyncio.ensure_future(store.session_lost())
        await asyncio.sleep(0)
        for _ in range(3):
            time.sleep(4.0)  # noqa: ASYNC251  (the loop is held, longer than the session)
            assert await store.get("/mine") == Node(b"", 0, store.session)
        assert not lost.done()
        lost.cancel()
        await store.close()

    run(scene)


def test_a_loop_that_comes_late_finds_that_nothing_was_proved_meanwhile(own: real.ZooKeeper) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(own.address, session_ms=9_000)
        own.pause()
        time.sleep(7.0)  # noqa: ASYNC251  (more than two thirds of the session)
        began = time.monotonic()
        await store.session_lost()
        assert time.monotonic() - began < 4.0  # at once; who began to count now would take 6 s
        own.resume()
        await store.close()

    with own:
        run(scene)


def test_a_call_under_way_ends_with_the_session(own: real.ZooKeeper) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(own.address, session_ms=1_000)
        own.pause()
        read, write = asyncio.ensure_future(store.get("/a")), asyncio.ensure_future(store.multi([Create("/a", b"")]))
        with pytest.raises(StoreUnavailable):
            await read
        with pytest.raises(OutcomeUnknown):
            await write
        own.resume()
        await store.close()

    with own:
        run(scene)


def test_a_server_that_comes_back_in_time_finds_the_session_alive(own: real.ZooKeeper) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(own.address, session_ms=30_000)
        watch = await store.watch("/a")
        await store.multi([Create("/a", b"", ephemeral=True)])
        await watch.changed()
        own.kill()
        read = asyncio.ensure_future(store.get("/a"))
        own.start()
        assert await read == Node(b"", 0, store.session)
        await watch.changed()  # something may have been missed, so it tells
        await store.multi([Set("/a", b"1", 0)])
        await watch.changed()
        assert await store.get("/a") == Node(b"1", 1, store.session)
        await store.close()

    with own:
        run(scene)


def test_reading_again_tells_what_became_of_a_multi(own: real.ZooKeeper) -> None:
    """However often the server dies: what was acknowledged is there, and nothing else that was not asked for."""

    acknowledged: list[int] = []
    unknown: list[int] = []

    async def write(store: ZooKeeper) -> None:
        version = 0
        while len(unknown) < 3:
            try:
                await store.multi([Set("/a", b"", version)])
                version += 1
                acknowledged.append(version)
            except OutcomeUnknown:
                found = await store.get("/a")
                assert found is not None
                assert found.version in (version, version + 1)
                version = found.version
                unknown.append(version)

    async def scene() -> None:
        store = await ZooKeeper.open(own.address, session_ms=30_000)
        await store.multi([Create("/a", b"")])
        writer = asyncio.ensure_future(write(store))
        while not writer.done():
            seen = len(acknowledged)
            while len(acknowledged) < seen + 20 and not writer.done():
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)
        await writer
        assert len(set(acknowledged)) == len(acknowledged) >= 40
        await store.close()

    with own:
        run(scene)


HOLD = """
import asyncio, sys
from runnel.cluster.store import Create
from runnel.cluster.zookeeper import ZooKeeper

async def main():
    store = await ZooKeeper.open(sys.argv[1], sys.argv[2], session_ms=1000)
    await store.multi([Create("/held", b"", ephemeral=True)])
    print("held", flush=True)
    await store.session_lost()
    print("lost", flush=True)

asyncio.run(main())
"""


def test_a_process_that_slept_too_long_learns_it_when_it_wakes(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, zookeeper.address, str(tmp_path)]
    sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert sleeper.stdout is not None

    async def scene() -> None:
        store = await ZooKeeper.open(zookeeper.address, str(tmp_path))
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "held\n"
        watch = await store.watch("/held")
        sleeper.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        while await store.get("/held") is not None:
            await watch.changed()
        assert time.monotonic() - began > 0.5
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.stdout.readline() == "lost\n"
        await store.close()

    try:
        run(scene)
    finally:
        sleeper.kill()
        sleeper.wait()
        sleeper.stdout.close()


def test_closing_ends_the_session_at_once(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene() -> None:
        first = await ZooKeeper.open(zookeeper.address, str(tmp_path), session_ms=60_000)
        second = await ZooKeeper.open(zookeeper.address, str(tmp_path))
        await first.multi([Create("/mine", b"", ephemeral=True)])
        watch = await second.watch("/mine")
        await first.close()
        while await second.get("/mine") is not None:
            await watch.changed()
        await second.close()

    run(scene)


def test_the_server_bounds_the_time_of_a_session(zookeeper: real.ZooKeeper) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(zookeeper.address, session_ms=600_000)
        assert store.session_s == 60.0
        await store.close()

    run(scene)


def test_the_largest_change_that_is_allowed_fits_into_one_request(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene() -> None:
        store = await ZooKeeper.open(zookeeper.address, str(tmp_path))
        paths = tuple(f"/topics/{number:036}" for number in range(nodes.RECENT_NODES_MAX))
        recent = (
            *(Recent(10**9 + number, ()) for number in range(nodes.RECENT_CHANGES_MAX - 1)),
            Recent(10**10, paths),
        )
        changes = nodes.encode(ChangesNode(recent))
        assert nodes.Fence(10**10 - 1, recent[:-1], None).after(paths) == recent
        largest = b"x" * nodes.NODE_BYTES_MAX
        await store.multi([Create("/changes", b""), Create("/topics", b"")])
        await store.multi([Set("/changes", changes, 0), Create(paths[0], largest)])
        assert await store.get(paths[0]) == Node(largest, 0)
        await store.close()

    run(scene)


def test_an_address_without_a_server_is_told_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "CONNECT_S", 0.3)

    async def scene() -> None:
        with pytest.raises(StoreUnavailable, match=r"no ZooKeeper answered at 127\.0\.0\.1:1 within"):
            await ZooKeeper.open("127.0.0.1:1")

    run(scene)


def test_a_server_that_is_too_old_is_told_of_at_once(
    zookeeper: real.ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiread.MultiRead, "type", 99)  # no server knows it, as those before 3.6 don't know 22

    async def scene() -> None:
        with pytest.raises(StoreUnavailable, match=r"older than 3\.6.*use 3\.6 or newer"):
            await ZooKeeper.open(zookeeper.address, "/old")

    run(scene)


def test_an_ensemble_survives_its_leader(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene(ensemble: real.ZooKeeper) -> None:
        store = await ZooKeeper.open(ensemble.address, "/some/where", session_ms=10_000)
        await store.multi([Create("/a", b"", ephemeral=True)])
        await asyncio.to_thread(ensemble.leader().kill)
        await store.sync()
        node = await store.get("/a")
        assert node == Node(b"", 0, store.session)
        while True:
            try:
                await store.multi([Set("/a", b"1", 0)])
                break
            except OutcomeUnknown:
                assert await store.get("/a") == node
        await store.close()

    with real.ZooKeeper(tmp_path, 3) as ensemble:
        run(lambda: scene(ensemble))
