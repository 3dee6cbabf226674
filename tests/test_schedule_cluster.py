"""Append once and the schedule in a cluster: every broker takes every verb, and leaders may end at any time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.arrivals import Arrivals
from tests.test_replication import Brokers, cluster_of, create, eventually, run

from runnel.broker.broker import Broker
from runnel.broker.calls import Calls
from runnel.client.errors import BrokerUnreachable
from runnel.model.calls import CountPending, ListPending, Verb
from runnel.model.errors import NotLeader, NotPending, RunnelError, UnknownTopicId
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.once import WINDOW, OnceMessage
from runnel.model.schedule import NEWEST, SCHEDULE_PARK, Park, Parked
from runnel.queues.schedule import LEAD_MS
from runnel.queues.schedule_records import Kept, message_record
from runnel.record import records
from runnel.record.batch import headers
from runnel.record.records import Record
from runnel.shell.clock import SystemClock

CLOCK = SystemClock()


def message(name: str, floor: int = 0) -> OnceMessage:
    return OnceMessage(name, b"k", name.encode(), [], CLOCK.wall_ms(), floor)


def parked(name: str, due_ms: int, floor: int = -2) -> Parked:
    return Parked(name, due_ms, b"k", name.encode(), [], floor)


async def kept(brokers: Brokers, topic: str = "t", number: int = 0) -> list[Record]:
    """What a consumer reads."""
    leader = brokers.image(topic, number).leader
    partition = brokers.replica(leader, topic, number)
    found: list[Record] = []
    offset = partition.log.start_offset
    while offset < partition.high_watermark:
        data = memoryview(await partition.read(offset, 1 << 20))
        for at, header in headers(data):
            found += records.decode(data[at : at + header.size])
            offset = header.last_offset + 1  # type: ignore[assignment]
    return found


def any_of(brokers: Brokers) -> Broker:
    return next(iter(brokers.up.values())).broker


async def waiting(brokers: Brokers) -> int:
    """How many wait, as soon as somebody can say."""
    while True:
        try:
            return (await any_of(brokers).schedule.count(CountPending())).messages
        except RunnelError:
            await asyncio.sleep(0.05)


def led_by(brokers: Brokers, topic: str = "t", number: int = 0) -> int:
    return int(brokers.image(topic, number).leader)


def test_every_broker_appends_once_wherever_the_partition_is_led(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            all_three = [server.broker for server in brokers.up.values()]
            same = await asyncio.gather(*(one.once.append("t", 0, [message("a"), message("b")]) for one in all_three))
            assert len({(each[0].offset, each[1].offset) for each in same}) == 1
            assert sum(not placed.duplicate for each in same for placed in each) == 2
            many = [message(f"m{number}") for number in range(100)]
            await asyncio.gather(*(all_three[n % 3].once.append("t", 0, [one]) for n, one in enumerate(many)))
            assert sorted((one.value or b"").decode() for one in await kept(brokers)) == sorted(
                ["a", "b", *(one.id for one in many)]
            )

    run(main())


def test_what_is_sent_again_to_the_next_leader_is_found_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, min_insync_replicas="2")
            floor = await any_of(brokers).once.floor("t", 0)
            first = await any_of(brokers).once.append("t", 0, [message("a", floor), message("b", WINDOW)])
            old = led_by(brokers)
            await brokers.kill(old)
            await eventually(lambda: led_by(brokers) not in (old, -1))
            for server in brokers.up.values():
                again = await server.broker.once.append("t", 0, [message("a", floor), message("b", WINDOW)])
                assert [one.offset for one in again] == [one.offset for one in first]
                assert all(one.duplicate for one in again)
                assert 0 <= await server.broker.once.floor("t", 0) <= 2
            assert len(await kept(brokers)) == 2

    run(main())


def test_every_broker_parks_lists_cancels_and_moves(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, schedule_partitions=3) as brokers:
            await create(brokers, partitions=3)
            one, two, three = (server.broker for server in brokers.up.values())
            later = CLOCK.wall_ms() + 3_600_000
            for number in range(3):
                await one.schedule.park("t", number, [parked(f"{number}-{n}", later + n) for n in range(4)])
            assert (await two.schedule.count(CountPending())).messages == 12
            assert (await two.schedule.count(CountPending("t"))).next_due_ms == later
            listed = await three.schedule.first(ListPending(messages_max=5))
            assert [each.id for each in listed.messages] == ["0-0", "1-0", "2-0", "0-1", "1-1"]
            assert listed.more
            last = listed.messages[-1]
            rest = await three.schedule.first(ListPending(from_ms=last.due_ms, after_id=last.id))
            assert [each.id for each in rest.messages[:2]] == ["2-1", "0-2"]
            assert len(rest.messages) == 7
            errors = await three.schedule.cancel(["0-0", "2-3", "none"])
            assert [type(error) for error in errors] == [type(None), type(None), NotPending]
            await two.schedule.move("1-0", CLOCK.wall_ms())
            await eventually(lambda: brokers.replica(led_by(brokers, "t", 1), "t", 1).high_watermark == 1)
            assert [each.value for each in await kept(brokers, "t", 1)] == [b"1-0"]
            assert isinstance((await one.schedule.cancel(["1-0"]))[0], NotPending)
            while (await one.schedule.count(CountPending())).messages != 9:
                await asyncio.sleep(0.01)  # until its answer has come back

    run(main())


def test_what_waits_for_a_topic_goes_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 1, schedule_partitions=1) as brokers:
            await create(brokers, replicas=1, partitions=2)
            broker = any_of(brokers)
            later = CLOCK.wall_ms() + 3_600_000
            await broker.schedule.park("t", 0, [parked(f"a{n}", later) for n in range(2_500)])
            await broker.schedule.park("t", 1, [parked("b", later)])
            await broker.topics.delete(["t"])
            while await waiting(brokers):
                await asyncio.sleep(0.02)
            assert sum(shard.dropped for shard in broker.schedule.shards) == 2_501
            await create(brokers, replicas=1)
            assert await waiting(brokers) == 0

    run(main())


def test_a_name_of_ones_own_waits_once_and_is_sent_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 1, schedule_partitions=1) as brokers:
            await create(brokers, replicas=1)
            broker = any_of(brokers)
            due = CLOCK.wall_ms() + 3_600_000
            assert await broker.schedule.park("t", 0, [parked("mine", due, WINDOW)]) == [due]
            assert await broker.schedule.park("t", 0, [parked("mine", due + 9_999, WINDOW)]) == [due]
            await broker.schedule.move("mine", CLOCK.wall_ms() + 50)
            while await waiting(brokers):
                await asyncio.sleep(0.02)
            await broker.schedule.park("t", 0, [parked("mine", CLOCK.wall_ms(), WINDOW)])  # sent again after all
            while await waiting(brokers):
                await asyncio.sleep(0.02)
            [placed] = await broker.once.append("t", 0, [message("mine", WINDOW)])
            assert placed.duplicate
            assert [one.value for one in await kept(brokers)] == [b"mine"]

    run(main())


def test_what_is_kept_comes_though_nobody_could_say_that_it_is(tmp_path: Path) -> None:
    """As one does whose sender was told that too few replicas have it, and that more may have it yet."""

    async def main() -> None:
        async with cluster_of(tmp_path, 1, schedule_partitions=1) as brokers:
            await create(brokers, replicas=1)
            broker = any_of(brokers)
            await broker.schedule.park("t", 0, [parked("a", CLOCK.wall_ms())])
            [shard] = broker.schedule.shards
            target, now = PartitionKey(broker.image.topic_named("t").id, 0), CLOCK.wall_ms()
            await shard._book.keep([message_record(target, "b", Kept(now + 200, now, NEWEST, None, b"b", []))])
            while len(await kept(brokers)) < 2:
                await asyncio.sleep(0.02)
            assert [one.value for one in await kept(brokers)] == [b"a", b"b"]

    run(main())


def test_who_does_not_know_a_topic_yet_is_asked_again(tmp_path: Path) -> None:
    """A broker may be told to keep a message before it knows of the topic that it is for, or of the schedule's own."""

    async def main() -> None:
        async with cluster_of(tmp_path, 1) as brokers:
            await create(brokers, replicas=1)
            broker = any_of(brokers)
            request = Park(broker.image.topic_named("t").id, 0, [parked("a", CLOCK.wall_ms())])
            with pytest.raises(NotLeader):
                await broker.calls.ask(broker.id, SCHEDULE_PARK, request)
            broker.schedule._calls = FailsOnce(broker.calls, UnknownTopicId("ask for metadata"))  # type: ignore[assignment]
            await broker.schedule.park("t", 0, request.messages)
            while len(await kept(brokers)) < 1:
                await asyncio.sleep(0.02)

    run(main())


class FailsOnce:
    """The way to other brokers, on which the first question fails."""

    def __init__(self, calls: Calls, error: RunnelError) -> None:
        self._calls = calls
        self._errors = [error]

    async def ask(self, broker: BrokerId, verb: Verb[Any, Any], request: Any, **options: Any) -> Any:
        if self._errors:
            raise self._errors.pop()
        return await self._calls.ask(broker, verb, request, **options)


class LosesAnAnswer:
    """The way to other brokers; the answer to the first message that is parked gets lost, and other things happen."""

    def __init__(self, calls: Calls, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._calls = calls
        self._meanwhile = meanwhile
        self.lost = 0

    async def ask(self, broker: BrokerId, verb: Verb[Any, Any], request: Any, **options: Any) -> Any:
        answer = await self._calls.ask(broker, verb, request, **options)
        if verb is SCHEDULE_PARK and not self.lost:
            self.lost += 1
            await self._meanwhile()
            raise BrokerUnreachable("the connection broke")
        return answer


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_what_was_sent_before_its_sender_knew_that_it_is_kept_is_not_sent_again(tmp_path: Path, delay_ms: int) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            broker, left = any_of(brokers), int(delay_ms > 0)

            async def send_another() -> None:
                """Behind it, so that a front is kept that begins behind it."""
                await broker.schedule.park("t", 0, [parked("b", CLOCK.wall_ms() + 2 * LEAD_MS)])
                while await waiting(brokers) > left:
                    await asyncio.sleep(0.02)

            broker.schedule._calls = way = LosesAnAnswer(broker.calls, send_another)  # type: ignore[assignment]
            due = CLOCK.wall_ms() + delay_ms
            assert await broker.schedule.park("t", 0, [parked("a", due)]) == [due]
            assert way.lost == 1
            while await waiting(brokers) > left:
                await asyncio.sleep(0.02)
            assert [one.value for one in await kept(brokers)] == [b"a", b"b"][left:]
            assert (await broker.schedule.cancel(["a"]) == [None]) is (delay_ms > 0)

    run(main())


def test_leaders_end_while_messages_wait_and_come_due(tmp_path: Path) -> None:
    async def main(stack: ExitStack) -> None:
        async with cluster_of(tmp_path, schedule_partitions=2) as brokers:
            await create(brokers, partitions=4, min_insync_replicas="2")
            addresses = [str(server.kafka) for server in brokers.up.values()]
            reader = stack.enter_context(Arrivals(addresses, "t", 4).watched())
            begin = CLOCK.wall_ms() + 1_500
            due = {f"m{n}": begin + n * 7919 % 6_000 for n in range(3_000)}
            await _park_all(brokers, due)
            changes = asyncio.ensure_future(_change_some(brokers, due))
            for number in (1, 2, 3):
                await asyncio.sleep(1.0)
                await brokers.kill(number)
                await asyncio.sleep(0.5)
                await brokers.start(number)
            cancelled, unsure = await changes
            while await waiting(brokers):
                await asyncio.sleep(0.05)
            found = [one for number in range(4) for one in await kept(brokers, "t", number)]
            await eventually(lambda: len(reader.came) >= len(found))
        names = [(one.value or b"").decode() for one in found]
        assert len(names) == len(set(names)), "something came twice"
        assert due.keys() - set(names) - cancelled <= unsure, "something was lost"
        assert not set(names) & cancelled, "something came that was cancelled"
        assert [one for one in reader.came if one.at_ms < due[one.value]] == [], "something came early"
        assert sorted(each.value for each in reader.came) == sorted(names), "somebody read something else"

    with ExitStack() as stack:  # the reader ends after the brokers: they run in this thread, and it waits for them
        run(main(stack))


async def _park_all(brokers: Brokers, due: dict[str, int]) -> None:
    topic: TopicId = any_of(brokers).image.topic_named("t").id
    names = list(due)
    work: list[Any] = []
    for at in range(0, len(names), 100):
        broker = brokers.up[1 + at // 100 % 3].broker
        rows = [parked(name, due[name]) for name in names[at : at + 100]]
        work.append(broker.schedule.park(topic, at // 100 % 4, rows))
    await asyncio.gather(*work)


async def _change_some(brokers: Brokers, due: dict[str, int]) -> tuple[set[str], set[str]]:
    """Cancel and move: what was cancelled for certain, and of what nobody could say whether it was changed."""
    cancelled: set[str] = set()
    unsure: set[str] = set()
    for n, name in enumerate(list(due)[::20]):
        await asyncio.sleep(0.02)
        try:
            if n % 2:
                [error] = await any_of(brokers).schedule.cancel([name])
                if error is None:
                    cancelled.add(name)
                elif not isinstance(error, NotPending):
                    unsure.add(name)
            else:
                later = max(due[name], CLOCK.wall_ms()) + 200
                await any_of(brokers).schedule.move(name, later)
                due[name] = later
        except (RunnelError, StopIteration):
            unsure.add(name)
    return cancelled, unsure
