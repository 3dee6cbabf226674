"""What leaves a queue arrives once, wherever its target is, and holds up nothing else."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.broker.serving import eventually, serve
from tests.broker.test_deliveries import make, take

from runnel.broker import redrive
from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.cluster.topic_rules import NewTopic
from runnel.model import headers as h
from runnel.model.calls import (
    QUEUE_CREATE,
    CreateQueue,
    DropDead,
    ListDead,
    ListDeadQueues,
    MarkAway,
    NamedQueue,
    Outgoing,
    Place,
    Receive,
    Redrive,
    Send,
    Settle,
    Settlement,
)
from runnel.model.errors import PolicyViolation, RunnelError
from runnel.model.ids import Offset, PartitionKey
from runnel.model.reading import ReadPartition

LONG_S = 30.0
LEASE_MS = 5_000  # an outlet looks at leases when they would end: before, it is not idle


async def reject(broker: Broker, queue: str, count: int) -> None:
    got = (await broker.queues.receive(Receive(queue, count, lease_ms=LEASE_MS), Waits())).messages
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
        await broker.topics.delete(["q.dead"])
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
        await broker.topics.create([NewTopic("q.dead", 1, config={"max.message.bytes": "200"})])
        await make(broker, "q")
        await broker.queues.send(Send("q", [Outgoing(b"x" * 1_000), Outgoing(b"small")]))
        await reject(broker, "q", 2)
        assert [len(value or b"") for value, _ in await letters(broker, "q.dead", 2)] == [1_000, 5]

    serve(tmp_path, scenario)


def test_queues_that_share_a_topic_of_dead_letters_see_and_send_back_their_own(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for queue in ("a", "b"):
            await make(broker, queue, 2, dead_letter_topic="graves")
            await reject(broker, queue, 2)
        await letters(broker, "graves", 4)
        listed = (await broker.redrives.list(ListDead("a"))).letters
        assert [letter.origin_topic for letter in listed] == ["a", "a"]
        with pytest.raises(PolicyViolation, match="queue 'b'"):
            await broker.redrives.drop(DropDead("a"))
        await broker.redrives.start(Redrive("a"))
        assert len(await take(broker, "a", 5, wait_ms=60_000)) == 2
        assert await take(broker, "b", 5) == []
        assert len((await broker.redrives.list(ListDead("b"))).letters) == 2

    serve(tmp_path, scenario)


def test_each_queue_counts_the_letters_of_its_own_that_there_are(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        async def counts() -> dict[str, int]:
            listed = (await broker.graves.queues(ListDeadQueues())).queues
            here = await broker.graves.led_here(LONG_S)
            assert {queue: count for queue, count in here.items() if count} == {
                each.queue: each.messages for each in listed
            }
            for each in listed:
                assert await broker.graves.count(each.queue) == each.messages
                assert (await broker.queues.describe(NamedQueue(each.queue))).dead_letters == each.messages
            return {each.queue: each.messages for each in listed}

        for queue, topic in (("a", "graves"), ("b", "graves"), ("own", "own.dead")):
            await make(broker, queue, 3, dead_letter_topic=topic)
        await make(broker, "idle")
        assert await counts() == {}
        for n, queue in enumerate(("a", "b", "a")):
            await reject(broker, queue, 1)
            await letters(broker, "graves", n + 1)  # in this order
        await reject(broker, "own", 1)
        await letters(broker, "own.dead", 1)
        assert await counts() == {"a": 2, "b": 1, "own": 1}
        await reject(broker, "b", 1)  # what comes later is read on
        await letters(broker, "graves", 4)
        assert await counts() == {"a": 2, "b": 2, "own": 1}
        await broker.redrives.mark(MarkAway("a", 0, [0]))
        for _ in range(2):  # the second time nothing is open that knows
            assert await counts() == {"a": 1, "b": 2, "own": 1}
            broker.redrives.sweep()
        await broker.redrives.mark(MarkAway("a", 0, [2]))  # it is opened again
        broker.redrives.sweep()
        assert await counts() == {"b": 2, "own": 1}
        key = PartitionKey(broker.image.topic_named("graves").id, 0)
        await broker.partitions.find_by_id(*key).log.advance_start(Offset(2))  # as retention does
        assert await counts() == {"b": 1, "own": 1}

    serve(tmp_path, scenario)


def test_dead_letters_are_dropped_for_good(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 3)
        await reject(broker, "q", 3)
        await letters(broker, "q.dead", 3)
        assert (await broker.redrives.drop(DropDead("q", [Place(0, 0)], dry_run=True))).messages == 1
        assert (await broker.redrives.drop(DropDead("q", [Place(0, 0)]))).messages == 1
        assert len((await broker.redrives.list(ListDead("q"))).letters) == 2
        assert (await broker.redrives.drop(DropDead("q"))).messages == 2
        assert (await broker.redrives.list(ListDead("q"))).letters == []

    serve(tmp_path, scenario)


def test_queues_whose_names_differ_in_dots_alone_have_dead_letters_of_their_own(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "t", 2)
        for name in ("a.b", "a_b"):
            await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue(name, {"topic": "t"}))
            await reject(broker, name, 2)
        for name in ("a.b", "a_b"):
            assert len(await letters(broker, f"{name}.dead", 2)) == 2
            found = await broker.redrives.list(ListDead(name))
            assert [letter.message.topic for letter in found.letters] == [f"{name}.dead"] * 2

    serve(tmp_path, scenario)


async def pages(broker: Broker, asked: ListDead) -> list[list[tuple[int, int]]]:
    """All dead letters, page by page."""
    found = []
    while True:
        page = await broker.redrives.list(asked)
        found.append([(letter.message.partition, letter.message.offset) for letter in page.letters])
        assert page.more is (page.next is not None)
        if page.next is None:
            return found
        asked = replace(asked, since=page.next)


def test_dead_letters_are_listed_page_by_page_over_all_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        [made] = await broker.topics.create([NewTopic("t.dead", 3)])
        assert not isinstance(made, RunnelError)
        await make(broker, "t", 1)
        for number in range(9):
            await broker.sending.send("t.dead", [Outgoing(b"%d" % number, partition=number % 2 * 2)])
        letters = [(0, n) for n in range(5)] + [(2, n) for n in range(4)]
        for size in (1, 2, 4, 5, 8, 9, 100):
            found = await pages(broker, ListDead("t", size))
            assert [each for page in found for each in page] == letters
            assert [len(page) for page in found[:-1]] == [size] * (len(found) - 1), "no page is short but the last"
            assert found[-1], "and that is not empty"
        assert await pages(broker, ListDead("t", 2, partition=2)) == [[(2, 0), (2, 1)], [(2, 2), (2, 3)]]
        assert await pages(broker, ListDead("t", 9, filter="body = 7")) == [[(2, 3)]]

    serve(tmp_path, scenario)


def test_a_page_ends_where_looking_took_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "LOOKED_AT_MAX", 2)

    async def scenario(broker: Broker) -> None:
        await make(broker, "t", 5)
        await reject(broker, "t", 5)
        await letters(broker, "t.dead", 5)
        assert await pages(broker, ListDead("t", filter="FALSE")) == [[], [], []]
        assert await pages(broker, ListDead("t")) == [[(0, 0), (0, 1)], [(0, 2), (0, 3)], [(0, 4)]]

    serve(tmp_path, scenario)
