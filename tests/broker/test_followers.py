"""What a leader tells those who follow it, what it believes them, and what it costs."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runnel.broker.fetch import ReadResult, Waits
from runnel.broker.followers import Asked, Follower, Followers, FollowerSession, Limits, resumed
from runnel.broker.partitions import Partitions
from runnel.broker.turns import TURN
from runnel.cluster.image import Broker, Change, Delta, Image, Topic
from runnel.cluster.image import Partition as Placed
from runnel.model.errors import (
    FencedEpoch,
    FetchSessionNotFound,
    InvalidFetchSessionEpoch,
    NotLeader,
    OffsetOutOfRange,
    RunnelError,
    StaleBrokerEpoch,
    UnknownEpoch,
)
from runnel.model.ids import BrokerId, Epoch, Millis, Offset, PartitionKey, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import records
from runnel.record.batch import check_produced
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.rng import SystemRng

ME, TWO, THREE, STRANGER = map(BrokerId, (1, 2, 3, 9))
TOPIC = TopicId(UUID(int=1))
LEADER_EPOCH, LIFE = Epoch(5), Epoch(7)
AT_ONCE, LONG = Limits(1_000_000, 0), Limits(1_000_000, 30_000)


class Stage:
    """Broker 1 leads partitions of one topic; brokers 2 and 3 are in their seventh life."""

    def __init__(self, partitions: Partitions, image: Image) -> None:
        self.partitions = partitions
        self.image = image
        self.fetched: list[BrokerId] = []
        self.followers = Followers(
            partitions, lambda: self.image, SystemClock(), SystemRng(),
            on_fetched=lambda _, broker: self.fetched.append(broker),
        )  # fmt: skip

    def partition(self, number: int = 0) -> Partition:
        return self.partitions.find_by_id(TOPIC, number)

    def session(self, broker: BrokerId = TWO, life: Epoch = LIFE) -> FollowerSession:
        return self.followers.open(Follower(broker, life))

    async def fetch(
        self, session: FollowerSession, *asked: Asked, forget: tuple[int, ...] = (), limits: Limits = AT_ONCE
    ) -> dict[int, ReadResult]:
        gone = [PartitionKey(TOPIC, number) for number in forget]
        answers = await self.followers.fetch(session, asked, gone, limits, Waits())
        return {key.number: result for key, result in answers}

    async def change(self, number: int, partition: Placed) -> None:
        topic = self.image.topics[TOPIC]
        partitions = (*topic.partitions[:number], partition, *topic.partitions[number + 1 :])
        delta = Delta(topics={TOPIC: Topic(TOPIC, "t", partitions)})
        before, self.image = self.image, self.image.apply(delta)
        await self.partitions.follow(Change(before, self.image, delta))


def ask(offset: int, number: int = 0, *, epoch: int = LEADER_EPOCH, last: int = -1, bytes_max: int = 100_000) -> Asked:
    return Asked(PartitionKey(TOPIC, number), Offset(offset), bytes_max, Epoch(epoch), Epoch(last))


def append(partition: Partition, *values: bytes) -> None:
    rows = [records.Record(Offset(i), 1_000, None, value, ()) for i, value in enumerate(values)]
    batch = memoryview(bytearray(records.encode(rows)))
    assert not isinstance(partition.append(batch, check_produced(batch)), asyncio.Future)


def run(folder: Path, scenario: Callable[[Stage], Coroutine[Any, Any, None]], partitions: int = 1) -> None:
    async def main() -> None:
        disk = RealDisk(str(folder))
        placed = Placed(ME, LEADER_EPOCH, Epoch(0), (ME, TWO, THREE), (ME, TWO, THREE))
        brokers = {each: Broker(each, {}, epoch=LIFE) for each in (ME, TWO, THREE, STRANGER)}
        image = Image("c").apply(Delta(topics={TOPIC: Topic(TOPIC, "t", (placed,) * partitions)}, brokers=brokers))
        config = TopicConfig(flush_mode=FlushMode.OS)
        here = Partitions(ME, config, disk=disk, files_max=100, clock=SystemClock(), on_fatal=print)
        await here.start(image)
        for partition in here:
            first = partition.append(*_first())
            if isinstance(first, asyncio.Future):
                await first  # from now on the file is open, and appends are written at once
        await asyncio.wait_for(scenario(Stage(here, image)), 60)
        await here.close()
        disk.close()

    asyncio.run(main())


def _first() -> tuple[memoryview, Any]:
    batch = memoryview(bytearray(records.encode([records.Record(Offset(0), 1_000, None, b"0", ())])))
    return batch, check_produced(batch)


def test_what_followers_ask_beyond_they_hold_and_is_committed(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        two, three = stage.session(TWO), stage.session(THREE)
        answer = await stage.fetch(two, ask(0))
        assert [row.value for row in records.decode(answer[0].records)] == [b"0"]
        assert (answer[0].high_watermark, answer[0].start_offset) == (0, 0)
        await stage.fetch(two, ask(1, last=5))
        assert stage.partition().high_watermark == 0
        await stage.fetch(three, ask(1, last=5))
        assert stage.partition().high_watermark == 1
        assert stage.fetched == [TWO, TWO, THREE]

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("who", "asked", "error"),
    [
        (TWO, ask(1, epoch=4), FencedEpoch),
        (TWO, ask(1, epoch=6), UnknownEpoch),
        (TWO, ask(1, epoch=-1), UnknownEpoch),
        (STRANGER, ask(1), UnknownEpoch),
        (TWO, ask(2), OffsetOutOfRange),
    ],
)
def test_what_is_not_checked_is_not_held(tmp_path: Path, who: BrokerId, asked: Asked, error: type[RunnelError]) -> None:
    async def scenario(stage: Stage) -> None:
        for broker in (TWO, THREE):
            await stage.fetch(stage.session(broker), ask(0))
        answer = await stage.fetch(stage.session(who), asked)
        assert isinstance(answer[0].error, error)
        assert stage.partition().progress.held_by(TWO) == 0
        if error is OffsetOutOfRange:  # tells the range
            assert (answer[0].start_offset, answer[0].high_watermark) == (0, 0)

    run(tmp_path, scenario)


def test_only_the_registered_life_of_a_broker_is_heard(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        for life in (6, 8, 2**62, -1):
            with pytest.raises(StaleBrokerEpoch, match=f"under epoch 7, not {life}"):
                await stage.fetch(stage.session(TWO, Epoch(life)), ask(1, last=5))
        with pytest.raises(StaleBrokerEpoch, match="broker 77 is not registered"):
            await stage.fetch(stage.session(BrokerId(77)), ask(1, last=5))
        assert stage.partition().progress.held_by(TWO) == -1
        await stage.fetch(stage.session(TWO), ask(1, last=5))
        assert stage.partition().progress.held_by(TWO) == 1

    run(tmp_path, scenario)


def test_a_later_life_is_heard_once_it_is_registered(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        was = stage.session()
        await stage.fetch(was, ask(1, last=5))
        reborn = Broker(TWO, {}, epoch=Epoch(LIFE + 1))
        stage.image = stage.image.apply(Delta(brokers={TWO: reborn}))
        with pytest.raises(StaleBrokerEpoch):
            await stage.fetch(was)
        await stage.fetch(stage.session(TWO, reborn.epoch), ask(0))
        assert stage.partition().progress.held_by(TWO) == 0

    run(tmp_path, scenario)


def test_a_log_that_left_ours_holds_nothing_and_is_told_where(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        append(stage.partition(), b"1")
        answer = await stage.fetch(stage.session(), ask(2, last=3))
        assert answer[0].divergence == (3, 0)  # all that we have is of epoch 5
        assert answer[0].records == b""
        assert stage.partition().progress.held_by(TWO) == -1

    run(tmp_path, scenario)


def test_what_does_not_change_is_neither_asked_nor_answered_again(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        session = stage.session()
        first = await stage.fetch(session, *[ask(1, number, last=5) for number in range(3)])
        assert sorted(first) == [0, 1, 2]  # their high watermarks are news
        assert await stage.fetch(session) == {}
        append(stage.partition(1), b"1")
        second = await stage.fetch(session)
        assert list(second) == [1]
        assert await stage.fetch(session, forget=(1,)) == {}
        append(stage.partition(1), b"2")
        assert await stage.fetch(session) == {}

    run(tmp_path, scenario, partitions=3)


def test_new_records_end_a_wait_and_a_high_watermark_is_told_with_the_next_answer(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        two, three = stage.session(TWO), stage.session(THREE)
        await stage.fetch(two, ask(1, last=5))
        waiting = asyncio.ensure_future(stage.fetch(two, limits=LONG))
        await asyncio.sleep(0)
        await stage.fetch(three, ask(1, last=5))
        assert stage.partition().high_watermark == 1
        assert not waiting.done()
        append(stage.partition(), b"1")
        answer = await waiting
        assert (len(answer[0].records) > 0, answer[0].high_watermark) == (True, 1)
        assert await stage.fetch(three, ask(2, last=5)) == {}  # that it is 1, three knows
        await stage.fetch(two, ask(2, last=5))
        later = await stage.fetch(three)
        assert (later[0].records, later[0].high_watermark) == (b"", 2)

    run(tmp_path, scenario)


def test_an_answer_is_bounded_and_who_came_too_short_comes_first(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        for number in range(3):
            append(stage.partition(number), b"x" * 1_000)
        session = stage.session()
        answers = await stage.fetch(session, *[ask(1, n, last=5) for n in range(3)], limits=Limits(1_500, 0))
        with_records = [number for number, result in answers.items() if result.records]
        assert with_records == [0, 1]  # the second is cut short by nobody: a batch is never split
        rest = await stage.fetch(session, limits=Limits(1_500, 0))
        assert [number for number, result in rest.items() if result.records] == [2]

    run(tmp_path, scenario, partitions=3)


def test_a_leader_that_steps_down_answers_those_who_wait(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        session = stage.session()
        await stage.fetch(session, ask(1, last=5))
        waiting = asyncio.ensure_future(stage.fetch(session, limits=LONG))
        await asyncio.sleep(0)
        await stage.change(0, Placed(TWO, Epoch(6), Epoch(1), (ME, TWO, THREE), (ME, TWO, THREE)))
        answer = await waiting
        assert isinstance(answer[0].error, NotLeader | FencedEpoch)

    run(tmp_path, scenario)


def test_a_wait_ends_with_the_connection_and_with_the_broker(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        session, waits = stage.session(), Waits()
        await stage.fetch(session, ask(1, last=5))
        waiting = asyncio.ensure_future(stage.followers.fetch(session, [], [], LONG, waits))
        await asyncio.sleep(0)
        waits.end()
        assert await waiting == []
        waiting = asyncio.ensure_future(stage.followers.fetch(session, [], [], LONG, Waits()))
        await asyncio.sleep(0)
        stage.followers.close()
        assert await waiting == []
        partition = stage.partition()
        stage.followers.forget(session)
        assert not partition._followers

    run(tmp_path, scenario)


def test_who_has_everything_and_is_still_there_does_not_lag(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        session = stage.session()
        await stage.fetch(session, ask(1, last=5))
        progress = stage.partition().progress
        then = SystemClock().monotonic_ms()
        session.heard_ms = Millis(then + 60_000)  # it came again, and had nothing to say
        assert progress.lags(TWO, Millis(then + 65_000), 10_000)
        await stage.followers.note_heard()
        assert not progress.lags(TWO, Millis(then + 65_000), 10_000)
        append(stage.partition(), b"1")
        session.heard_ms = Millis(then + 120_000)
        await stage.followers.note_heard()
        assert progress.lags(TWO, Millis(then + 125_000), 10_000)  # what is new, it did not ask beyond

    run(tmp_path, scenario)


def test_who_follows_much_lets_others_have_the_loop(tmp_path: Path) -> None:
    count = 3 * TURN

    async def scenario(stage: Stage) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(other())
        answers = await stage.fetch(stage.session(), *(ask(0, number) for number in range(count)))
        assert len(answers) == count
        assert turns >= 4, "while it is told, and while it is answered"
        watching.cancel()

    run(tmp_path, scenario, partitions=count)


def test_a_session_that_ends_while_it_is_told_leaves_nobody_waiting(tmp_path: Path) -> None:
    count = 2 * TURN

    async def scenario(stage: Stage) -> None:
        session = stage.session()
        fetching = asyncio.ensure_future(stage.fetch(session, *(ask(0, number) for number in range(count))))
        await asyncio.sleep(0)
        assert len(session.places) == TURN
        stage.followers.forget(session)
        with pytest.raises(FetchSessionNotFound, match="ended with its connection"):
            await fetching
        assert not any(stage.partition(number)._followers for number in range(count))

    run(tmp_path, scenario, partitions=count)


def test_a_session_goes_on_in_order_on_its_connection_alone(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        session = stage.session()
        assert resumed(session, session.id, 1) is session
        assert resumed(session, session.id, 2) is session
        with pytest.raises(InvalidFetchSessionEpoch):
            resumed(session, session.id, 2)
        for other, number in ((None, session.id), (session, session.id + 1)):
            with pytest.raises(FetchSessionNotFound):
                resumed(other, number, 3)
        session.epoch = 2**31 - 1
        assert resumed(session, session.id, 2**31 - 1).epoch == 1

    run(tmp_path, scenario)


def test_what_was_answered_is_not_answered_again_in_the_same_answer() -> None:
    """It used to be told twice while another partition was read: the follower refused it, and missed the rest."""
    session = FollowerSession(Follower(TWO, LIFE), 1)
    asked = Asked(PartitionKey(TOPIC, 0), Offset(0), 1_000, LEADER_EPOCH, Epoch(-1))
    place = session.put(asked)
    session.has_news(place)
    assert session.next_news(()) is place
    session.has_news(place)
    assert session.next_news({asked.key}) is None
    assert list(session.overdue({asked.key})) == []
    assert session.next_news(()) is place


def test_what_comes_late_over_a_connection_that_was_given_up_counts_for_nothing(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        partition = stage.partition()
        append(partition, b"1", b"2")
        given_up, present = stage.session(), stage.session()
        await stage.fetch(given_up, ask(1))
        await stage.fetch(present, ask(3))
        with pytest.raises(FetchSessionNotFound):
            await stage.fetch(given_up, ask(1))
        assert partition.progress.held_by(TWO) == 3
        stage.followers.forget(given_up)
        await stage.fetch(present)
        assert partition.progress.held_by(TWO) == 3
        stage.followers.forget(present)
        assert not stage.followers._speakers

    run(tmp_path, scenario)


def test_a_session_that_was_taken_for_the_older_one_begins_anew(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        partition = stage.partition()
        append(partition, b"1", b"2")
        present = stage.session()
        await stage.fetch(present, ask(3))
        came_late = stage.session()
        await stage.fetch(came_late, ask(1))
        with pytest.raises(FetchSessionNotFound):
            await stage.fetch(present)  # it has nothing new to say, and has to say it again
        stage.followers.forget(present)
        await stage.fetch(stage.session(), ask(3))
        assert partition.progress.held_by(TWO) == 3

    run(tmp_path, scenario)


def test_a_partition_that_goes_from_one_session_to_another_and_back_is_followed(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        one, other = stage.session(), stage.session()
        await stage.fetch(one, ask(0))
        await stage.fetch(other, ask(0))
        await stage.fetch(one, forget=(0,))
        await stage.fetch(other, forget=(0,))
        assert list(await stage.fetch(one, ask(0))) == [0]

    run(tmp_path, scenario)
