"""Queues as they are defined, through any broker."""

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest
from tests.test_replication import Brokers, cluster_of, create, eventually, run

from runnel.broker.internal import QUEUES
from runnel.broker.share_places import Place
from runnel.cluster.topic_rules import NewPartitions, NewTopic
from runnel.groups.share_values import ShareHeartbeat
from runnel.groups.values import LEAVE
from runnel.model.calls import (
    QUEUE_ALTER,
    QUEUE_CREATE,
    QUEUE_DELETE,
    QUEUE_LIST,
    QUEUE_RECEIVE,
    QUEUE_SEND,
    QUEUE_SETTLE,
    AlterQueue,
    CreateQueue,
    DeleteQueue,
    ListedQueue,
    ListQueues,
    Outgoing,
    Placed,
    QueueDefined,
    QueueDeleted,
    Receive,
    Send,
    Settle,
    Settlement,
    Verb,
)
from runnel.model.errors import (
    GroupNotFound,
    InvalidConfig,
    InvalidFilter,
    InvalidRequest,
    InvalidTopicName,
    QueueAlreadyExists,
    QueueBeingDeleted,
    RunnelError,
    UnknownQueue,
)
from runnel.model.ids import BrokerId, PartitionKey
from runnel.model.internal_calls import KeeperOpen, KeeperWrite
from runnel.queues.keeper import owner_name

Q = TypeVar("Q")
A = TypeVar("A")


async def ask(brokers: Brokers, number: int, verb: Verb[Q, A], request: Q) -> A:
    return await brokers.up[number].broker.calls.ask(BrokerId(number), verb, request)


def listed(brokers: Brokers, number: int, name: str) -> dict[str, str]:
    return dict(brokers.up[number].broker.image.group_settings(name))


def test_a_queue_that_is_created_through_any_broker_is_everywhere_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=3) as brokers:
            for number in brokers.up:
                name = f"q{number}"
                made = await ask(brokers, number, QUEUE_CREATE, CreateQueue(name, {"lease.ms": "5000"}, 2, 2))
                assert made == QueueDefined(name, name, True)
                for other in brokers.up.values():
                    assert dict(other.broker.image.group_settings(name)) == {"topic": name, "lease.ms": "5000"}
                    topic = other.broker.image.topic_named(name)
                    assert [len(partition.replicas) for partition in topic.partitions] == [2, 2]
            for number in brokers.up:
                found = (await ask(brokers, number, QUEUE_LIST, ListQueues())).queues
                assert [each.queue for each in found] == ["q1", "q2", "q3"]
                [one] = (await ask(brokers, number, QUEUE_LIST, ListQueues("q2"))).queues
                assert one == ListedQueue("q2", "q2", {"topic": "q2", "lease.ms": "5000"})

    run(main())


def test_queues_are_listed_page_by_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            for name in ("b", "a", "aa", "ab", "c"):
                await ask(brokers, 1, QUEUE_CREATE, CreateQueue(name, {"topic": "t"}))

            async def page(*asked: object) -> tuple[list[str], bool]:
                found = await ask(brokers, 1, QUEUE_LIST, ListQueues(*asked))  # type: ignore[arg-type]
                return [each.queue for each in found.queues], found.more

            assert await page("", "", 2) == (["a", "aa"], True)
            assert await page("", "aa", 2) == (["ab", "b"], True)
            assert await page("", "b", 2) == (["c"], False)
            assert await page("", "c", 2) == ([], False)
            assert await page("a", "a", 2) == (["aa", "ab"], False)
            assert await page("a", "0", 3) == (["a", "aa", "ab"], False)
            for number in (0, 10_001):
                with pytest.raises(InvalidRequest, match="1 to 10000"):
                    await page("", "", number)

    run(main())


def test_a_queue_on_a_topic_that_exists_takes_it_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await create(brokers, replicas=1, partitions=3)
            made = await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q", {"topic": "t", "lanes": "3"}))
            assert made == QueueDefined("q", "t", False)
            with pytest.raises(InvalidConfig, match="4 lanes needs as many partitions"):
                await ask(brokers, 1, QUEUE_CREATE, CreateQueue("r", {"topic": "t", "lanes": "4"}))
            lanes = await ask(brokers, 1, QUEUE_CREATE, CreateQueue("s", {"lanes": "4"}))
            assert lanes.created_topic
            assert len(brokers.up[1].broker.image.topic_named("s").partitions) == 4

    run(main())


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (CreateQueue("a b"), InvalidTopicName, "named as a topic"),
        (CreateQueue("q", {"lease.ms": "soon"}), InvalidConfig, "lease.ms"),
        (CreateQueue("q", {"colour": "red"}), InvalidConfig, "colour"),
        (CreateQueue("q", {"filter": "a ="}), InvalidFilter, "expected"),
        (CreateQueue("q", {"dead.letter.topic": "q"}), InvalidConfig, "deliver them again"),
        (CreateQueue("q", {"retry.topic": "q"}), InvalidConfig, "retry topic"),
        (CreateQueue("q", {"topic": QUEUES}), InvalidTopicName, "internal"),
        (CreateQueue("q", {"lanes": "3"}, 5), InvalidConfig, "3 lanes"),
        (CreateQueue("taken"), QueueAlreadyExists, "taken"),
        (CreateQueue("q", {"retry.topic": "taken"}), InvalidConfig, "queue 'taken' delivers topic 'taken'"),
        (CreateQueue("q", {"topic": "taken.retry"}), InvalidConfig, "has the retries of queue 'taken'"),
        (CreateQueue("q", {"retry.topic": "taken.retry"}), InvalidConfig, "give it another retry.topic"),
        (CreateQueue("taken", {"colour": "red"}), InvalidConfig, "colour"),
    ],
)
def test_what_can_not_be_a_queue_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, request_: CreateQueue, error: type[RunnelError], text: str
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("taken"))
            with pytest.raises(error, match=text):
                await ask(brokers, 1, QUEUE_CREATE, request_)
            assert "q" not in brokers.up[1].broker.image.names
            assert listed(brokers, 1, "q") == {}

    run(main())


def test_what_waits_for_another_attempt_is_delivered_by_one_queue_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("a.retry"))
            with pytest.raises(InvalidConfig, match=r"queue 'a\.retry' delivers topic 'a\.retry'"):
                await ask(brokers, 1, QUEUE_CREATE, CreateQueue("a"))
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("a", {"retry.topic": "elsewhere"}))
            with pytest.raises(InvalidConfig, match=r"queue 'a\.retry' delivers topic 'a\.retry'"):
                await ask(brokers, 1, QUEUE_ALTER, AlterQueue("a", {"retry.topic": None}))
            await ask(brokers, 1, QUEUE_ALTER, AlterQueue("a", {"lease.ms": "5"}))  # a queue is not in its own way
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("b", {"order": "key"}))  # it has no retry topic
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("b.retry"))
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("graves", {"topic": "a.dead"}))  # dead letters are for all

    run(main())


def test_a_view_is_no_topic_of_a_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await create(brokers, replicas=1)
            view = NewTopic("v", config={"view.of": "t", "view.filter": "key = 'a'"})
            [made] = await brokers.up[1].broker.topics.create([view])
            assert not isinstance(made, RunnelError), made
            with pytest.raises(InvalidTopicName, match="give the queue a filter"):
                await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q", {"topic": "v"}))
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            with pytest.raises(InvalidTopicName, match="give the queue a filter"):
                await ask(brokers, 1, QUEUE_ALTER, AlterQueue("q", {"topic": "v"}))
            with pytest.raises(InvalidConfig, match="create it before"):
                await ask(brokers, 1, QUEUE_ALTER, AlterQueue("q", {"topic": "nowhere"}))
            await ask(brokers, 1, QUEUE_ALTER, AlterQueue("q", {"topic": "t"}))
            assert listed(brokers, 1, "q") == {"topic": "t"}

    run(main())


def test_trying_out_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            tried = await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q", validate_only=True))
            assert tried.created_topic
            assert "q" not in brokers.up[1].broker.image.names
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            await ask(brokers, 1, QUEUE_ALTER, AlterQueue("q", {"lease.ms": "1"}, True))
            assert listed(brokers, 1, "q") == {"topic": "q"}
            gone = await ask(brokers, 1, QUEUE_DELETE, DeleteQueue("q", True, True))
            assert gone == QueueDeleted("q", ["q"])
            assert listed(brokers, 1, "q") == {"topic": "q"}

    run(main())


def test_settings_are_altered_by_our_names_and_by_kafkas(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=2) as brokers:
            await ask(brokers, 2, QUEUE_CREATE, CreateQueue("q", {"lease.ms": "5000", "attempts.max": "3"}))
            changes: dict[str, str | None] = {
                "share.record.lock.duration.ms": "7000", "attempts.max": None, "lanes": "4"
            }  # fmt: skip
            await ask(brokers, 2, QUEUE_ALTER, AlterQueue("q", changes))
            for number in brokers.up:
                assert listed(brokers, number, "q") == {"topic": "q", "lease.ms": "7000", "lanes": "4"}
                assert len(brokers.up[number].broker.image.topic_named("q").partitions) == 4
            with pytest.raises(UnknownQueue):
                await ask(brokers, 2, QUEUE_ALTER, AlterQueue("r", {"lease.ms": "1"}))
            with pytest.raises(InvalidConfig, match="makes 'q' a queue"):
                await ask(brokers, 2, QUEUE_ALTER, AlterQueue("q", {"topic": None}))
            with pytest.raises(InvalidConfig, match="deliver them again"):
                await ask(brokers, 2, QUEUE_ALTER, AlterQueue("q", {"dead.letter.topic": "q"}))

    run(main())


def test_a_deleted_queue_keeps_nothing_and_leaves_its_topics_unless_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=2) as brokers:
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            keepers = brokers.up[1].broker.keepers
            topic = brokers.up[1].broker.image.topic_named("q")
            owner, epoch = owner_name("q", PartitionKey(topic.id, 0)), topic.partitions[0].leader_epoch
            kept = await keepers.open(KeeperOpen(owner, epoch))
            await keepers.write(KeeperWrite(owner, epoch, kept.session, [(b"k", b"v")]))
            assert await ask(brokers, 2, QUEUE_DELETE, DeleteQueue("q")) == QueueDeleted("q", [])
            assert (await keepers.open(KeeperOpen(owner, epoch))).records == []
            assert all(listed(brokers, number, "q") == {} for number in brokers.up)
            assert "q" in brokers.up[2].broker.image.names
            with pytest.raises(UnknownQueue):
                await ask(brokers, 1, QUEUE_DELETE, DeleteQueue("q"))

    run(main())


def test_topics_go_with_their_queue_but_not_those_that_another_needs(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=2) as brokers:
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("r", {"topic": "q"}))
            assert await ask(brokers, 2, QUEUE_DELETE, DeleteQueue("q", True)) == QueueDeleted("q", [])
            assert await ask(brokers, 2, QUEUE_DELETE, DeleteQueue("r", True)) == QueueDeleted("r", ["q"])
            await eventually(lambda: all("q" not in server.broker.image.names for server in brokers.up.values()))

    run(main())


def test_of_two_who_create_a_queue_at_once_one_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=2) as brokers:
            both = [ask(brokers, number, QUEUE_CREATE, CreateQueue("q")) for number in (1, 2)]
            results = await asyncio.gather(*both, return_exceptions=True)
            assert [type(result) for result in results].count(QueueDefined) == 1
            assert [type(result) for result in results].count(QueueAlreadyExists) == 1

    run(main())


def test_a_broker_that_is_not_the_controller_says_so_and_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=3) as brokers:
            controller = brokers.up[1].broker.metadata.image.controller.broker
            dead = next(number for number in brokers.up if number != controller)
            await brokers.kill(dead)
            await ask(brokers, controller, QUEUE_CREATE, CreateQueue("q"))
            other = next(number for number in brokers.up if number != controller)
            internal = QUEUE_CREATE._replace(name="controller.queue.create")
            with pytest.raises(RunnelError, match="not the controller"):
                await ask(brokers, other, internal, CreateQueue("r"))

    run(main())


async def lease_all(brokers: Brokers, number: int, queue: str) -> list[int]:
    """Lease and accept all that there is; gives the offsets."""
    got = (await ask(brokers, number, QUEUE_RECEIVE, Receive(queue, 100))).messages
    settled = [Settlement(message.receipt, "accept") for message in got]
    assert (await ask(brokers, number, QUEUE_SETTLE, Settle(queue, settled))).failures == [None] * len(got)
    return [message.offset for message in got]


async def send(brokers: Brokers, number: int, queue: str, count: int) -> None:
    sent = await ask(brokers, number, QUEUE_SEND, Send(queue, [Outgoing(b"%d" % n) for n in range(count)]))
    assert sent.failures == [None] * count


def test_the_next_controller_finishes_what_its_predecessor_began_to_delete(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=3) as brokers:
            first = brokers.up[1].broker.metadata.image.controller.broker
            other = next(number for number in brokers.up if number != first)
            await ask(brokers, other, QUEUE_CREATE, CreateQueue("q", {}, 1, 3))
            await send(brokers, other, "q", 3)
            assert await lease_all(brokers, other, "q") == [0, 1, 2]
            await ask(brokers, other, QUEUE_CREATE, CreateQueue("r", {}, 1, 3))
            doomed = brokers.up[first].broker.image.topic_named("r").id
            await brokers.up[first].broker.queue_definitions.deletion.begin("q", [])
            await brokers.up[first].broker.queue_definitions.deletion.begin("r", [doomed])
            await brokers.kill(first)
            images = [server.broker for server in brokers.up.values()]
            await eventually(lambda: not any(broker.image.group_notes("q") for broker in images))
            await eventually(lambda: not any("r" in broker.image.names for broker in images))
            with pytest.raises(UnknownQueue):
                await ask(brokers, other, QUEUE_DELETE, DeleteQueue("q"))
            await ask(brokers, other, QUEUE_CREATE, CreateQueue("q", {}, 1, 3))
            assert await lease_all(brokers, other, "q") == [0, 1, 2], "of the old queue nothing is left"

    run(main())


@pytest.mark.parametrize("again", ["delete", "create"])
def test_who_comes_next_finishes_a_deletion_that_was_begun(tmp_path: Path, again: str) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            await send(brokers, 1, "q", 2)
            assert await lease_all(brokers, 1, "q") == [0, 1]
            broker = brokers.up[1].broker
            await broker.queue_definitions.deletion.begin("q", [])
            with pytest.raises(UnknownQueue):
                await lease_all(brokers, 1, "q")
            with pytest.raises(QueueBeingDeleted):  # nor does a share group begin under the name
                broker.deliveries.find("q", PartitionKey(broker.image.topic_named("q").id, 0))
            if again == "delete":
                assert await ask(brokers, 1, QUEUE_DELETE, DeleteQueue("q")) == QueueDeleted("q", [])
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            assert await lease_all(brokers, 1, "q") == [0, 1]

    run(main())


def test_a_queue_does_not_go_on_with_what_another_of_its_name_left_behind(tmp_path: Path) -> None:
    """A leader that had not heard of the deletion may keep something after all was forgotten."""

    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            await send(brokers, 1, "q", 2)
            assert await lease_all(brokers, 1, "q") == [0, 1]
            broker = brokers.up[1].broker
            partition = broker.partitions.find_by_id(broker.image.topic_named("q").id, 0)
            kept: list[tuple[bytes, bytes | None]] = []
            await broker.keepers.journal("q", partition).read(lambda key, value: kept.append((key, value)))
            await ask(brokers, 1, QUEUE_DELETE, DeleteQueue("q"))
            stale = broker.keepers.journal("q", partition)
            await stale.read(lambda key, value: None)
            await stale.append(kept)
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
            assert await lease_all(brokers, 1, "q") == [0, 1]

    run(main())


def test_the_share_group_of_a_queue_goes_with_it_unless_somebody_is_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            broker = brokers.up[1].broker
            await broker.find_coordinator("q")
            for left in (True, False):
                await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q"))
                await broker.share_groups.heartbeat(ShareHeartbeat("q", "one", 0, topic_names=("q",)))
                if left:
                    await broker.share_groups.heartbeat(ShareHeartbeat("q", "one", LEAVE))
                await ask(brokers, 1, QUEUE_DELETE, DeleteQueue("q"))
                if left:
                    with pytest.raises(GroupNotFound):
                        await broker.share_groups.describe("q")
            assert [each.member_id for each in (await broker.share_groups.describe("q")).members] == ["one"]

    run(main())


async def send_to(brokers: Brokers, topic: str, partition: int, value: bytes) -> None:
    [placed] = await brokers.up[1].broker.sending.send(topic, [Outgoing(value, partition=partition)])
    assert isinstance(placed, Placed), placed


def test_a_queue_that_begins_at_the_end_reads_all_of_what_is_added_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await create(brokers, replicas=1, partitions=2)
            for number in range(2):
                await send_to(brokers, "t", number, b"before")
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q", {"topic": "t", "start": "latest"}))
            topics = brokers.up[1].broker.topics
            [grown] = await topics.create_partitions([NewPartitions("t", 3)])
            assert not isinstance(grown, RunnelError), grown
            for number in range(3):
                await send_to(brokers, "t", number, b"%d" % number)
            got = (await ask(brokers, 1, QUEUE_RECEIVE, Receive("q", 100))).messages
            assert sorted(message.value or b"" for message in got) == [b"0", b"1", b"2"]

    run(main())


def test_a_queue_that_begins_at_the_end_reads_all_of_a_topic_that_is_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await create(brokers, replicas=1, partitions=1)
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("q", {"topic": "t", "start": "latest"}))
            await brokers.up[1].broker.topics.delete(["t"])
            await create(brokers, replicas=1, partitions=1)
            await send_to(brokers, "t", 0, b"since")
            [got] = (await ask(brokers, 1, QUEUE_RECEIVE, Receive("q", 100))).messages
            assert got.value == b"since"

    run(main())


def test_a_share_group_that_begins_at_the_end_reads_all_of_what_is_added_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            broker = brokers.up[1].broker
            await create(brokers, replicas=1, partitions=1)
            await send_to(brokers, "t", 0, b"before")
            await broker.find_coordinator("g")
            await broker.share_groups.heartbeat(ShareHeartbeat("g", "one", 0, topic_names=("t",)))
            await broker.topics.create_partitions([NewPartitions("t", 2)])
            await broker.share_groups.heartbeat(ShareHeartbeat("g", "one", 0, topic_names=("t",)))
            for number in range(2):
                await send_to(brokers, "t", number, b"since")
            topic_id = broker.image.topic_named("t").id
            places = await broker.share_offsets.describe("g")
            offsets = {key.number: place.offset for key, place in places.items() if isinstance(place, Place)}
            assert offsets == {0: 2, 1: 0}, "where nobody looked before, it begins at the end, but for what is new"
            assert await broker.share_groups.began("g", topic_id) == 1

    run(main())
