"""The client that programs use, against a real broker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runnel.client import connect, sync
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.offsets import fetch_committed
from runnel.client.queue import DeadLetter, QueueMessage
from runnel.client.session import Group, Message, Runnel
from runnel.model.errors import InvalidConfig, LeaseLost, NotPending, QueueAlreadyExists, RunnelError, UnknownMember
from runnel.testing.process import BrokerProcess


def on(broker: BrokerProcess, work: Callable[[Runnel], Awaitable[None]], *, patience_s: float = 120) -> None:
    async def whole() -> None:
        async with connect(broker.kafka) as runnel:
            await work(runnel)

    asyncio.run(asyncio.wait_for(whole(), patience_s))


def test_what_is_sent_is_read_by_a_group_and_as_a_stream(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        sent = await runnel.send(name, {"id": 1}, key="k", headers={"trace": "7"})
        assert (sent.topic, sent.offset, sent.scheduled_id) == (name, 0, "")
        async with runnel.group(f"{name}.readers", name) as messages:
            async for message in messages:
                assert (message.json(), message.key, message.headers) == ({"id": 1}, b"k", {"trace": b"7"})
                break
        async for message in runnel.stream(name, partition=sent.partition):
            assert message.offset == sent.offset
            return

    on(broker, work)


def test_what_was_not_handled_is_handed_out_again(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await runnel.queue(name).create(partitions=1)
        for n in range(3):
            await runnel.send(name, n)
        with pytest.raises(ZeroDivisionError):
            await fail_at(runnel, name, 1)
        async with runnel.group(name, name) as messages:
            async for message in messages:
                assert message.offset <= 1  # what was handed out with it may come again as well
                if message.offset == 1:
                    break

    on(broker, work)


async def fail_at(runnel: Runnel, name: str, offset: int) -> None:
    async with runnel.group(name, name) as messages:
        async for message in messages:
            if message.offset == offset:
                raise ZeroDivisionError


async def fill(runnel: Runnel, name: str, count: int) -> None:
    """Messages 0, 1, ... in one partition, in one batch: all of them come with one answer."""
    await runnel.queue(name).create(partitions=1)
    await asyncio.gather(*(runnel.send(name, n) for n in range(count)))


async def committed(runnel: Runnel, group: str) -> dict[int, int]:
    return {where.partition: found.offset for where, found in (await fetch_committed(runnel.cluster, group)).items()}


def test_a_commit_in_the_loop_commits_what_was_handed_out_and_no_more(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 10)
        with pytest.raises(ZeroDivisionError):
            await commit_each_and_fail_at(runnel, name, 2)
        assert await committed(runnel, name) == {0: 2}
        async with runnel.group(name, name) as messages:
            assert (await anext(messages)).json() == 2

    on(broker, work)


async def commit_each_and_fail_at(runnel: Runnel, name: str, offset: int) -> None:
    async with runnel.group(name, name) as messages:
        async for message in messages:
            if message.offset == offset:
                raise ZeroDivisionError
            await messages.commit()


def test_the_end_of_the_block_commits_what_was_handed_out(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 6)
        async with runnel.group(name, name) as messages:
            async for message in messages:
                if message.offset == 2:
                    break
        assert await committed(runnel, name) == {0: 3}
        async with runnel.group(name, name) as messages:
            assert [message.json() for message in await some(messages, count_max=2)] == [3, 4]
        assert await committed(runnel, name) == {0: 5}

    on(broker, work)


async def some(messages: Group, count_max: int = 500) -> list[Message]:
    while not (found := await messages.poll(count_max=count_max)):
        pass
    return found


def test_who_leaves_a_loop_over_a_group_goes_on_behind_it(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 6)
        async with runnel.group(name, name) as messages:
            async for message in messages:
                if message.offset == 1:
                    break
            async for message in messages:
                assert message.json() == 2
                break
            assert [message.json() for message in await some(messages)] == [3, 4, 5]
            assert await committed(runnel, name) == {0: 3}  # what was in hand before these

    on(broker, work)


def test_an_exception_commits_nothing(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 3)
        with pytest.raises(ZeroDivisionError):
            await poll_and_fail(runnel, name)
        assert await committed(runnel, name) == {}

    on(broker, work)


async def poll_and_fail(runnel: Runnel, name: str) -> None:
    async with runnel.group(name, name) as messages:
        await some(messages)
        raise ZeroDivisionError


def test_what_was_handled_is_committed_while_more_is_waited_for(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 3)
        async with runnel.group(name, name) as messages:
            reading = asyncio.create_task(collect(messages, []))
            await until(lambda: _committed_are(runnel, name, {0: 3}))
            reading.cancel()

    on(broker, work)


async def _committed_are(runnel: Runnel, group: str, wanted: dict[int, int]) -> bool:
    return await committed(runnel, group) == wanted


async def collect(messages: Group, found: list[Message]) -> None:
    while True:
        found.append(await anext(messages))


def lively(runnel: Runnel, name: str) -> Group:
    """A member that soon hears of others."""
    settings = GroupConsumerSettings(group=GroupSettings(heartbeat_ms=50), commit_ms=1_000)
    return Group(GroupConsumer(runnel.cluster, name, [name], settings))


def test_members_that_come_in_the_middle_of_a_loop_double_and_lose_nothing(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await runnel.queue(name).create(partitions=2)
        await asyncio.gather(*(runnel.send(name, n, partition=n % 2) for n in range(20)))
        async with lively(runnel, name) as first, lively(runnel, name) as second:
            found = [await anext(first), await anext(first)]
            reading = [asyncio.create_task(collect(second, found))]
            while first.consumer.membership.joined:
                await asyncio.sleep(0.05)
            reading.append(asyncio.create_task(collect(first, found)))
            await until(lambda: _committed_are(runnel, name, {0: 10, 1: 10}))
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            assert sorted(message.json() for message in found) == list(range(20))

    on(broker, work)


def test_who_lost_its_seat_hands_out_nothing_more_of_what_it_had(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 10)
        async with lively(runnel, name) as first:
            assert [(await anext(first)).json() for _ in range(2)] == [0, 1]
            await first.consumer.membership.leave()
            with pytest.raises(UnknownMember, match="no seat"):
                await first.commit()
            async with lively(runnel, name) as second:
                assert [(await anext(second)).json() for _ in range(4)] == [0, 1, 2, 3]
            assert (await anext(first)).json() == 4

    on(broker, work)


def test_who_hears_by_a_commit_that_its_seat_is_lost_joins_again(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await fill(runnel, name, 4)
        async with runnel.group(name, name) as first:
            assert len(await some(first, count_max=2)) == 2
            left = first.consumer.membership.generation
            await first.consumer.membership.leave()
            first.consumer.membership.generation, first.consumer.membership.joined = left, True
            assert [message.json() for message in await some(first)] == [0, 1, 2, 3]

    on(broker, work)


def test_a_failure_that_was_caught_is_not_raised_again_at_the_end(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        with pytest.raises(RunnelError):
            await runnel.send(name, "x" * 3_000_000)
        assert (await runnel.send(name, "short")).offset == 0

    on(broker, work)


def test_who_is_interrupted_while_the_broker_is_gone_does_not_wait_for_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:

        async def work(runnel: Runnel) -> None:
            await runnel.send("t", "x")
            await asyncio.to_thread(process.kill)
            sending = asyncio.create_task(runnel.send("t", "y"))
            await asyncio.sleep(0)  # it is on its way now
            sending.cancel()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            on(process, work, patience_s=30)


def test_a_stream_begins_somewhere(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        with pytest.raises(InvalidConfig, match="'start' or 'end'"):
            runnel.group("g", name, begin="middle")

    on(broker, work)


def test_a_queue_that_exists_must_have_the_settings_that_are_given(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(attempts_max=3, retry_backoff_multiplier=2)
        await queue.create(attempts_max=3, retry_backoff_multiplier=2.0, lease_ms=30_000)
        with pytest.raises(QueueAlreadyExists, match=r"with attempts\.max=3 instead of 4"):
            await queue.create(attempts_max=4)
        with pytest.raises(InvalidConfig, match=r"atempts\.max"):
            await queue.create(atempts_max=3)

    on(broker, work)


def test_a_queue_is_settled(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1, retry_backoff_ms=0)
        await queue.create(partitions=1)  # it is there already
        for value in ("accepted", "released", "rejected"):
            await queue.send(value)
        for message in await queue.receive(3, wait=30):
            await {"accepted": message.accept, "released": message.release, "rejected": message.reject}[message.text]()
        [again] = await queue.receive(3, wait=30)
        assert (again.text, again.attempt) == ("released", 2)
        async with again:
            assert [message.text for message in await queue.receive(3)] == []
        assert await queue.receive(3) == []
        await until(lambda: _one_dead(runnel, name, "rejected"))

    on(broker, work)


async def _one_dead(runnel: Runnel, name: str, text: str) -> bool:
    return [letter.text for letter in await runnel.queue(name).dead_letters()] == [text]


async def _none_waits(runnel: Runnel, name: str) -> bool:
    return await runnel.schedule.count(name) == 0


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    while not await reached():
        await asyncio.sleep(0.05)


def test_a_lease_that_ended_settles_nothing(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1, retry_backoff_ms=0)
        await queue.send("x")
        [first] = await queue.receive(wait=30, lease=0.2)
        [second] = await queue.receive(wait=30)
        assert (first.attempt, second.attempt) == (1, 2)
        with pytest.raises(LeaseLost):
            await first.accept()
        await second.extend(60)
        await second.accept()
        assert await queue.receive(wait=0.1) == []

    on(broker, work)


def test_many_are_settled_at_once(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1)
        await asyncio.gather(*(queue.send(n) for n in range(200)))
        taken: list[QueueMessage] = []
        while len(taken) < 200:
            taken += await queue.receive(100, wait=30)
        await asyncio.gather(*(message.accept() for message in taken))
        assert sorted(message.json() for message in taken) == list(range(200))
        [partition] = (await queue.describe()).partitions
        assert partition.first_open == 200

    on(broker, work)


def test_what_waits_is_cancelled_or_moved_or_comes(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1)
        late = await runnel.send(name, "late", delay=3_600)
        never = await runnel.send(name, "never", delay=3_600)
        soon = await runnel.send(name, "soon", delay=0.1)
        waiting = [message.text async for message in runnel.schedule.pending(name)]
        assert waiting in (["soon", "late", "never"], ["late", "never"])  # the first may have come
        await runnel.schedule.cancel(never.scheduled_id)
        await runnel.schedule.move(late.scheduled_id, delay=0.2)
        async for message in queue.messages():
            async with message:
                if message.text == "late":
                    break
        for gone in (soon, late):
            with pytest.raises(NotPending):
                await runnel.schedule.cancel(gone.scheduled_id)
        await runnel.schedule.cancel(never.scheduled_id)  # it is cancelled
        await until(lambda: _none_waits(runnel, name))

    on(broker, work)


def test_a_message_of_one_name_is_stored_once(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        await runnel.queue(name).create(partitions=1)
        first = await runnel.send(name, "x", message_id="one")
        again = await runnel.send(name, "x", message_id="one")
        assert (first.offset, again.offset, first.duplicate, again.duplicate) == (0, 0, False, True)

    on(broker, work)


def test_it_works_without_async_from_many_threads(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka) as runnel:
        queue = runnel.queue(name)
        queue.create(partitions=1)
        threads = [threading.Thread(target=runnel.send, args=(name, n)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = []
        for message in queue.messages(batch=3):
            with message:
                seen.append(message.json())
            if len(seen) == 10:
                break
        assert sorted(seen) == list(range(10))
        with runnel.group(f"{name}.g", name) as group:
            read = []
            for read_one in group:
                read.append(read_one.json())
                if len(read) == 10:
                    break
        assert sorted(read) == list(range(10))
        with pytest.raises(NotPending):
            runnel.schedule.cancel("never-was")


def test_a_queue_keeps_to_times_and_skips_and_repairs(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1)
        await queue.send({"n": 1}, ttl=0)  # it is too late for it at once
        sent = await queue.send({"n": 2}, at=datetime.now(UTC) + timedelta(seconds=2), ttl=3_600)
        assert sent.scheduled_id
        [message] = await queue.receive(3, wait=30)
        assert message.json() == {"n": 2}
        await message.reject("no address")
        await until(lambda: _one_dead(runnel, name, '{"n":2}'))
        assert (await queue.redrive(merge={"to": "bob"})).moved == 1
        [message] = await queue.receive(3, wait=30)
        assert message.json() == {"n": 2, "to": "bob"}
        await queue.send({"n": 3})
        await queue.rewind(to="end")
        with pytest.raises(LeaseLost):
            await message.accept()
        assert await queue.receive(wait=0.1) == []

    on(broker, work)


def test_who_leaves_the_loop_gives_back_what_it_did_not_get(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1)
        await asyncio.gather(*(queue.send(n) for n in range(3)))
        async for message in queue.messages(batch=3, lease=3_600):
            await message.accept()
            break
        again: list[QueueMessage] = []
        while len(again) < 2:
            again += await queue.receive(2, wait=30)
        assert {message.attempt for message in again} <= {1, 2}  # 1: it was not leased yet

    on(broker, work)


def test_who_leaves_the_loop_without_async_gives_back_too(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka) as runnel:
        queue = runnel.queue(name)
        queue.create(partitions=1)
        for n in range(2):
            queue.send(n)
        for message in queue.messages(batch=2, lease=3_600):
            message.accept()
            break
        assert [message.attempt for message in queue.receive(2, wait=30)] in ([1], [2])  # 1: it was not leased yet


def test_messages_of_a_queue_are_chosen_without_async(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka) as runnel:
        queue = runnel.queue(name)
        queue.create(partitions=1)
        for n in range(3):
            queue.send({"n": n})
        for message in queue.messages(filter="body.n = 2"):
            with message:
                assert message.json() == {"n": 2}
                break


# --- the worker's loop


def test_the_last_error_is_the_reason_of_the_dead_letter(broker: BrokerProcess, name: str) -> None:
    async def work(runnel: Runnel) -> None:
        queue = runnel.queue(name)
        await queue.create(partitions=1, attempts_max=2, retry_backoff_ms=1)
        values = ["good", "bad", "\udc80" + "x" * 2_000, "rejected", "last"]
        for value in values:
            await queue.send(value.encode(errors="surrogatepass"))
        handled: list[str] = []
        left = 7  # deliveries: two of each that fails
        async for message in queue.messages(batch=1):
            text = (message.value or b"").decode(errors="surrogatepass")
            with suppress(LookupError):
                async with message:
                    if text == "rejected":
                        await message.reject("by hand")
                    elif text not in ("good", "last"):
                        raise LookupError(f"attempt {message.attempt} at {text}")
                    handled.append(text)
            left -= 1
            if not left:
                break
        assert handled == ["good", "rejected", "last"]
        reasons = sorted([letter.reason async for letter in dead_letters(runnel, name, 3)])
        assert reasons[1:] == ["LookupError: attempt 2 at bad", "by hand"]
        assert reasons[0] == ("LookupError: attempt 2 at \\udc80" + "x" * 2_000)[:1_000]

    on(broker, work)


async def dead_letters(runnel: Runnel, queue: str, count: int) -> AsyncIterator[DeadLetter]:
    """So many dead letters, once they are there."""
    while len(found := await runnel.queue(queue).dead_letters()) < count:
        await asyncio.sleep(0.02)
    for letter in found:
        yield letter


def test_a_release_that_was_the_last_says_why(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka) as runnel:
        queue = runnel.queue(name)
        queue.create(partitions=1, attempts_max=1)
        queue.send("a")
        [message] = queue.receive(wait=10)
        with message:
            message.release(reason="the printer burns")
        queue.send("b")
        [message] = queue.receive(wait=10)
        with pytest.raises(ValueError, match="no b"), message:
            raise ValueError("no b")
        while len(found := queue.dead_letters()) < 2:
            continue
        assert [letter.reason for letter in found] == ["the printer burns", "ValueError: no b"]
