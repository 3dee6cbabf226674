"""What leaves a queue arrives once, wherever its target is, and holds up nothing else."""

from pathlib import Path

from tests.broker.serving import eventually, serve
from tests.broker.test_deliveries import make, take

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.cluster.topic_rules import NewTopic
from runnel.model import headers as h
from runnel.model.calls import Outgoing, Receive, Send, Settle, Settlement
from runnel.model.reading import ReadPartition


async def reject(broker: Broker, queue: str, count: int) -> None:
    got = (await broker.queues.receive(Receive(queue, count), Waits())).messages
    assert len(got) == count
    rejected = [Settlement(message.receipt, "reject", reason=f"r{message.offset}") for message in got]
    assert not any((await broker.queues.settle(Settle(queue, rejected))).failures)


async def letters(broker: Broker, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Value and reason of the dead letters, once there are so many."""
    await eventually(
        lambda: topic in broker.image.names and broker.partitions.find(topic, 0).last_stable_offset >= count
    )
    read = await broker.read(ReadPartition(broker.image.names[topic], 0), Waits())
    return [(message.value, dict(message.headers)[h.DEAD_REASON]) for message in read.messages]


def test_many_leave_together_and_each_arrives_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 60)
        await reject(broker, "q", 20)
        await reject(broker, "q", 40)
        found = await letters(broker, "q.dead", 60)
        assert sorted(found) == sorted((b"%d" % number, b"r%d" % number) for number in range(60))
        [outlet] = broker.deliveries
        await eventually(lambda: outlet.is_idle)  # and nothing is left to do

    serve(tmp_path, scenario)


def test_a_target_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 2)
        await reject(broker, "q", 1)
        assert await letters(broker, "q.dead", 1) == [(b"0", b"r0")]
        await broker.delete_topics(["q.dead"])
        await reject(broker, "q", 1)
        assert await letters(broker, "q.dead", 1) == [(b"1", b"r1")]

    serve(tmp_path, scenario)


def test_without_a_topic_for_them_dead_messages_are_dropped(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 2, dead_letter_topic="")
        await reject(broker, "q", 1)
        assert await take(broker, "q", 5) == [(b"1", 1)]
        [outlet] = broker.deliveries
        await eventually(lambda: outlet._leaver.is_idle)
        assert "q.dead" not in broker.image.names

    serve(tmp_path, scenario)


def test_a_message_as_large_as_its_topic_allows_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.create_topics([NewTopic("q.dead", 1, config={"max.message.bytes": "200"})])
        await make(broker, "q")
        await broker.queues.send(Send("q", [Outgoing(b"x" * 1_000), Outgoing(b"small")]))
        await reject(broker, "q", 2)
        assert [len(value or b"") for value, _ in await letters(broker, "q.dead", 2)] == [1_000, 5]

    serve(tmp_path, scenario)
