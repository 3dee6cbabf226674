"""Transactions on a real broker, in both dialects: what is seen of them, and how they end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.talk import OnCluster, talk

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer, Message
from runnel.client.errors import OutcomeUnknown
from runnel.client.fetcher import FetchSettings
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, fetch_committed
from runnel.client.positions import END, START, bounds
from runnel.client.producer import Producer, ProducerSettings, Seat
from runnel.client.transactions_admin import TransactionsAdmin
from runnel.model.errors import (
    InvalidConfig,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionAbortable,
)
from runnel.record import records
from runnel.record.records import Record
from runnel.testing.process import BrokerProcess


@pytest.fixture(params=["modern", "classic"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings(name: str, dialect: str = "modern", **more: Any) -> ProducerSettings:
    classic = dialect == "classic"
    return ProducerSettings(transactional_id=name, linger_ms=0, classic_transactions=classic, **more)


async def made(cluster: Cluster, name: str, partitions: int = 1) -> list[TopicPartition]:
    await Admin(cluster).create_topics([NewTopic(name, partitions=partitions)])
    return [TopicPartition(name, n) for n in range(partitions)]


async def all_ended(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    """Wait until nothing is open there: a commit is answered when it is decided, and partitions hear of it then."""
    async with asyncio.timeout(30):
        while await bounds(cluster, partitions, isolation=READ_COMMITTED) != await bounds(cluster, partitions):
            await asyncio.sleep(0.01)


async def seen(
    cluster: Cluster, topic: str, isolation: int = READ_COMMITTED, *, ended: bool = True
) -> list[bytes | None]:
    """All that can be read, partition by partition; once all transactions have ended, unless told otherwise."""
    partitions = [TopicPartition(topic, n) for n in (await cluster.topic(topic)).partitions]
    if ended:
        await all_ended(cluster, partitions)
    ends = {where: limits.end for where, limits in (await bounds(cluster, partitions, isolation=isolation)).items()}
    found = []
    async with Consumer(cluster, FetchSettings(isolation=isolation)) as consumer:
        await consumer.assign(dict.fromkeys(partitions, START))
        while any(consumer.positions[where] < end for where, end in ends.items()):
            found += await consumer.poll(timeout_ms=10_000)
    return [x.value for x in sorted(found, key=lambda x: (x.partition, x.offset))]


async def send_all(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        await producer.send(topic, value, partition=0)
    await producer.flush()


def test_all_of_it_or_nothing(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name, 3)
        async with Producer(cluster, settings(name, dialect)) as producer:
            for number in range(6):
                try:
                    async with producer.transaction():
                        for partition in range(3):
                            await producer.send(name, b"%d" % number, partition=partition)
                        await producer.flush()
                        if number % 2:
                            raise KeyError(number)
                except KeyError:
                    continue
        assert await seen(cluster, name) == [b"0", b"2", b"4"] * 3
        assert await seen(cluster, name, READ_UNCOMMITTED) == [b"0", b"1", b"2", b"3", b"4", b"5"] * 3

    on_cluster(work)


def test_the_dialect_is_the_one_the_cluster_has(on_cluster: OnCluster, name: str, dialect: str) -> None:
    """Each end of a transaction brings a new epoch, or the epoch stays."""

    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        async with Producer(cluster, settings(name, dialect)) as producer:
            now = producer._transactions.now  # type: ignore[union-attr]
            before = now.identity
            async with producer.transaction():
                await send_all(producer, name, b"x")
            assert now.modern == (dialect == "modern")
            assert now.identity.epoch - before.epoch == (dialect == "modern")

    on_cluster(work)


@pytest.mark.parametrize("isolation", [READ_COMMITTED, READ_UNCOMMITTED])
def test_markers_take_up_offsets_but_are_never_read(on_cluster: OnCluster, name: str, isolation: int) -> None:
    async def work(cluster: Cluster) -> None:
        (where,) = await made(cluster, name)
        async with Producer(cluster, settings(name)) as producer:
            for number in range(3):
                async with producer.transaction():
                    await send_all(producer, name, b"%d" % number)
        async with Consumer(cluster, FetchSettings(isolation=isolation)) as consumer:
            await all_ended(cluster, [where])
            await consumer.assign({where: START})
            found: list[Message] = []
            while len(found) < 3:
                found += await consumer.poll(timeout_ms=10_000)
            assert consumer.positions == {where: 6}  # behind the last marker: nothing is left to be read
            assert [(x.offset, x.value) for x in found] == [(0, b"0"), (2, b"1"), (4, b"2")]
            assert consumer.lag(where) == 0
            await consumer.assign({where: START})
            batches = []
            while consumer.positions[where] < 6:
                batches += await consumer.poll_batches(timeout_ms=10_000)
            assert [batch.header.base_offset for batch in batches] == [0, 2, 4]

    on_cluster(work)


def test_readers_of_committed_messages_wait_for_an_open_transaction(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        (where,) = await made(cluster, name)
        async with Producer(cluster) as plain, Producer(cluster, settings(name)) as producer:
            await send_all(plain, name, b"before")
            await producer.begin()
            await send_all(producer, name, b"inside")
            await send_all(plain, name, b"behind")
            assert await seen(cluster, name, ended=False) == [b"before"]
            assert await seen(cluster, name, READ_UNCOMMITTED, ended=False) == [b"before", b"inside", b"behind"]
            async with Consumer(cluster, FetchSettings(wait_ms=10)) as consumer:
                await consumer.assign({where: END})
                assert consumer.positions == {where: 1}
                while consumer.lag(where) is None:
                    assert await consumer.poll(timeout_ms=100) == []
                assert consumer.lag(where) == 0
                await producer.commit()
                values = [x.value for _ in range(2) for x in await consumer.poll(count_max=1, timeout_ms=10_000)]
                assert values == [b"inside", b"behind"]

    on_cluster(work)


def test_aborted_and_committed_side_by_side(on_cluster: OnCluster, name: str) -> None:
    """Two producers take turns in one partition, in small answers: each batch is judged by its own transaction."""

    async def work(cluster: Cluster) -> None:
        (where,) = await made(cluster, name)
        async with Producer(cluster, settings(f"{name}-a")) as one, Producer(cluster, settings(f"{name}-b")) as other:
            for _ in range(4):
                await one.begin()
                await other.begin()
                for _ in range(3):
                    await send_all(one, name, b"keep")
                    await send_all(other, name, b"drop")
                await other.abort()
                await send_all(one, name, b"keep")
                await one.commit()
        async with Consumer(cluster, FetchSettings(bytes_max=1, partition_bytes_max=1, buffer_bytes_max=1)) as consumer:
            await consumer.assign({where: START})
            found = []
            while consumer.positions[where] < 36:
                found += [x.value for x in await consumer.poll(timeout_ms=10_000)]
        assert found == [b"keep"] * 16
        assert len(await seen(cluster, name, READ_UNCOMMITTED)) == 28

    on_cluster(work)


def test_batches_encoded_elsewhere_belong_to_the_transaction(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        batch = records.encode([Record(n, 1000, None, b"%d" % n) for n in range(3)])
        async with Producer(cluster, settings(name)) as producer:
            await producer.begin()
            await (await producer.send_batch(name, 0, batch))
            await producer.abort()
            async with producer.transaction():
                await producer.send_batch(name, 0, batch)
        assert await seen(cluster, name) == [b"0", b"1", b"2"]

    on_cluster(work)


def test_without_a_transaction_nothing_is_sent(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        async with Producer(cluster, settings(name)) as producer:
            with pytest.raises(InvalidTransactionState, match="begin it"):
                await producer.send(name, b"x")
            async with producer.transaction():
                with pytest.raises(InvalidTransactionState, match="before another begins"):
                    await producer.begin()
                await producer.abort()  # ending it in the block is allowed
            with pytest.raises(InvalidTransactionState, match="nothing to abort"):
                await producer.abort()
        async with Producer(cluster) as plain:
            with pytest.raises(InvalidConfig, match="no transactional id"):
                await plain.begin()

    on_cluster(work)


def test_settings_that_make_no_sense(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        for wrong in (
            ProducerSettings(transactional_id=""),
            ProducerSettings(transactional_id=name, idempotent=False),
            ProducerSettings(transactional_id=name, idempotent=False, acks=1),
        ):
            with pytest.raises(InvalidConfig, match="transactional id"):
                Producer(cluster, wrong)
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
            async with Producer(cluster, settings(name, transaction_timeout_ms=2**31 - 1)):
                pass

    on_cluster(work)


def test_a_transaction_that_sends_nothing(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, settings(name, dialect)) as producer:
            async with producer.transaction():
                pass
            await producer.begin()
            await producer.abort()
            await producer.begin()
            await producer.commit()

    on_cluster(work)


def test_one_message_that_fails_dooms_the_others(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1, config={"max.message.bytes": "2000"})])
        async with Producer(cluster, settings(name, dialect)) as producer:
            await producer.begin()
            await send_all(producer, name, b"fine")
            await producer.send(name, b"x" * 5_000)
            with pytest.raises(TransactionAbortable, match=r"MESSAGE_TOO_LARGE.*Abort it"):
                await producer.commit()
            with pytest.raises(TransactionAbortable, match="Abort it"):
                await producer.send(name, b"too late")
            await producer.abort()
            async with producer.transaction():
                await producer.send(name, b"again")
        assert await seen(cluster, name) == [b"again"]

    on_cluster(work)


def test_a_block_that_is_cancelled_is_aborted(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        async with Producer(cluster, settings(name, dialect)) as producer:
            sent = asyncio.Event()

            async def endless() -> None:
                async with producer.transaction():
                    await send_all(producer, name, b"never")
                    sent.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(endless())
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send(name, b"next")
        assert await seen(cluster, name) == [b"next"]

    on_cluster(work)


def test_an_abort_that_is_cancelled_is_made_up_for(on_cluster: OnCluster, name: str, dialect: str) -> None:
    """What was under way then must not turn up in the next transaction."""

    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        async with Producer(cluster, settings(name, dialect)) as producer:
            for number in range(1, 6):
                await producer.begin()
                for _ in range(number):
                    await producer.send(name, b"never" * 1000)
                task = asyncio.create_task(producer.abort())
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                async with producer.transaction():
                    await producer.send(name, b"%d" % number)
        assert await seen(cluster, name) == [b"1", b"2", b"3", b"4", b"5"]

    on_cluster(work)


def test_closing_aborts_what_is_open(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        producer = Producer(cluster, settings(name))
        await producer.begin()
        await send_all(producer, name, b"never")
        await producer.close()
        assert await seen(cluster, name) == []
        assert not (await TransactionsAdmin(cluster).describe(name)).open

    on_cluster(work)


# --- fencing
def test_a_new_producer_of_the_same_id_fences_the_old_one(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        async with Producer(cluster, settings(name, dialect)) as old:
            await old.begin()
            await send_all(old, name, b"zombie")
            async with Producer(cluster, settings(name, dialect)) as new:
                async with new.transaction():
                    await new.send(name, b"new")
                # A partition's leader knows only that the epoch is old: whose it is now, the coordinator says.
                with pytest.raises((TransactionAbortable, ProducerFenced)):
                    await send_all(old, name, b"zombie too")
                with pytest.raises(ProducerFenced, match=f"transactional id '{name}'"):
                    await old.abort()
                for call in (old.begin, old.commit, old.abort):
                    with pytest.raises(ProducerFenced):
                        await call()
                async with new.transaction():
                    await new.send(name, b"new")
        assert await seen(cluster, name) == [b"new", b"new"]

    on_cluster(work)


def test_what_takes_too_long_is_aborted_by_the_coordinator(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        admin = TransactionsAdmin(cluster)
        async with Producer(cluster, settings(name, dialect, transaction_timeout_ms=300)) as producer:
            await producer.begin()
            await send_all(producer, name, b"slow")
            async with asyncio.timeout(60):
                while (await admin.describe(name)).state != "CompleteAbort":
                    await asyncio.sleep(0.05)
            expected = TransactionAbortable if dialect == "modern" else ProducerFenced
            with pytest.raises(expected, match="was open for more than 300 ms"):
                await producer.commit()
            if dialect == "modern":
                await producer.abort()
                async with producer.transaction():
                    await producer.send(name, b"quick")
        assert await seen(cluster, name) == ([b"quick"] if dialect == "modern" else [])

    on_cluster(work)


# --- offsets
@asynccontextmanager
async def member(cluster: Cluster, group: str, topic: str, count: int) -> AsyncIterator[GroupConsumer]:
    """A member that has polled so many messages."""
    async with GroupConsumer(cluster, group, [topic], GroupConsumerSettings(commit_ms=None)) as consumer:
        polled = 0
        while polled < count:
            polled += len(await consumer.poll(count_max=count - polled, timeout_ms=10_000))
        yield consumer


async def filled(cluster: Cluster, name: str, count: int) -> TopicPartition:
    (where,) = await made(cluster, name)
    async with Producer(cluster) as producer:
        await send_all(producer, name, *(b"%d" % n for n in range(count)))
    return where


async def stored(cluster: Cluster, group: str, where: TopicPartition) -> int | None:
    found = (await fetch_committed(cluster, group, [where])).get(where)
    return found.offset if found else None


def test_offsets_are_committed_with_the_transaction_only(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        where = await filled(cluster, name, 6)
        async with Producer(cluster, settings(name, dialect)) as producer, member(cluster, name, name, 4) as consumer:
            await producer.begin()
            await producer.send_offsets(consumer.positions, consumer.seat)
            await producer.abort()
            assert await stored(cluster, name, where) is None
            async with producer.transaction():
                await producer.send_offsets({where: 3}, consumer.seat)
                await producer.send_offsets(consumer.positions, consumer.seat)
            assert await stored(cluster, name, where) == 4
            await consumer.rewind()
            assert consumer.positions == {where: 4}

    on_cluster(work)


def test_offsets_that_may_be_missing_are_not_committed(on_cluster: OnCluster, name: str, dialect: str) -> None:
    async def work(cluster: Cluster) -> None:
        where = await filled(cluster, name, 2)
        async with Producer(cluster, settings(name, dialect)) as producer, member(cluster, name, name, 2) as consumer:
            await producer.begin()
            sending = asyncio.create_task(producer.send_offsets(consumer.positions, consumer.seat))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            with pytest.raises(TransactionAbortable, match="was cancelled"):
                await producer.commit()
            await producer.abort()
            assert await stored(cluster, name, where) is None

    on_cluster(work)


def stranger(seat: Seat) -> Seat:
    return Seat(seat.group, seat.generation._replace(member_id="nobody"))


def earlier(seat: Seat) -> Seat:
    return Seat(seat.group, seat.generation._replace(id=seat.generation.id + 7))


@pytest.mark.parametrize("stale", [stranger, earlier])
def test_who_lost_its_seat_commits_nothing(
    on_cluster: OnCluster, name: str, dialect: str, stale: Callable[[Seat], Seat]
) -> None:
    async def work(cluster: Cluster) -> None:
        where = await filled(cluster, name, 2)
        async with Producer(cluster, settings(name, dialect)) as producer, member(cluster, name, name, 2) as consumer:
            await producer.begin()
            await send_all(producer, name, b"out")
            with pytest.raises(TransactionAbortable, match=f"group '{name}'.*Abort it"):
                await producer.send_offsets(consumer.positions, stale(consumer.seat))
            with pytest.raises(TransactionAbortable, match=f"group '{name}'.*Abort it"):
                await producer.commit()
            await producer.abort()
            assert await stored(cluster, name, where) is None
            assert await seen(cluster, name) == [b"0", b"1"]

    on_cluster(work)


def test_a_seat_that_can_not_be_used(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await made(cluster, name)
        async with GroupConsumer(cluster, name, [name]) as consumer:
            with pytest.raises(InvalidConfig, match="commit_ms=None"):
                _ = consumer.seat
        async with GroupConsumer(cluster, name, [name], GroupConsumerSettings(commit_ms=None)) as consumer:
            with pytest.raises(TransactionAbortable, match="no seat"):
                _ = consumer.seat

    on_cluster(work)


def test_the_next_member_waits_for_offsets_that_are_not_decided(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        where = await filled(cluster, name, 6)
        async with Producer(cluster, settings(name)) as producer:
            async with member(cluster, name, name, 4) as consumer:
                await producer.begin()
                await producer.send_offsets(consumer.positions, consumer.seat)
            async with GroupConsumer(cluster, name, [name], GroupConsumerSettings(commit_ms=None)) as heir:
                assert await heir.poll(timeout_ms=300) == []
                await producer.commit()
                found: list[Message] = []
                while len(found) < 2:
                    found += await heir.poll(timeout_ms=10_000)
                assert [x.offset for x in found] == [4, 5]
                assert heir.positions == {where: 6}

    on_cluster(work)


def test_consume_transform_produce_exactly_once(on_cluster: OnCluster, name: str, dialect: str) -> None:
    """Some transactions fail on purpose: their work is done again, and nothing comes out twice or not at all."""

    async def work(cluster: Cluster) -> None:
        await filled(cluster, name, 200)
        out = f"{name}-out"
        await made(cluster, out, 2)
        group = GroupConsumerSettings(commit_ms=None)
        attempts = 0
        async with (
            Producer(cluster, settings(name, dialect)) as producer,
            GroupConsumer(cluster, name, [name], group) as reader,
        ):
            while reader.positions != {TopicPartition(name, 0): 200}:
                messages = await reader.poll(count_max=20, timeout_ms=10_000)
                attempts += 1
                try:
                    async with producer.transaction():
                        for x in messages:
                            await producer.send(out, x.value, partition=x.offset % 2)
                        await producer.send_offsets(reader.positions, reader.seat)
                        if attempts % 3 == 0:
                            raise KeyError("on purpose")
                except KeyError:
                    await reader.rewind()
        assert await seen(cluster, out) == [b"%d" % n for start in (0, 1) for n in range(start, 200, 2)]

    on_cluster(work)


# --- crashes
def test_a_transaction_goes_on_over_a_crash_of_the_broker(tmp_path: Path, dialect: str) -> None:
    with BrokerProcess(tmp_path / "data") as process:

        async def work(cluster: Cluster) -> None:
            loop = asyncio.get_running_loop()
            await made(cluster, "t", 2)
            async with Producer(cluster, settings("tid", dialect)) as producer:
                for number in range(4):
                    await producer.begin()
                    for n in range(100):
                        await producer.send("t", b"%d" % n, partition=n % 2)
                        if n == 50:
                            await loop.run_in_executor(None, process.kill)
                            await loop.run_in_executor(None, process.start)
                    await (producer.abort() if number % 2 else producer.commit())
            assert await seen(cluster, "t") == [
                b"%d" % n for start in (0, 1) for _ in (0, 1) for n in range(start, 100, 2)
            ]

        talk(process.kafka, work)


def test_a_commit_without_an_answer_is_asked_for_again(tmp_path: Path, dialect: str) -> None:
    with BrokerProcess(tmp_path / "data") as process:

        async def work(cluster: Cluster) -> None:
            loop = asyncio.get_running_loop()
            await made(cluster, "t")
            async with Producer(cluster, settings("tid", dialect, block_timeout_ms=300)) as producer:
                await producer.begin()
                await send_all(producer, "t", b"x")
                await loop.run_in_executor(None, process.kill)
                with pytest.raises(OutcomeUnknown, match="nobody knows yet whether the transaction of 'tid'"):
                    await producer.commit()
                with pytest.raises(InvalidTransactionState, match="can't be aborted"):
                    await producer.abort()
                with pytest.raises(InvalidTransactionState, match="commit it again"):
                    await producer.begin()
                await loop.run_in_executor(None, process.start)
                async with asyncio.timeout(30):
                    while True:
                        try:
                            await producer.commit()
                            break
                        except OutcomeUnknown:
                            continue
            assert await seen(cluster, "t") == [b"x"]

        talk(process.kafka, work)
