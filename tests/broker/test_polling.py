"""A poll says what is there, or waits for it; it answers once and leaves nothing behind."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.broker.test_key_index import append, covered, indexed

from runnel.broker.fetch import Waits
from runnel.broker.key_index import KeyIndex
from runnel.broker.key_indexes import KeyIndexes
from runnel.broker.mail import Mails
from runnel.broker.polling import AtOnce, Poll, Polls, asked_of
from runnel.cluster.image import Topic
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.replica.partition import Partition, Role
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]


class Receiver:
    def __init__(self) -> None:
        self.told: list[object] = []
        self.done = asyncio.Event()

    def received(self, mails: Mails) -> None:
        self._tell([letter.offset for letter in mails.letters])

    def failed(self, error: RunnelError) -> None:
        self._tell(type(error))

    def ask_otherwise(self, left_s: float) -> None:
        self._tell("otherwise")

    def _tell(self, what: object) -> None:
        self.told.append(what)
        self.done.set()


class Indexes:
    """The one index there is."""

    def __init__(self, index: KeyIndex) -> None:
        self.index = index
        self.topic: Topic | None = cast(Topic, _Topic())

    def at(self, number: int) -> KeyIndex:
        return self.index


class _Topic:
    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.partitions = [None]


class Door:
    """Where polls begin."""

    def __init__(self, index: KeyIndex) -> None:
        self.index = index
        self.indexes = Indexes(index)
        self.waits = Waits()
        self.polls = Polls(AtOnce(cast(KeyIndexes, self.indexes), index._messages))

    def poll(self, user: str, position: int, wait_s: float = 30.0, receiver: Receiver | None = None) -> Receiver:
        receiver = receiver or Receiver()
        assert self.indexes.topic is not None
        asked = asked_of(self.indexes.topic, user, 10, 10_000)
        deadline = asyncio.get_running_loop().time() + wait_s
        Poll(self.polls, asked, self.index, position, deadline, self.waits, receiver).begin()
        return receiver

    def check_nobody_is_left(self) -> None:
        assert not self.index._waiters
        assert not self.waits._waiting
        assert not any(self.polls.deadlines._at.values())


@asynccontextmanager
async def door(open_partition: Any, disk: GatedDisk) -> AsyncIterator[tuple[Door, Partition]]:
    partition = await open_partition()
    async with indexed(partition, disk) as index:
        append(partition, [b"a", b"b", b"a"])
        await covered(index)
        async with asyncio.timeout(30):
            yield Door(index), partition


def test_what_is_there_is_said_at_once(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, _):
            assert here.poll("a", 0).told == [[0, 2]]
            assert here.poll("a", 1).told == [[2]]
            assert here.poll("a", 3, wait_s=0).told == [[]]
            here.check_nobody_is_left()

    run(scenario)


def test_what_was_trimmed_is_said_no_more(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, partition):
            assert here.poll("a", 0).told == [[0, 2]]
            await partition.log.advance_start(1)
            assert here.poll("a", 0).told == [[2]]
            await partition.log.advance_start(3)
            assert here.poll("a", 0, wait_s=0).told == [[]]
            assert here.poll("b", 1, wait_s=0).told == [[]]
            here.check_nobody_is_left()

    run(scenario)


def test_who_waits_is_told_of_its_own_messages_in_one_go(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, partition):
            mine, others = here.poll("a", 3), here.poll("c", 3)
            append(partition, [b"b", b"a", b"a"])
            await mine.done.wait()
            assert mine.told == [[4, 5]]
            append(partition, [b"a", b"c"])
            await others.done.wait()
            assert others.told == [[7]]
            assert mine.told == [[4, 5]], "a poll answers once"
            here.check_nobody_is_left()

    run(scenario)


def test_whoever_wakes_it_for_nothing_does_not_end_it(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, partition):
            mine = here.poll("a", 3)
            for _ in range(3):
                here.index.wake_all()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert mine.told == []
            append(partition, [b"a"])
            await mine.done.wait()
            assert mine.told == [[3]]

    run(scenario)


def test_it_ends_with_its_time_and_with_its_client(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, _):
            short, long = here.poll("a", 3, wait_s=0.01), here.poll("a", 3)
            await short.done.wait()
            assert (short.told, long.told) == ([[]], [])
            here.waits.end()
            await long.done.wait()
            assert long.told == [[]]
            here.check_nobody_is_left()

    run(scenario)


def test_all_end_when_the_broker_stops(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, _):
            waiting = [here.poll("a", 3), here.poll("b", 3, wait_s=60)]
            here.polls.close()
            for one in waiting:
                await one.done.wait()
                assert one.told == [[]]
            assert here.poll("a", 3).told == [[]], "nobody waits any more"
            here.check_nobody_is_left()

    run(scenario)


class Broken(Receiver):
    def received(self, mails: Mails) -> None:
        raise ZeroDivisionError


def test_one_that_fails_keeps_no_other_from_its_answer(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, partition):
            seen: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
            here.poll("a", 3, receiver=Broken())
            after = [here.poll("a", 3), here.poll("a", 3)]
            append(partition, [b"a"])
            for one in after:
                await one.done.wait()
                assert one.told == [[3]]
            assert [type(error) for error in seen] == [ZeroDivisionError]

    run(scenario)


@pytest.mark.parametrize("gone", [True, False])
def test_a_topic_that_was_made_again_is_not_the_one_that_was_asked_about(run: Run, gone: bool) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, _):
            waiting = here.poll("a", 3)
            here.indexes.topic = None if gone else cast(Topic, _Topic())
            here.index.wake_all()
            await waiting.done.wait()
            assert waiting.told == [InvalidRequest]
            here.check_nobody_is_left()

    run(scenario)


def test_what_is_not_in_memory_is_asked_for_otherwise(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        async with door(open_partition, disk) as (here, partition):
            waiting = here.poll("a", 3)
            here.index._messages.forget(partition)
            assert here.poll("a", 0).told == ["otherwise"]
            partition.role = Role.FOLLOWER
            here.index.wake_all()
            await waiting.done.wait()
            assert waiting.told == ["otherwise"]
            here.check_nobody_is_left()

    run(scenario)
