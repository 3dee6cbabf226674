"""Queues on real brokers: what is settled stays so, whatever is killed; what is not comes again, and is counted."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from tests.client.talk import talk
from tests.conftest import cluster_broker

from runnel.broker.receiving import LOOK_AGAIN_S
from runnel.client.calls import call
from runnel.client.cluster import Cluster
from runnel.client.queue import Queue, QueueMessage, queues
from runnel.model import headers as h
from runnel.model.calls import (
    QUEUE_PURGE,
    QUEUE_SEND,
    REDRIVE_START,
    REDRIVE_STATUS,
    REDRIVE_STOP,
    Outgoing,
    Purge,
    Redrive,
    RedriveTask,
    Send,
)
from runnel.model.errors import InvalidRequest, LeaseLost, PolicyViolation, RetriableError
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 60.0
LONG_S = 30.0


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    while not await look():
        assert loop.time() < end
        await asyncio.sleep(0.02)


async def receive(queue: Queue, count: int = 1, *, wait: float = LONG_S, lease: float = LONG_S) -> list[QueueMessage]:
    """Receive, also while brokers come and go."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    while True:
        try:
            return await queue.receive(count, wait=wait, lease=lease)
        except RetriableError:
            assert loop.time() < end
            await asyncio.sleep(0.05)


async def settled(work: Callable[[], Awaitable[None]]) -> None:
    """Settle, also while brokers come and go."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    while True:
        try:
            return await work()
        except RetriableError:
            assert loop.time() < end
            await asyncio.sleep(0.05)


def talk_to_all(brokers: list[BrokerProcess], work: Callable[[Cluster], Awaitable[None]]) -> None:
    async def conversation() -> None:
        addresses = [broker.kafka for broker in brokers]
        async with Cluster(addresses, clock=SystemClock(), rng=SystemRng()) as cluster:
            await work(cluster)

    asyncio.run(conversation())


def values(messages: list[QueueMessage]) -> list[tuple[bytes | None, int]]:
    return [(message.value, message.attempt) for message in messages]


# --- one broker


def test_a_message_is_leased_released_leased_again_and_rejected(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "life")
        await queue.create(retry_backoff_ms=1, partitions=1)
        await queue.send(b"a", key="k", headers={"colour": "red"})
        [first] = await receive(queue)
        assert (first.value, first.key, first.attempt) == (b"a", b"k", 1)
        assert await queue.receive(wait=0) == []  # it is leased
        await first.release()
        [second] = await receive(queue)
        assert second.attempt == 2
        with pytest.raises(LeaseLost):
            await first.accept()  # an old receipt
        await second.reject("no such customer")
        dead: list[QueueMessage] = []
        graves = Queue(cluster, "life.graves")
        await graves.create(topic="life.dead")
        dead = await receive(graves)
        assert (dead[0].value, dead[0].key) == (b"a", b"k")
        told = {name: value for name, value in dead[0].headers.items() if value is not None}
        assert told["colour"] == b"red"
        assert (told[h.ORIGIN_TOPIC], told[h.ORIGIN_OFFSET], told[h.ATTEMPTS]) == (b"life", b"0", b"2")
        assert told[h.DEAD_REASON] == b"no such customer"

    talk(broker.kafka, scenario)


def test_who_waits_is_woken_by_a_message_by_a_retry_and_by_a_lease_that_ends(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "waiting")
        await queue.create(retry_backoff_ms=200, retry_backoff_max_ms=200, partitions=3)
        waiting = asyncio.ensure_future(receive(queue, lease=0.3))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await queue.send(b"a")
        assert values(await waiting) == [(b"a", 1)]
        [again] = await receive(queue)  # when the lease has run out
        assert again.attempt == 2
        waiting = asyncio.ensure_future(receive(queue))
        await again.release()
        assert values(await waiting) == [(b"a", 3)]

    talk(broker.kafka, scenario)


def test_competing_consumers_never_have_one_message_twice(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "competing")
        await queue.create(partitions=2)
        count = 600
        await asyncio.gather(*(queue.send(b"%d" % number) for number in range(count)))
        seen: Counter[bytes | None] = Counter()

        async def consume(size: int) -> None:
            while sum(seen.values()) < count:
                for message in await receive(queue, size, wait=0.5):
                    seen[message.value] += 1
                    assert message.attempt == 1
                    await message.accept()

        await asyncio.gather(*(consume(1 + number % 7) for number in range(12)))
        assert seen == {b"%d" % number: 1 for number in range(count)}

    talk(broker.kafka, scenario)


def test_each_client_is_a_consumer_of_its_own(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = Queue(cluster, "lonely"), Queue(cluster, "lonely")
        await one.create(partitions=1, consumers="single")
        for value in (b"a", b"b"):
            await one.send(value)
        assert values(await receive(one)) == [(b"a", 1)]
        assert await other.receive() == []
        assert await one.receive(consumer="another") == []
        assert values(await receive(one)) == [(b"b", 1)]

    talk(broker.kafka, scenario)


def test_a_consumer_that_gave_up_waiting_is_not_given_a_message(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "gave-up")
        await queue.create(partitions=1)
        waiting = asyncio.ensure_future(queue.receive(wait=LONG_S, lease=LONG_S))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
        for _ in range(3):  # by the time of these answers the broker has seen the end of its connection
            await queue.describe()
        await queue.send(b"a")
        assert values(await receive(queue)) == [(b"a", 1)]

    talk(broker.kafka, scenario)


def test_what_waits_for_long_waits_in_the_schedule_and_comes_back_with_its_attempts(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "patient")
        await queue.create(partitions=2, window_wait_max_ms=0, attempts_max=3)
        await queue.send(b"a", key="k", headers={"colour": "red"})
        [message] = await receive(queue)
        await message.release(delay=0.5)
        [again] = await receive(queue)
        assert (again.topic, again.value, again.key, again.attempt) == ("patient.retry", b"a", b"k", 2)
        assert again.headers[h.ORIGIN_TOPIC] == b"patient"
        await again.release(delay=0.2)
        [last] = await receive(queue)
        assert (last.topic, last.attempt) == ("patient.retry", 3)
        await last.release()
        graves = Queue(cluster, "patient.graves")
        await graves.create(topic="patient.dead")
        [letter] = await receive(graves)
        told = letter.headers
        assert (letter.value, told[h.ORIGIN_TOPIC], told[h.ATTEMPTS], told["colour"]) == (
            b"a",
            b"patient",
            b"3",
            b"red",
        )
        states = (await queue.describe()).partitions
        assert sum(state.ready + state.leased + state.waiting for state in states) == 0

    talk(broker.kafka, scenario)


def test_what_waits_in_the_schedule_for_another_attempt_is_counted_and_purged(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "hopeless")
        await queue.create(partitions=2, window_wait_max_ms=0)
        for number in range(3):
            await queue.send(b"%d" % number)
        for message in [await receive(queue) for _ in range(3)]:
            await message[0].release(delay=3_600)
        while (await queue.describe()).scheduled < 3:  # they are on their way to the schedule
            await asyncio.sleep(0.05)
        planned = await call(cluster, QUEUE_PURGE, Purge("hopeless", dry_run=True))
        assert planned.scheduled == 3
        assert (await call(cluster, QUEUE_PURGE, Purge("hopeless"))).scheduled == 3
        assert (await queue.describe()).scheduled == 0

    talk(broker.kafka, scenario)


def test_filters_of_a_queue_and_of_a_receiver(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue, reds = Queue(cluster, "colours"), Queue(cluster, "reds")
        await queue.create(partitions=1)
        await reds.create(topic="colours", filter="headers.colour = 'red'")
        for number in range(300):
            await queue.send(b"%d" % number, headers={"colour": "red" if number % 100 == 99 else "blue"})
        assert [message.value for message in await receive(reds, 10)] == [b"99", b"199", b"299"]
        chosen = await queue.receive(2, filter="headers.colour = 'red'", wait=LONG_S)
        assert [message.value for message in chosen] == [b"99", b"199"]
        assert [message.value for message in await receive(queue, 3)] == [b"0", b"1", b"2"]
        assert [message.attempt for message in await receive(queue, 200)] == [1] * 200
        for message in chosen:
            await message.accept()

    talk(broker.kafka, scenario)


def test_a_full_queue_refuses_messages_at_every_door(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "full")
        await queue.create(partitions=1, max_length=3, overflow="refuse")
        at_once = Send("full", [Outgoing(b"%d" % number) for number in range(4)])
        [failure, *_] = (await call(cluster, QUEUE_SEND, at_once)).failures
        assert failure is not None
        assert "of 4 offered at once 3 fit. Send fewer at once" in failure.message
        for number in range(3):
            await queue.send(b"%d" % number)
        with pytest.raises(PolicyViolation, match=r"max\.length is 3"):
            await queue.send(b"3")
        with pytest.raises(PolicyViolation):
            await queue.send(b"3", message_id="named")
        failed: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": broker.kafka})
        producer.produce("full", b"kafka", on_delivery=lambda error, _: failed.append(error))
        await asyncio.to_thread(producer.flush, LIMIT_S)
        assert [error and error.code() for error in failed] == [KafkaError.POLICY_VIOLATION]
        [first] = await receive(queue)
        await first.accept()
        await queue.send(b"3")
        await queue.alter(overflow=None)
        await queue.send(b"4")  # the oldest goes
        assert [message.value for message in await receive(queue, 10)] == [b"2", b"3", b"4"]

    talk(broker.kafka, scenario)


def test_what_a_full_queue_gives_up_is_among_the_dead_letters(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        async def overflow(cluster: Cluster) -> None:
            queue = Queue(cluster, "bounded")
            await queue.create(partitions=1, max_length=3, filter="headers.wanted = 'yes'")
            for number in range(20):
                await queue.send(b"%d" % number, headers={"wanted": "yes" if number % 2 else "no"})
            first = await receive(queue)
            assert [message.value for message in first] == [b"17"]
            broker.kill()  # what left is kept, and has perhaps not arrived

        async def look(cluster: Cluster) -> None:
            queue = Queue(cluster, "bounded")
            await receive(queue, 10, wait=0.1)
            while len(letters := await queue.dead_letters()) < 8:
                await asyncio.sleep(0.05)
            assert [(letter.value, letter.reason) for letter in letters] == [
                (b"%d" % number, "max.length") for number in range(1, 17, 2)
            ], "but for those that the queue would not have delivered"

        talk(broker.kafka, overflow)
        broker.start()
        talk(broker.kafka, look)


def test_queues_are_listed_however_many_pages_that_takes(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        names = [f"many-{n}" for n in range(5)]
        for name in names:
            await Queue(cluster, name).create(topic="many")
        for page_max in (1, 2, 5, 6):
            assert [each.queue for each in await queues(cluster, "many-", page_max=page_max)] == names

    talk(broker.kafka, scenario)


async def bury(queue: Queue, count: int) -> None:
    """Send so many messages, and reject each."""
    for start in range(0, count, 50):
        await asyncio.gather(*(queue.send({"n": n}, key=str(n)) for n in range(start, min(start + 50, count))))
    buried = 0
    while buried < count:
        messages = await receive(queue, 100)
        buried += len(messages)
        await asyncio.gather(*(settled(partial(message.reject, f"reason {message.key!r}")) for message in messages))

    async def all_there() -> bool:
        return len(await queue.dead_letters(1000)) == count

    await eventually(all_there)


async def drained(queue: Queue) -> list[QueueMessage]:
    """All that is there, accepted."""
    found: list[QueueMessage] = []
    while messages := await receive(queue, 100, wait=0.3):
        found += messages
        await asyncio.gather(*(settled(message.accept) for message in messages))
    return found


def test_dead_letters_go_back_to_where_they_came_from_once(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "back")
        await queue.create(partitions=3)
        await bury(queue, 30)
        letters = await queue.dead_letters(5)
        assert (letters[0].origin_topic, letters[0].attempts) == ("back", 1)
        assert letters[0].reason == f"reason {letters[0].key!r}"
        some = "body.n < 10"
        assert len(await queue.dead_letters(filter=some)) == 10
        dry = await queue.redrive(filter=some, dry_run=True)
        assert (dry.state, dry.moved, dry.skipped, dry.dry_run) == ("done", 10, 20, True)
        assert await queue.receive(wait=0.1) == []
        state = await queue.redrive(filter=some, headers={"repaired": "yes"})
        assert (state.state, state.moved, state.skipped) == ("done", 10, 20)
        found = await drained(queue)
        assert sorted(int(message.key or b"") for message in found) == list(range(10))
        assert {message.headers["repaired"] for message in found} == {b"yes"}
        assert {message.attempt for message in found} == {1}
        assert len(await queue.dead_letters(100)) == 20
        [letter] = await queue.dead_letters(1, filter="body.n = 20")
        one = await queue.redrive(only={letter.partition: letter.offset}, value={"n": "twenty"})
        assert (one.state, one.moved) == ("done", 1)
        assert [message.value for message in await drained(queue)] == [b'{"n":"twenty"}']
        rest = await queue.redrive()
        assert (rest.moved, len(await drained(queue))) == (19, 19)
        assert (await queue.redrive()).moved == 0
        assert await queue.dead_letters() == []

    talk(broker.kafka, scenario)


def test_a_redrive_keeps_its_pace_and_can_be_stopped(broker: BrokerProcess) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "paced")
        await queue.create(partitions=1)
        await bury(queue, 40)
        state = await call(cluster, REDRIVE_START, Redrive("paced", rate_max=20))
        begun = asyncio.get_running_loop().time()
        assert state.state == "running"
        with pytest.raises(InvalidRequest, match="under way"):
            await call(cluster, REDRIVE_START, Redrive("paced"))

        async def some_went() -> bool:
            return (await call(cluster, REDRIVE_STATUS, RedriveTask("paced"))).moved >= 10

        await eventually(some_went)
        assert asyncio.get_running_loop().time() - begun > 0.3
        await call(cluster, REDRIVE_STOP, RedriveTask("paced", state.task))

        async def is_over() -> bool:
            return (await call(cluster, REDRIVE_STATUS, RedriveTask("paced"))).state == "stopped"

        await eventually(is_over)
        moved = (await call(cluster, REDRIVE_STATUS, RedriveTask("paced"))).moved
        assert 10 <= moved < 40
        assert len(await drained(queue)) == moved
        rest = await queue.redrive()
        assert moved + rest.moved == 40
        assert len(await drained(queue)) == rest.moved

    talk(broker.kafka, scenario)


# --- killed


def test_a_redrive_goes_on_after_crashes_and_doubles_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        async def scenario(cluster: Cluster) -> None:
            queue = Queue(cluster, "q")
            await queue.create(partitions=2)
            await bury(queue, 200)
            await call(cluster, REDRIVE_START, Redrive("q", rate_max=100))
            for _ in range(3):
                await asyncio.sleep(0.4)
                broker.kill()
                await asyncio.to_thread(broker.start)

            async def is_over() -> bool:
                try:
                    return (await call(cluster, REDRIVE_STATUS, RedriveTask("q"))).state == "done"
                except RetriableError:
                    return False

            await eventually(is_over)
            found = Counter(message.key for message in await drained(queue))
            assert found == {b"%d" % number: 1 for number in range(200)}

        talk(broker.kafka, scenario)


def test_what_was_settled_is_settled_after_a_crash_and_the_rest_comes_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        async def before(cluster: Cluster) -> tuple[list[str], int]:
            queue = Queue(cluster, "q")
            await queue.create(partitions=1, retry_backoff_ms=1)
            for number in range(6):
                await queue.send(b"%d" % number)
            messages = await receive(queue, 6)
            await messages[0].accept()
            await messages[2].accept()
            await messages[3].release()
            await messages[4].reject()
            return [message.receipt for message in messages], messages[0].leased_until_ms

        talk(broker.kafka, before)
        broker.kill()
        broker.start()

        async def after(cluster: Cluster) -> None:
            queue = Queue(cluster, "q")
            assert values(await receive(queue, 10)) == [(b"3", 2)]  # 1 and 5 are leased still
            graves = Queue(cluster, "graves")
            await graves.create(topic="q.dead")
            assert [message.value for message in await receive(graves)] == [b"4"]
            assert await graves.receive(wait=0.2) == []  # once

        talk(broker.kafka, after)


def test_receipts_outlive_the_crash_of_their_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        async def scenario(cluster: Cluster) -> None:
            queue = Queue(cluster, "q")
            await queue.create(partitions=1)
            await queue.send(b"a")
            await queue.send(b"b")
            first, second = await receive(queue, 2)
            broker.kill()
            broker.start()
            await settled(first.accept)
            await settled(lambda: second.release(delay=0))
            assert values(await receive(queue, 10)) == [(b"b", 2)]

        talk(broker.kafka, scenario)


def test_killed_again_and_again_no_message_is_lost_or_comes_after_it_was_accepted(tmp_path: Path) -> None:
    count = 300
    with BrokerProcess(tmp_path / "data") as broker:

        async def scenario(cluster: Cluster) -> None:
            queue = Queue(cluster, "q")
            await queue.create(partitions=2, attempts_max=1000, retry_backoff_ms=1)
            for start in range(0, count, 50):
                await asyncio.gather(*(queue.send(b"%d" % number) for number in range(start, start + 50)))
            accepted: Counter[bytes | None] = Counter()
            attempts: dict[bytes | None, int] = {}
            late: list[bytes | None] = []

            async def consume() -> None:
                while len(accepted) < count:
                    got = await receive(queue, 5, wait=0.2, lease=1.0)
                    for message in got:  # at once: another may have it before this one comes to it
                        late.extend([message.value] if message.value in accepted else [])
                        assert message.attempt > attempts.get(message.value, 0)
                        attempts[message.value] = message.attempt
                    for message in got:
                        try:
                            await settled(message.accept)
                            accepted[message.value] += 1
                        except LeaseLost:
                            continue  # it took too long: it comes again

            async def kill() -> None:
                for _ in range(4):
                    await asyncio.sleep(0.5)
                    broker.kill()
                    await asyncio.to_thread(broker.start)

            await asyncio.gather(kill(), *(consume() for _ in range(4)))
            assert late == []

        talk(broker.kafka, scenario)


# --- three brokers


@pytest.fixture
def three(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]


def test_any_broker_serves_a_queue_whose_partitions_are_everywhere(trio: list[BrokerProcess]) -> None:
    async def send(cluster: Cluster) -> None:
        queue = Queue(cluster, "everywhere")
        await queue.create(partitions=6)
        await asyncio.gather(*(queue.send(b"%d" % number, key=str(number)) for number in range(60)))

    talk(trio[0].kafka, send)
    seen: list[bytes | None] = []
    for broker in trio:

        async def take(cluster: Cluster) -> None:
            queue = Queue(cluster, "everywhere")
            taken = 0
            while taken < 20 and len(seen) < 60:
                for message in await receive(queue, 5, wait=5.0):
                    taken += 1
                    seen.append(message.value)
                    await message.accept()

        talk(broker.kafka, take)
    assert sorted(seen, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(60)]


def test_who_waits_at_one_broker_is_woken_by_what_comes_to_another(trio: list[BrokerProcess]) -> None:
    async def took_s(queue: Queue, number: int) -> float:
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(receive(queue))
        await asyncio.sleep(0.2)
        sent = loop.time()
        await queue.send(b"%d" % number, key=str(number))
        [message] = await waiting
        took_s = loop.time() - sent
        assert message.value == b"%d" % number
        await message.accept()
        return took_s

    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "woken")
        await queue.create(partitions=3)
        for number in range(6):
            for _ in range(3):  # a busy machine may be slow for once
                if await took_s(queue, number) < 0.8 * LOOK_AGAIN_S:
                    break
            else:
                raise AssertionError("it was found by looking again: nobody was woken")

    talk(trio[1].kafka, scenario)


def test_leases_of_a_connection_end_with_it_at_every_broker(trio: list[BrokerProcess]) -> None:
    async def hold(cluster: Cluster) -> None:
        queue = Queue(cluster, "held")
        await queue.create(partitions=6, retry_backoff_ms=1)
        await asyncio.gather(*(queue.send(b"%d" % number, key=str(number)) for number in range(12)))
        held = 0
        while held < 12:
            held += len(await queue.receive(12, wait=LONG_S, lease=0))
        assert await queue.receive(wait=0.2) == []

    async def take(cluster: Cluster) -> None:
        queue = Queue(cluster, "held")
        found: list[QueueMessage] = []
        while len(found) < 12:
            found += await receive(queue, 12)
        assert {message.attempt for message in found} == {2}

    talk(trio[0].kafka, hold)
    talk(trio[1].kafka, take)


def test_leases_of_a_connection_end_with_the_broker_that_it_was_at(three: list[BrokerProcess]) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "q")
        await queue.create(partitions=1, retry_backoff_ms=1)
        await queue.send(b"a")
        [state] = (await queue.describe()).partitions
        other = next(number for number in (1, 2, 3) if number != state.leader)

        async with Cluster([three[other - 1].kafka], clock=SystemClock(), rng=SystemRng()) as elsewhere:
            assert len(await Queue(elsewhere, "q").receive(wait=LONG_S, lease=0)) == 1
            three[other - 1].kill()
        assert values(await receive(queue)) == [(b"a", 2)]

    talk_to_all(three, scenario)


def test_a_queue_goes_on_with_the_next_leader(three: list[BrokerProcess]) -> None:
    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "q")
        await queue.create(partitions=1, retry_backoff_ms=1)
        for number in range(5):
            await queue.send(b"%d" % number)
        messages = await receive(queue, 5)
        await messages[0].accept()
        await messages[1].reject("bad")
        await messages[2].release()
        [leader] = {state.leader for state in (await queue.describe()).partitions if state.topic == "q"}
        three[leader - 1].kill()
        await settled(messages[3].accept)  # its receipt is good at the next leader
        assert values(await receive(queue, 10)) == [(b"2", 2)]
        await settled(lambda: messages[4].release(delay=0))
        assert values(await receive(queue, 10)) == [(b"4", 2)]
        graves = Queue(cluster, "graves")
        await cluster.persist(lambda: graves.create(topic="q.dead"))
        assert [message.value for message in await receive(graves, 10)] == [b"1"]

    talk_to_all(three, scenario)


def test_brokers_killed_in_turn_lose_nothing_double_no_dead_letter_and_deliver_nothing_that_was_accepted(
    three: list[BrokerProcess],
) -> None:
    count = 200

    async def scenario(cluster: Cluster) -> None:
        queue = Queue(cluster, "q")
        await queue.create(partitions=3, attempts_max=1000, retry_backoff_ms=1)
        for start in range(0, count, 50):
            await asyncio.gather(*(queue.send(b"%d" % n, key=str(n)) for n in range(start, start + 50)))
        dead = {b"%d" % number for number in range(0, count, 10)}
        settled_as: dict[bytes | None, str] = {}
        attempts: dict[bytes | None, int] = {}
        late: list[bytes | None] = []

        async def consume() -> None:
            while len(settled_as) < count:
                for message in await receive(queue, 4, wait=0.5, lease=3.0):
                    late.extend([message.value] if message.value in settled_as else [])
                    assert message.attempt > attempts.get(message.value, 0)
                    attempts[message.value] = message.attempt
                    dies = message.value in dead
                    try:
                        await settled(partial(message.reject, "bad") if dies else message.accept)
                        settled_as[message.value] = "rejected" if dies else "accepted"
                    except LeaseLost:
                        continue  # it took too long: it comes again, or was rejected before the answer got lost

        async def kill() -> None:
            for broker in three:
                await asyncio.sleep(1.0)
                broker.kill()
                await asyncio.sleep(3.0)
                await asyncio.to_thread(broker.start)

        consumers = [asyncio.ensure_future(consume()) for _ in range(4)]
        await kill()

        async def all_settled() -> bool:
            return len(settled_as) + len(dead - settled_as.keys()) >= count and not await queue.receive(wait=3.5)

        await eventually(all_settled)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)
        assert late == []
        letters = Counter(letter.value for letter in await queue.dead_letters(1000))
        assert letters == dict.fromkeys(dead, 1)
        assert {value for value, how in settled_as.items() if how == "accepted"} == {
            b"%d" % number for number in range(count)
        } - dead

    talk_to_all(three, scenario)
