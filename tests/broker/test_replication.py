"""A follower and its leader's answers: what is asked, what is told, and what happens to one partition in trouble."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runnel.broker import replication
from runnel.broker.partitions import Partitions
from runnel.broker.peers import Peers
from runnel.broker.replication import Replication, Settings
from runnel.broker.throttle import Throttle
from runnel.client.errors import BrokerUnreachable
from runnel.cluster.image import Broker, Change, Delta, Image, Overrides, Topic
from runnel.cluster.image import Partition as Placed
from runnel.model.errors import RunnelError
from runnel.model.ids import BrokerId, Epoch, Offset, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import records
from runnel.record.batch import patch
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.rng import SystemRng
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.error_codes import ErrorCode

ME, LEADER, OTHER = map(BrokerId, (1, 2, 3))
TOPIC = TopicId(UUID(int=1))
LIFE = Epoch(7)

Data = m.FetchResponse.PartitionData
Script = Callable[[m.FetchRequest], "list[Data] | RunnelError"]


class Leader(Peers):
    """Answers fetches as the test says, one after the other; then nothing for ever."""

    def __init__(self) -> None:
        super().__init__(ME)
        self.requests: list[m.FetchRequest] = []
        self.asked_at: list[BrokerId] = []
        self.answers: asyncio.Queue[list[Data] | RunnelError] = asyncio.Queue()
        self.session_id = 11

    async def ask(self, broker: BrokerId, api: Any, request: Any, reply: Any, **_: Any) -> Any:
        self.requests.append(request)
        self.asked_at.append(broker)
        answer = await self.answers.get()
        if isinstance(answer, RunnelError):
            raise answer
        topics = [m.FetchResponse.FetchableTopicResponse(topic_id=TOPIC, partitions=answer)] if answer else []
        return m.FetchResponse(session_id=self.session_id, responses=topics)

    async def answer(self, *data: Data) -> m.FetchRequest:
        """Answer what is asked, and return what is asked next."""
        return await self._next(list(data))

    async def fail(self, error: RunnelError) -> m.FetchRequest:
        return await self._next(error)

    async def _next(self, answer: "list[Data] | RunnelError") -> m.FetchRequest:
        await self.request(len(self.requests) or 1)
        count = len(self.requests)
        self.answers.put_nowait(answer)
        return await self.request(count + 1)

    async def request(self, number: int) -> m.FetchRequest:
        while len(self.requests) < number:
            await asyncio.sleep(0.001)
        return self.requests[number - 1]


class Stage:
    def __init__(self, partitions: Partitions, image: Image) -> None:
        self.partitions = partitions
        self.image = image
        self.leader = Leader()
        throttle = Throttle(ME, lambda: self.image, SystemClock())
        self.replication = Replication(ME, lambda: LIFE, self.leader, Settings(), throttle, SystemRng(), _fail)

    def replica(self, number: int = 0) -> Partition:
        return self.partitions.find_readable_by_id(TOPIC, number)

    async def change(self, delta: Delta) -> None:
        before, self.image = self.image, self.image.apply(delta)
        self.replication.follow(await self.partitions.follow(Change(before, self.image, delta)))


def placed(leader: BrokerId = LEADER, epoch: int = 5, *, isr: tuple[BrokerId, ...] = (LEADER, ME, OTHER)) -> Placed:
    return Placed(leader, Epoch(epoch), Epoch(epoch), (LEADER, ME, OTHER), isr)


def run(
    folder: Path, scenario: Callable[[Stage], Coroutine[Any, Any, None]], partitions: int = 1, throttled: str = ""
) -> None:
    async def main() -> None:
        disk = RealDisk(str(folder))
        config = {"follower.replication.throttled.replicas": throttled} if throttled else {}
        topic = Topic(TOPIC, "t", (placed(isr=(LEADER,)),) * partitions, config)
        brokers = {each: Broker(each, {}, epoch=LIFE) for each in (ME, LEADER, OTHER)}
        image = Image("c").apply(Delta(topics={TOPIC: topic}, brokers=brokers))
        defaults = TopicConfig(flush_mode=FlushMode.OS)
        here = Partitions(ME, defaults, disk=disk, files_max=9, clock=SystemClock(), on_fatal=print)
        await here.start(image)
        stage = Stage(here, image)
        stage.replication.follow(here)
        await asyncio.wait_for(scenario(stage), 60)
        await stage.replication.close()
        await here.close()
        disk.close()

    asyncio.run(main())


def batch(offset: int, value: bytes = b"v", epoch: int = 5) -> bytes:
    data = bytearray(records.encode([records.Record(Offset(0), 1_000, None, value, ())]))
    patch(data, offset, epoch)
    return bytes(data)


def news(number: int = 0, *, high: int = 0, data: bytes = b"", error: int = 0) -> Data:
    return Data(
        partition_index=number, high_watermark=high, last_stable_offset=high, log_start_offset=0, records=data,
        error_code=error,
    )  # fmt: skip


def asked(request: m.FetchRequest) -> dict[int, tuple[int, int, int]]:
    return {
        p.partition: (p.fetch_offset, p.current_leader_epoch, p.last_fetched_epoch)
        for topic in request.topics
        for p in topic.partitions
    }


def forgotten(request: m.FetchRequest) -> list[int]:
    return [number for topic in request.forgotten_topics_data for number in topic.partitions]


def test_a_follower_says_once_what_it_follows_then_only_what_changed(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        first = await stage.leader.request(1)
        assert (first.session_id, first.session_epoch) == (0, 0)
        assert first.replica_state is not None
        assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (ME, LIFE)
        assert asked(first) == {0: (0, 5, -1), 1: (0, 5, -1), 2: (0, 5, -1)}
        second = await stage.leader.answer(news(1, data=batch(0), high=1))
        assert (second.session_id, second.session_epoch) == (11, 1)
        assert asked(second) == {1: (1, 5, 5)}
        assert stage.replica(1).high_watermark == 1
        third = await stage.leader.answer()
        assert (third.session_epoch, asked(third), forgotten(third)) == (2, {}, [])

    run(tmp_path, scenario, partitions=3)


def test_trouble_with_one_partition_rests_that_one_alone(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        error = news(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        second = await stage.leader.answer(error, news(1, data=batch(0)))
        assert (asked(second), forgotten(second)) == ({1: (1, 5, 5)}, [0])
        request = second
        while not asked(request):  # after a while it is asked for again
            request = await stage.leader.answer()
            await asyncio.sleep(0.02)
        assert set(asked(request)) <= {0, 1}

    run(tmp_path, scenario, partitions=2)


def test_what_arrives_damaged_is_not_kept_and_fetched_again(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        rotten = bytearray(batch(0))
        rotten[-1] ^= 1
        second = await stage.leader.answer(news(data=bytes(rotten)))
        assert forgotten(second) == [0]
        assert stage.replica().log.end_offset == 0

    run(tmp_path, scenario, partitions=2)


def test_a_lost_connection_begins_a_session_anew(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.leader.answer(news(data=batch(0)))
        again = await stage.leader.fail(BrokerUnreachable("it broke"))
        assert (again.session_id, again.session_epoch) == (0, 0)
        assert asked(again) == {0: (1, 5, 5)}

    run(tmp_path, scenario)


def test_a_new_leader_is_followed_in_its_epoch(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.leader.request(1)
        await stage.change(Delta(topics={TOPIC: Topic(TOPIC, "t", (placed(OTHER, 6),))}))
        request = await stage.leader.request(2)
        assert stage.leader.asked_at == [LEADER, OTHER]
        assert asked(request) == {0: (0, 6, -1)}

    run(tmp_path, scenario)


def test_a_leader_follows_nobody(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.leader.request(1)
        await stage.change(Delta(topics={TOPIC: Topic(TOPIC, "t", (placed(ME, 6),))}))
        stage.leader.answers.put_nowait([news(data=batch(0))])
        await asyncio.sleep(0.05)
        assert len(stage.leader.requests) == 1
        assert stage.partitions.find_by_id(TOPIC, 0).log.end_offset == 0

    run(tmp_path, scenario)


def test_what_is_too_much_for_one_request_goes_into_the_next_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "ASKED_MAX", 2)

    async def scenario(stage: Stage) -> None:
        first = await stage.leader.request(1)
        second = await stage.leader.answer()
        third = await stage.leader.answer()
        told = [(len(asked(each)), each.session_epoch, each.max_wait_ms) for each in (first, second, third)]
        assert told == [(2, 0, 0), (2, 1, 0), (1, 2, Settings().wait_ms)]
        assert sorted([*asked(first), *asked(second), *asked(third)]) == [0, 1, 2, 3, 4]
        fourth = await stage.leader.answer(news(3, data=batch(0)))
        assert (asked(fourth), fourth.max_wait_ms) == ({3: (1, 5, 5)}, Settings().wait_ms)

    run(tmp_path, scenario, partitions=5)


def test_what_is_throttled_is_left_out_while_its_bytes_are_used_up(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        rate = {"follower.replication.throttled.rate": "1000"}
        await stage.change(Delta(configs={"cluster": Overrides(rate)}))
        big = batch(0, b"x" * 3_000)
        second = await stage.leader.answer(news(0, data=big), news(1, data=big))
        assert asked(second) == {1: (1, 5, 5)}  # only partition 0 is named in the topic's setting
        assert forgotten(second) == [0]

    run(tmp_path, scenario, partitions=2, throttled="0:1")


def test_what_is_in_sync_is_not_throttled(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.change(
            Delta(
                configs={"cluster": Overrides({"follower.replication.throttled.rate": "1000"})},
                topics={TOPIC: Topic(TOPIC, "t", (placed(epoch=6),), stage.image.topics[TOPIC].config)},
            )
        )
        await stage.leader.answer()
        third = await stage.leader.answer(news(0, data=batch(0, b"x" * 3_000, epoch=6)))
        assert asked(third) == {0: (1, 6, 6)}

    run(tmp_path, scenario, throttled="*")


def _fail(error: BaseException) -> None:
    raise AssertionError(error)
