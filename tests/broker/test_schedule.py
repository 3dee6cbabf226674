"""What waits for its time, as the broker tells it."""

from pathlib import Path

from tests.broker.serving import eventually, serve

from runnel.broker.broker import Broker
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import CountPending
from runnel.model.schedule import Parked
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
