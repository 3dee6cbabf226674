"""Leaders ask for the ISRs that their partitions should have, and ask again until the image shows what became of it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from runnel.broker.isr import InSync
from runnel.broker.partitions import FOLDER, Partitions
from runnel.cluster.image import Broker, Change, Delta, Image, Topic
from runnel.cluster.image import Partition as Placed
from runnel.cluster.isr_changes import IsrChange
from runnel.model.errors import FencedEpoch, IneligibleReplica, RequestTimedOut, RunnelError, StalePartitionEpoch
from runnel.model.ids import NO_EPOCH, BrokerId, Epoch, Millis, Offset, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.replica.partition import Partition
from runnel.shell.disk import RealDisk

ME, TWO, THREE = map(BrokerId, (1, 2, 3))
TOPIC, OTHER_TOPIC = TopicId(UUID(int=1)), TopicId(UUID(int=2))
LIFE = Epoch(7)
LAG_MS = 100


class HandClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def monotonic_ms(self) -> Millis:
        return Millis(self.now)

    def wall_ms(self) -> Millis:
        return Millis(self.now)


class Stage:
    """Broker 1 leads a partition; what the controller answers, the test says."""

    def __init__(self, here: Partitions, image: Image, clock: HandClock) -> None:
        self.clock = clock
        self.image = image
        self.partitions = here
        self.asked: list[list[IsrChange]] = []
        self.says: Callable[[IsrChange], Placed | RunnelError] | RunnelError = RequestTimedOut("not yet")
        self.in_sync = InSync(
            ME, here, lambda: self.image, self._answer, clock, lag_ms=LAG_MS, on_look=_nothing, on_fatal=_fail
        )

    async def _answer(self, changes: Sequence[IsrChange]) -> list[Placed | RunnelError]:
        self.asked.append(list(changes))
        await asyncio.sleep(0)
        if isinstance(self.says, RunnelError):
            raise self.says
        return [self.says(change) for change in changes]

    @property
    def partition(self) -> Partition:
        return self.partitions.find_by_id(TOPIC, 0)

    def fetched(self, follower: BrokerId, offset: int, life: Epoch = LIFE) -> None:
        self.partition.fetched_by(follower, life, Offset(offset))
        self.in_sync.notice(self.partition, follower)

    async def show(self, *isr: BrokerId) -> None:
        """The image shows another ISR."""
        was = self.image.topics[TOPIC].partitions[0]
        now = Placed(was.leader, was.leader_epoch, Epoch(was.epoch + 1), was.replicas, isr)
        delta = Delta(topics={TOPIC: Topic(TOPIC, "t", (now,))})
        before, self.image = self.image, self.image.apply(delta)
        await self.partitions.follow(Change(before, self.image, delta))

    async def wait_for(self, times: int) -> list[IsrChange]:
        """What was asked for at the latest, once so many requests were made."""
        while len(self.asked) < times:
            await asyncio.sleep(0.001)
        return self.asked[-1]


def run(folder: Path, scenario: Callable[[Stage], Coroutine[Any, Any, None]], *isr: BrokerId) -> None:
    async def main() -> None:
        disk, clock = RealDisk(str(folder)), HandClock()
        placed = Placed(ME, Epoch(5), Epoch(0), (ME, TWO, THREE), isr)
        brokers = {each: Broker(each, {}, epoch=LIFE) for each in (ME, TWO, THREE)}
        image = Image("c").apply(Delta(topics={TOPIC: Topic(TOPIC, "t", (placed,))}, brokers=brokers))
        here = Partitions(ME, TopicConfig(flush_mode=FlushMode.OS), disk=disk, files_max=9, clock=clock, on_fatal=print)
        await here.start(image)
        stage = Stage(here, image, clock)
        stage.in_sync.start()
        await asyncio.wait_for(scenario(stage), 60)
        await stage.in_sync.stop()
        await here.close()
        disk.close()

    asyncio.run(main())


def members(change: IsrChange) -> list[BrokerId]:
    return [broker for broker, _ in change.isr]


def test_who_has_caught_up_is_proposed_at_once_in_the_life_that_was_seen(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stage.fetched(TWO, 0)
        [change] = await stage.wait_for(1)
        assert change.isr == ((ME, NO_EPOCH), (TWO, LIFE))
        assert (change.key.number, change.leader_epoch, change.partition_epoch) == (0, 5, 0)

    run(tmp_path, scenario, ME)


def test_who_does_not_serve_in_that_life_is_not_proposed(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stage.fetched(TWO, 0, Epoch(8))  # the image does not know that life yet
        stage.fetched(THREE, 0)
        [change] = await stage.wait_for(1)
        assert members(change) == [ME, THREE]

    run(tmp_path, scenario, ME)


def test_who_lags_is_left_out_and_who_does_not_stays(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stage.fetched(TWO, 0)
        stage.clock.now += LAG_MS + 1
        stage.fetched(THREE, 0)
        [change] = await stage.wait_for(1)
        assert members(change) == [ME, THREE]
        assert set(stage.partition.progress.maximal_isr) == {ME, TWO, THREE}  # until the image shows it
        await stage.show(ME, THREE)
        assert set(stage.partition.progress.maximal_isr) == {ME, THREE}

    run(tmp_path, scenario, ME, TWO, THREE)


def test_what_has_no_outcome_is_asked_for_again_just_so_until_the_image_shows_it(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stage.fetched(TWO, 0)
        await stage.wait_for(2)
        stage.says = lambda change: StalePartitionEpoch("done before")  # an earlier try got through
        await stage.wait_for(3)
        stage.says = lambda change: FencedEpoch("another leads")
        await stage.wait_for(4)
        assert stage.asked == [stage.asked[0]] * len(stage.asked)
        assert set(stage.partition.progress.maximal_isr) == {ME, TWO}
        await stage.show(ME, TWO)
        count = len(stage.asked)
        assert stage.partition.progress.proposed is None
        await asyncio.sleep(0.3)
        assert len(stage.asked) <= count + 1  # the one that was under way

    run(tmp_path, scenario, ME)


def test_who_is_refused_does_not_count_any_more(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stage.says = lambda change: IneligibleReplica("it is gone")
        stage.fetched(TWO, 0)
        await stage.wait_for(1)
        while stage.partition.progress.proposed is not None:
            await asyncio.sleep(0.001)
        assert set(stage.partition.progress.maximal_isr) == {ME}

    run(tmp_path, scenario, ME)


def test_a_leader_that_can_not_be_trusted_asks_others_to_lead(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stage.in_sync.resign(stage.partition)
        [change] = await stage.wait_for(1)
        assert members(change) == [TWO]

    run(tmp_path, scenario, ME, TWO)


def test_what_can_not_be_opened_is_given_to_others(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        obstacle = tmp_path / FOLDER / f"{OTHER_TOPIC}-0"
        obstacle.write_text("a file where a folder should be")
        placed = Placed(ME, Epoch(2), Epoch(4), (ME, TWO), (ME, TWO))
        delta = Delta(topics={OTHER_TOPIC: Topic(OTHER_TOPIC, "bad", (placed,))})
        before, stage.image = stage.image, stage.image.apply(delta)
        await stage.partitions.follow(Change(before, stage.image, delta))
        [change] = await stage.wait_for(1)
        assert (change.key.topic_id, change.leader_epoch, change.partition_epoch) == (OTHER_TOPIC, 2, 4)
        assert members(change) == [TWO]

    run(tmp_path, scenario, ME)


def _fail(error: BaseException) -> None:
    raise AssertionError(error)


async def _nothing() -> None:
    """Nobody was heard of."""
