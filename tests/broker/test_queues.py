"""What users of queues may ask for: lanes, keys in order, expiry, delay, one consumer, a look without taking."""

import asyncio
from pathlib import Path

from tests.broker.serving import serve
from tests.broker.test_deliveries import make, take
from tests.broker.test_leaving import letters, reject

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.cluster.topic_rules import NewTopic
from runnel.model import headers as h
from runnel.model.calls import (
    QUEUE_CREATE,
    CreateQueue,
    Extend,
    ListDead,
    Outgoing,
    Peek,
    Receive,
    Redrive,
    Send,
    Sent,
    Settle,
    Settlement,
)
from runnel.queues.expiry import expires_ms
from runnel.queues.letters import ATTEMPTS_MAX
from runnel.shell.clock import SystemClock

LONG_MS = 60_000


async def send(broker: Broker, queue: str, *messages: Outgoing) -> Sent:
    return await broker.queues.send(Send(queue, list(messages)))


def test_a_message_of_a_higher_lane_goes_first(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue("q", {"lanes": "3"}))
        sent = await send(
            broker, "q", Outgoing(b"low"), Outgoing(b"high", priority=2), Outgoing(b"middle", priority=1),
            Outgoing(b"no", priority=3), Outgoing(b"neither", partition=1),
        )  # fmt: skip
        assert [place.partition if place else None for place in sent.placed] == [0, 2, 1, None, None]
        assert [failure.name for failure in sent.failures if failure] == ["InvalidRequest"] * 2
        assert [value for value, _ in await take(broker, "q", 10)] == [b"high", b"middle", b"low"]

    serve(tmp_path, scenario)


def test_who_reads_the_log_leases_messages_without_what_they_hold(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        await send(broker, "q", Outgoing(b"value", b"key", [("name", b"text")]), Outgoing(None))
        got = (await broker.queues.receive(Receive("q", 10, bare=True), Waits())).messages
        assert [each.offset for each in got] == [0, 1]
        assert [(each.key, each.value, each.headers) for each in got] == [(None, None, [])] * 2
        assert [each.value_bytes for each in got] == [5, 0]
        settled = await broker.queues.settle(Settle("q", [Settlement(each.receipt, "accept") for each in got]))
        assert settled.failures == [None, None]

    serve(tmp_path, scenario)


def test_one_message_of_a_key_at_a_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", order="key")
        rows = [Outgoing(value, value[:1]) for value in (b"a1", b"a2", b"b1", b"a3", b"b2")]
        await send(broker, "q", *rows)
        got = (await broker.queues.receive(Receive("q", 10), Waits())).messages
        assert [message.value for message in got] == [b"a1", b"b1"]
        assert await take(broker, "q", 10) == []
        waiting = asyncio.ensure_future(take(broker, "q", 10, wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await broker.queues.settle(Settle("q", [Settlement(got[0].receipt, "accept")]))
        assert await waiting == [(b"a2", 1)]

    serve(tmp_path, scenario)


def test_what_expired_is_dropped_or_dies(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "drops")
        await make(broker, "buries", expired="dead")
        past = (h.EXPIRES_AT, b"1000")
        for queue in ("drops", "buries"):
            await send(broker, queue, Outgoing(b"late", headers=[past]), Outgoing(b"fresh"))
            assert await take(broker, queue, 10) == [(b"fresh", 1)]
        assert await letters(broker, "buries.dead", 1) == [(b"late", b"expired")]
        assert "drops.dead" not in broker.image.names

    serve(tmp_path, scenario)


def test_a_message_that_is_copied_for_a_later_attempt_lives_no_longer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", window_wait_max_ms="0")
        sent_ms = SystemClock().wall_ms() - 1_000
        await send(broker, "q", Outgoing(b"a", headers=[(h.TTL_MS, b"%d" % LONG_MS)], timestamp_ms=sent_ms))
        [got] = (await broker.queues.receive(Receive("q"), Waits())).messages
        await broker.queues.settle(Settle("q", [Settlement(got.receipt, "release", delay_ms=1)]))
        [copy] = (await broker.queues.receive(Receive("q", wait_ms=LONG_MS), Waits())).messages
        assert (copy.topic, copy.attempt) == ("q.retry", 2)
        assert expires_ms(tuple(copy.headers), copy.timestamp_ms) == sent_ms + LONG_MS

    serve(tmp_path, scenario)


ODD_NUMBERS = (b"--5", b"-", "²".encode(), b"9" * 5_000, b"99999999999")


def test_messages_with_odd_numbers_in_their_headers_hold_up_no_queue(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        names = (h.TTL_MS, h.EXPIRES_AT, h.ORIGIN_PARTITION, h.ORIGIN_OFFSET, h.ATTEMPTS)
        odd = [Outgoing(b"odd", headers=[(h.ORIGIN_TOPIC, b"x"), *((name, text) for name in names)])
               for text in ODD_NUMBERS[:-1]]  # fmt: skip
        rows = [Outgoing(b"first"), *odd, Outgoing(b"last")]
        await make(broker, "q")
        await send(broker, "q", *rows)
        await reject(broker, "q", len(rows))
        found = await letters(broker, "q.dead", len(rows))
        assert [value for value, _ in found] == [row.value for row in rows]
        listed = (await broker.redrives.list(ListDead("q"))).letters
        assert {(letter.origin_topic, letter.origin_partition) for letter in listed} == {("q", 0)}
        assert [letter.origin_offset for letter in listed] == list(range(len(rows)))
        await broker.redrives.start(Redrive("q"))
        back = [await take(broker, "q", 1, wait_ms=LONG_MS) for _ in rows]
        assert [value for [(value, _)] in back] == [row.value for row in rows]

    serve(tmp_path, scenario)


def test_copies_with_odd_attempts_hold_up_no_queue(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("q.retry", 1)])
        await make(broker, "q", attempts_max="0")
        rows = [Outgoing(text[:20], headers=[(h.ATTEMPTS, text)]) for text in (b"2", *ODD_NUMBERS, b"3")]
        await broker.sending.send("q.retry", rows)
        got = await take(broker, "q", 10, wait_ms=LONG_MS)
        assert [value for value, _ in got] == [row.value for row in rows]
        assert [attempt for _, attempt in got] == [3, 1, 1, 1, 1, ATTEMPTS_MAX + 1, 4]

    serve(tmp_path, scenario)


def test_a_delayed_message_is_not_received_before_its_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        later = Outgoing(b"later", deliver_at_ms=SystemClock().wall_ms() + 3_600_000)
        sent = await send(broker, "q", later, Outgoing(b"now"))
        assert not any(sent.failures)
        assert await take(broker, "q", 10) == [(b"now", 1)]
        due_ms = SystemClock().wall_ms() + 200
        placed = sent.placed[0]
        assert placed is not None
        assert placed.scheduled_id is not None
        await broker.schedule.move(placed.scheduled_id, due_ms)
        assert await take(broker, "q", 10, wait_ms=LONG_MS) == [(b"later", 1)]
        assert SystemClock().wall_ms() >= due_ms

    serve(tmp_path, scenario)


def test_a_named_message_is_kept_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        first = await send(broker, "q", Outgoing(b"a", message_id="order-1"))
        second = await send(broker, "q", Outgoing(b"a", message_id="order-1"))
        assert [place.duplicate for place in (*first.placed, *second.placed) if place] == [False, True]
        assert await take(broker, "q", 10) == [(b"a", 1)]

    serve(tmp_path, scenario)


def test_a_queue_that_refuses_takes_of_many_at_once_what_it_has_room_for(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1, max_length="3", overflow="refuse")
        named = [Outgoing(b"%d" % number, message_id=f"m{number}") for number in range(5)]
        sent = await send(broker, "q", *named)
        assert [failure.name if failure else "" for failure in sent.failures] == ["", "", *["PolicyViolation"] * 3]
        [outlet] = broker.deliveries
        assert outlet.refusals.messages == 3
        again = await send(broker, "q", *named[:2])  # they are there: nothing is added
        assert [place.duplicate for place in again.placed if place] == [True, True]
        assert [value for value, _ in await take(broker, "q", 10)] == [b"0", b"0", b"1"]

    serve(tmp_path, scenario)


def test_one_consumer_has_a_partition_until_it_is_done_with_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 4, consumers="single")

        async def receive(consumer: str) -> list[str]:
            got = (await broker.queues.receive(Receive("q", 1, consumer=consumer), Waits())).messages
            return [message.receipt for message in got]

        held = await receive("one")
        assert await receive("two") == []
        held += await receive("one")
        assert len(held) == 2

    serve(tmp_path, scenario)


def test_to_peek_changes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 4)
        got = (await broker.queues.receive(Receive("q", 2), Waits())).messages
        await broker.queues.settle(Settle("q", [Settlement(got[0].receipt, "accept")]))
        for _ in range(2):
            seen = (await broker.queues.peek(Peek("q", 10))).messages
            assert [(one.value, one.state, one.attempts) for one in seen] == [
                (b"1", "leased", 1), (b"2", "ready", 0), (b"3", "ready", 0),
            ]  # fmt: skip
        all_of_it = (await broker.queues.peek(Peek("q", 10, offset=0))).messages
        assert [one.state for one in all_of_it] == ["done", "leased", "ready", "ready"]
        some = (await broker.queues.peek(Peek("q", 10, filter="offset > 2"))).messages
        assert [one.value for one in some] == [b"3"]
        assert len(await take(broker, "q", 10)) == 2

    serve(tmp_path, scenario)


def test_a_lease_that_is_extended_lasts_longer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1)
        [message] = (await broker.queues.receive(Receive("q", lease_ms=2_000), Waits())).messages
        assert (await broker.queues.extend(Extend("q", [message.receipt], LONG_MS))).failures == [None]
        assert await take(broker, "q", wait_ms=3_000) == []
        assert (await broker.queues.settle(Settle("q", [Settlement(message.receipt, "accept")]))).failures == [None]
        refused = (await broker.queues.extend(Extend("q", [message.receipt]))).failures
        assert [failure.name for failure in refused if failure] == ["LeaseLost"]

    serve(tmp_path, scenario)
