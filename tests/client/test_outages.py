"""Queues through outages: what clients do while brokers are killed, started again, or gone for good."""

import asyncio
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import COMMAND
from tests.client.talk import OnCluster
from tests.conftest import cluster_broker, wait_until_all_serve

from runnel.client import connect, sync
from runnel.client.calls import call_until_done
from runnel.client.cluster import Cluster, Node
from runnel.client.errors import BrokerUnreachable
from runnel.client.queue import Queue
from runnel.client.session import Runnel
from runnel.model.calls import QUEUE_LIST, ListQueues
from runnel.model.errors import InvalidConfig, UnknownQueue
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper
from runnel.wire.kafka.apis import Api

LIMIT_S = 120.0
SHORT_LEASE_MS = 3_000  # what was leased for an answer that got lost comes again after this


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may kill."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def brokers(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Three brokers of a cluster that the test may kill."""
    with ExitStack() as stack:
        started = [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]
        wait_until_all_serve(started)
        yield started


def run(work: Awaitable[None]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(whole())


async def until(look: Callable[[], bool]) -> None:
    while not look():
        await asyncio.sleep(0.02)


@asynccontextmanager
async def working(runnel: Runnel, name: str) -> AsyncIterator[Counter[str]]:
    """A loop over a queue, for the time of the block; it must not end by itself. Values and how often they came."""
    seen: Counter[str] = Counter()

    async def work() -> None:
        async for message in runnel.queue(name).messages():
            async with message:
                seen[message.text] += 1

    task = asyncio.create_task(work())
    try:
        yield seen
        assert not task.done(), task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# --- one broker that is killed and started again


def test_a_loop_goes_on_after_its_broker_was_killed(lonely: BrokerProcess) -> None:
    async def scenario() -> None:
        async with connect(lonely.kafka) as runnel:
            queue = runnel.queue("jobs")
            await queue.create(lease_ms=SHORT_LEASE_MS, retry_backoff_ms=1)
            async with working(runnel, "jobs") as seen:
                await queue.send("before")
                await until(lambda: seen["before"] > 0)
                for number in range(3):
                    lonely.kill()
                    sending = asyncio.create_task(queue.send(f"while {number}"))
                    await asyncio.sleep(0)  # it begins while nobody is there
                    await asyncio.to_thread(lonely.start)
                    await sending
                    await queue.send(f"after {number}")
                    await until(partial({f"while {number}", f"after {number}"}.issubset, seen))
            described = await queue.describe()
            assert sum(part.end for part in described.partitions) == 7  # none is there twice

    run(scenario())


def test_a_loop_waits_for_longer_than_any_call(lonely: BrokerProcess) -> None:
    async def scenario() -> None:
        async with connect(lonely.kafka, timeout=0.2) as runnel:
            queue = runnel.queue("jobs")
            await queue.create(lease_ms=SHORT_LEASE_MS)
            async with working(runnel, "jobs") as seen:
                lonely.kill()
                with pytest.raises(BrokerUnreachable):  # its time is up
                    await queue.receive()
                await asyncio.to_thread(lonely.start)
                async with connect(lonely.kafka) as other:
                    await other.queue("jobs").send("after")
                await until(lambda: seen["after"] > 0)

    run(scenario())


def test_a_loop_without_async_goes_on_too(lonely: BrokerProcess) -> None:
    seen: list[str] = []
    came = threading.Semaphore(0)

    def work() -> None:
        with sync.connect(lonely.kafka) as runnel:
            for message in runnel.queue("jobs").messages():
                with message:
                    seen.append(message.text)
                came.release()
                if message.text == "last":
                    return

    with sync.connect(lonely.kafka) as runnel:
        queue = runnel.queue("jobs")
        queue.create(lease_ms=SHORT_LEASE_MS, retry_backoff_ms=1)
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        queue.send("first")
        assert came.acquire(timeout=LIMIT_S)
        lonely.kill()
        lonely.start()
        queue.send("last")
        worker.join(LIMIT_S)
        assert not worker.is_alive()
    assert {"first", "last"} == set(seen)


def test_receiving_and_settling_wait_for_the_broker(lonely: BrokerProcess) -> None:
    async def scenario() -> None:
        async with connect(lonely.kafka) as runnel:
            queue = runnel.queue("jobs")
            await queue.create()
            await queue.send("a")
            await queue.send("b")
            [message] = await queue.receive(wait=5)
            lonely.kill()
            both = asyncio.gather(message.accept(), queue.receive(wait=1))
            await asyncio.sleep(0)
            await asyncio.to_thread(lonely.start)
            _, found = await both
            assert [message.text, *(one.text for one in found)] in (["a", "b"], ["b", "a"])
            await message.accept()  # the same answer again
            described = await queue.describe()
            assert sum(part.accepted for part in described.partitions) == 1

    run(scenario())


def test_the_command_goes_on_too(lonely: BrokerProcess, tmp_path: Path) -> None:
    with sync.connect(lonely.kafka) as runnel:
        queue = runnel.queue("jobs")
        queue.create(lease_ms=SHORT_LEASE_MS, retry_backoff_ms=1)
        queue.send("before")
        command = [*COMMAND, "queue", "receive", "jobs", "-b", lonely.kafka]
        with (tmp_path / "errors").open("wb") as errors:
            receiver = subprocess.Popen([*command, "--then", "accept"], stdout=subprocess.PIPE, stderr=errors)
        try:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == b"before\n"
            lonely.kill()
            lonely.start()
            queue.send("after")
            lines = iter(receiver.stdout.readline, b"")
            assert next(line for line in lines if line != b"before\n") == b"after\n"
        finally:
            receiver.kill()
            receiver.communicate()


# --- a cluster that loses brokers


def test_a_loop_that_knew_one_broker_outlives_it(brokers: list[BrokerProcess]) -> None:
    async def scenario() -> None:
        first = brokers[0]
        async with connect(first.kafka) as runnel:
            queue = runnel.queue("jobs")
            await queue.create(partitions=3, lease_ms=SHORT_LEASE_MS, retry_backoff_ms=1)
            async with working(runnel, "jobs") as seen:
                sent = [f"before {number}" for number in range(10)]
                await asyncio.gather(*map(queue.send, sent))
                await until(lambda: set(sent) <= set(seen))
                first.kill()
                more = [f"after {number}" for number in range(10)]
                await asyncio.gather(*map(queue.send, more))
                await until(lambda: set(more) <= set(seen))
            described = await queue.describe()
            assert sum(part.end for part in described.partitions) == 20  # none is there twice

    run(scenario())


# --- answers that got lost


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have the next calls carried out, and their answers lost."""
    left = 0
    ask = Node.ask

    async def answer_lost(self: Node, api: Api, *arguments: Any, **more: Any) -> Any:
        nonlocal left
        answer = await ask(self, api, *arguments, **more)
        if api is Api.RUNNEL_CALL and left:
            left -= 1
            raise BrokerUnreachable("the answer was lost")
        return answer

    def lose(count: int) -> None:
        nonlocal left
        left = count

    monkeypatch.setattr(Node, "ask", answer_lost)
    return lose


def test_a_message_that_is_sent_again_is_there_once(
    on_cluster: OnCluster, name: str, lose_answers: Callable[[int], None]
) -> None:
    async def scenario(cluster: Cluster) -> None:
        runnel = Runnel(cluster)
        queue = runnel.queue(name)
        await queue.create(partitions=4)
        sends = (
            partial(queue.send, "soon", delay=0.2),
            partial(queue.send, "named", message_id="m-1"),
            partial(runnel.send, name, "soon, to the topic", delay=0.2),
            partial(runnel.send, name, "named, to the topic", message_id="m-2"),
            partial(Queue(cluster, name).send, "without a producer"),
        )
        for send in sends:
            lose_answers(2)
            await send()
        seen: Counter[str] = Counter()
        while sum(seen.values()) < len(sends):
            for message in await queue.receive(100, wait=1):
                seen[message.text] += 1
                await message.accept()
        assert await runnel.schedule.count(name) == 0
        assert set(seen.values()) == {1}
        described = await queue.describe()
        assert sum(part.end for part in described.partitions) == len(sends)

    on_cluster(scenario)


def test_a_delayed_message_that_is_sent_again_can_be_cancelled(
    on_cluster: OnCluster, name: str, lose_answers: Callable[[int], None]
) -> None:
    async def scenario(cluster: Cluster) -> None:
        runnel = Runnel(cluster)
        await runnel.queue(name).create()
        lose_answers(1)
        sent = await runnel.queue(name).send("later", delay=3600)
        assert [waiting.id async for waiting in runnel.schedule.pending(name)] == [sent.scheduled_id]
        lose_answers(2)
        await runnel.schedule.cancel(sent.scheduled_id)
        assert await runnel.schedule.count(name) == 0

    on_cluster(scenario)


# --- which broker is asked


def test_calls_alone_make_the_brokers_known(trio: list[BrokerProcess]) -> None:
    async def scenario() -> None:
        async with connect(trio[1].kafka) as runnel:
            await call_until_done(runnel.cluster, QUEUE_LIST, ListQueues())
            assert {str(broker) for broker in runnel.cluster.brokers.values()} == {broker.kafka for broker in trio}

    run(scenario())


def test_a_broker_that_failed_is_asked_last(trio: list[BrokerProcess]) -> None:
    async def scenario() -> None:
        async with connect(trio[0].kafka) as runnel:
            first = await runnel.cluster.any_node()
            runnel.cluster.avoid(first)
            second = await runnel.cluster.any_node()
            assert second is not first
            runnel.cluster.avoid(second)
            assert await runnel.cluster.any_node() not in (first, second)

    run(scenario())


def test_addresses_where_nothing_runs_fail_at_once() -> None:
    async def scenario() -> None:
        async with connect("127.0.0.1:1") as runnel:
            with pytest.raises(BrokerUnreachable):
                async for _ in runnel.queue("jobs").messages():
                    pass

    run(scenario())


@pytest.mark.parametrize("form", ["one text", "several texts", "a list", "both"])
def test_brokers_are_named_in_any_form(broker: BrokerProcess, form: str) -> None:
    nobody = "127.0.0.1:1"
    forms: dict[str, list[str | list[str]]] = {
        "one text": [f"{nobody}, {broker.kafka}"],
        "several texts": [nobody, broker.kafka],
        "a list": [[nobody, broker.kafka]],
        "both": [[f"{nobody},{nobody}"], broker.kafka],
    }
    named = forms[form]

    async def scenario() -> None:
        async with connect(*named) as runnel:
            with pytest.raises(UnknownQueue):
                await runnel.queue("nowhere").describe()

    run(scenario())
    with sync.connect(*named) as runnel, pytest.raises(UnknownQueue):
        runnel.queue("nowhere").describe()


def test_naming_no_broker_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="no broker was named"), sync.connect(""):
        pass
