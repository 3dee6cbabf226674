"""What waits for its time, as the broker tells it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broker.serving import eventually, serve

from runnel.broker.broker import Broker
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import CountPending
from runnel.model.errors import BatchTooLarge, ClientError, InvalidRequest, NotPending
from runnel.model.schedule import DUE_MS_MAX, NEWEST, SCHEDULE_PARK, Park, Parked
from runnel.shell.clock import SystemClock


def test_what_was_sent_does_not_wait_any_more_though_its_end_is_not_kept_yet(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("t", 1)])
        now = SystemClock().wall_ms()
        later = now + 3_600_000
        parked = [Parked("soon", now + 50, None, b"x", []), Parked("later", later, None, b"y", [])]
        await broker.schedule.park("t", 0, parked)
        await eventually(lambda: sum(shard.fired for shard in broker.schedule.shards) == 1)
        told = await broker.schedule.count(CountPending("t"))
        assert (told.messages, told.next_due_ms) == (1, later)

    serve(tmp_path, scenario)


def test_who_asks_again_whether_a_message_is_cancelled_gets_the_same_answer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("t", 1)])
        now = SystemClock().wall_ms()
        later = now + 3_600_000
        await broker.schedule.park("t", 0, [Parked("a", later, None, b"x", []), Parked("b", later, None, b"y", [])])
        for _ in range(3):
            cancelled, unknown = await broker.schedule.cancel(["a", "nobody"])
            assert cancelled is None
            assert isinstance(unknown, NotPending)
        both = await asyncio.gather(*(broker.schedule.cancel(["b"]) for _ in range(5)))
        assert both == [[None]] * 5, "the first of them is under way when the others ask"
        with pytest.raises(NotPending):
            await broker.schedule.move("a", later)

    serve(tmp_path, scenario)


def test_a_message_that_came_under_the_id_since_is_what_is_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("t", 1)])
        now = SystemClock().wall_ms()
        await broker.schedule.park("t", 0, [Parked("a", now + 3_600_000, None, b"x", [])])
        assert await broker.schedule.cancel(["a"]) == [None]
        await broker.schedule.park("t", 0, [Parked("a", now, None, b"y", [])])
        await eventually(lambda: sum(shard.fired for shard in broker.schedule.shards) == 1)
        for _ in range(2):
            [error] = await broker.schedule.cancel(["a"])
            assert isinstance(error, NotPending), "it was delivered"

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"id": ""}, InvalidRequest),
        ({"id": "x" * 1_001}, InvalidRequest),  # it would hold up all that waits for its target
        ({"due_ms": DUE_MS_MAX + 1}, InvalidRequest),
        ({"due_ms": 1 << 63}, InvalidRequest),  # no index could hold it: none of the shard's replicas could follow
        ({"due_ms": -1}, InvalidRequest),
        ({"floor": NEWEST - 1}, InvalidRequest),
        ({"floor": 1 << 63}, InvalidRequest),
        ({"value": bytes(2 << 20)}, BatchTooLarge),
    ],
)
def test_the_leader_of_a_shard_parks_nothing_that_can_not_be_sent(
    tmp_path: Path, fault: dict[str, Any], error: type[ClientError]
) -> None:
    """Whoever asks it: a client can ask as brokers do."""

    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("t", 1)])
        good = Parked("good", SystemClock().wall_ms() + 50, None, b"x", [])
        await broker.schedule.park("t", 0, [replace(good, due_ms=DUE_MS_MAX, id="last")])
        topic_id = broker.image.topic_named("t").id
        with pytest.raises(error):
            await broker.calls.ask(broker.id, SCHEDULE_PARK, Park(topic_id, 0, [good, replace(good, **fault)]))
        await broker.schedule.park("t", 0, [good])
        await eventually(lambda: sum(shard.fired for shard in broker.schedule.shards) == 1)
        assert (await broker.schedule.count(CountPending("t"))).messages == 1

    serve(tmp_path, scenario)
