"""Delayed messages, end to end: through Kafka's clients, through crashes and through the end of leaders."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.helpers.arrivals import Arrivals

from runnel.testing.process import BrokerProcess

LIMIT_S = 60.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        future.result(LIMIT_S)


def producer(broker: BrokerProcess, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5, **settings})


class Sent:
    """What became of each message."""

    def __init__(self) -> None:
        self.errors: list[KafkaError] = []
        self.offsets: list[int] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.offsets.append(message.offset() or 0)


def read(broker: BrokerProcess, topic: str, count: int, partitions: int = 1, wait_s: float = LIMIT_S) -> list[Message]:
    """So many messages from the start, and those that come right behind them."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    end = time.monotonic() + wait_s
    try:
        while time.monotonic() < end:
            message = consumer.poll(0.5 if len(found) >= count else 1.0)
            if message is not None and message.error() is None:
                found.append(message)
            elif len(found) >= count:
                break
        return found
    finally:
        consumer.close()


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with BrokerProcess(tmp_path / "data", "--http", "off") as process:
        yield process


def delayed(ms: int) -> list[tuple[str, str | bytes | None]]:
    return [("runnel-delay-ms", str(ms).encode())]


def named(name: str) -> list[tuple[str, str | bytes | None]]:
    return [("runnel-message-id", name.encode())]


@pytest.mark.parametrize("settings", [{}, {"enable.idempotence": True}, {"compression.type": "lz4"}])
def test_a_delayed_message_comes_when_it_is_due_and_no_other_waits(broker: BrokerProcess, settings: Any) -> None:
    for patience_ms in (2_500, 10_000, 45_000):  # a busy machine may need that long to have all of them there
        topic = f"t-{patience_ms}"
        create(broker, topic, delay_enable="true")
        began, done = _send_every_third_later(broker, topic, patience_ms, settings)
        found = read(broker, topic, 30)
        assert sorted(int(one.value() or b"") for one in found) == list(range(30))
        for one in found:
            if (number := int(one.value() or b"")) % 3 == 0:
                assert one.timestamp()[1] >= began + patience_ms - 20 * number
                assert (dict(one.headers() or ())["runnel-deliver-at"] or b"").isdigit()
                assert "runnel-delay-ms" not in dict(one.headers() or ())
        if done < began + patience_ms - 800:
            late = [number for number in reversed(range(30)) if number % 3 == 0]
            assert [int(one.value() or b"") for one in found] == [n for n in range(30) if n % 3] + late
            return
    raise AssertionError("the messages were never there before they were due")


def _send_every_third_later(broker: BrokerProcess, topic: str, patience_ms: int, settings: Any) -> tuple[int, int]:
    """30 messages; when the first was sent, and when all were kept."""
    sending, sent = producer(broker, **settings), Sent()
    began = now_ms()
    for number in range(30):
        headers = delayed(patience_ms - 20 * number) if number % 3 == 0 else None
        sending.produce(topic, str(number).encode(), headers=headers, on_delivery=sent)
    assert sending.flush(LIMIT_S) == 0
    assert not sent.errors
    return began, now_ms()


def test_a_producer_goes_on_after_batches_out_of_which_all_was_taken(broker: BrokerProcess) -> None:
    create(broker, "t", delay_enable="true")
    sending, sent = producer(broker, **{"enable.idempotence": True}), Sent()
    for number in range(5):
        sending.produce("t", f"late {number}".encode(), headers=delayed(5_000), on_delivery=sent)
        assert sending.flush(LIMIT_S) == 0
        sending.produce("t", f"now {number}".encode(), on_delivery=sent)
        assert sending.flush(LIMIT_S) == 0
    assert not sent.errors
    assert sent.offsets == list(range(10))
    found = [(one.value() or b"").decode() for one in read(broker, "t", 10)]
    assert sorted(found) == sorted(f"{kind} {number}" for number in range(5) for kind in ("late", "now"))
    assert [one for one in found if one.startswith("late")] == [f"late {number}" for number in range(5)]


def test_a_time_that_cannot_be_read_is_refused_and_so_is_a_transaction(broker: BrokerProcess) -> None:
    create(broker, "t", delay_enable="true")
    sending, sent = producer(broker), Sent()
    sending.produce("t", b"v", headers=[("runnel-deliver-at", b"tomorrow")], on_delivery=sent)
    sending.flush(LIMIT_S)
    assert [error.code() for error in sent.errors] == [KafkaError.INVALID_RECORD]
    transacting = producer(broker, **{"transactional.id": "x"})
    transacting.init_transactions(LIMIT_S)
    transacting.begin_transaction()
    transacting.produce("t", b"v", headers=delayed(60_000))
    with pytest.raises(KafkaException):
        transacting.commit_transaction(LIMIT_S)


def test_on_other_topics_the_header_means_nothing(broker: BrokerProcess) -> None:
    create(broker, "t")
    sending = producer(broker)
    sending.produce("t", b"v", headers=[*delayed(60_000), *named("a")])
    sending.produce("t", b"v", headers=named("a"))
    sending.flush(LIMIT_S)
    assert len(read(broker, "t", 2)) == 2


def test_a_name_is_kept_once_within_the_window_also_after_a_restart(broker: BrokerProcess) -> None:
    create(broker, "t", dedup_window_ms="600000")
    sending, sent = producer(broker, **{"enable.idempotence": True}), Sent()

    def send(*names: str) -> None:
        for name in names:
            sending.produce("t", name.encode(), headers=named(name) if name != "-" else None, on_delivery=sent)
        assert sending.flush(LIMIT_S) == 0

    send("a", "b", "a", "-")
    send("b", "c", "-")
    send("a")
    broker.kill()
    broker.start()
    send("c", "d", "a", "-")
    assert not sent.errors
    found = read(broker, "t", 7)
    assert [(one.value() or b"").decode() for one in found] == ["a", "b", "-", "c", "-", "d", "-"]
    assert len(set(sent.offsets)) == 12  # each has a place of its own: some of them are empty


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def test_kills_lose_nothing_double_nothing_and_send_nothing_early(tmp_path: Path) -> None:
    """SIGKILL again and again, while 12,000 messages wait and come due."""
    count, more, partitions = 12_000, 300, 4
    due: dict[int, int] = {}
    with BrokerProcess(tmp_path / "data", "--http", "off") as process:
        create(process, "t", partitions, delay_enable="true")
        sending, sent = producer(process, **{"enable.idempotence": True}), Sent()

        def send_later(numbers: range, begin: int, spread: int) -> None:
            for number in numbers:
                due[number] = begin + number * 7919 % spread
                headers: list[tuple[str, str | bytes | None]] = [("runnel-deliver-at", str(due[number]).encode())]
                place = number % partitions
                sending.produce("t", str(number).encode(), partition=place, headers=headers, on_delivery=sent)
                sending.poll(0)
            assert sending.flush(LIMIT_S) == 0
            assert not sent.errors

        begin = now_ms() + 8_000  # on a busy machine all of them have to be there by then
        send_later(range(count), begin, 9_000)
        with Arrivals([process.kafka], "t", partitions).watched() as reader:
            for second in range(8):
                moment = begin - 2_000 + second * 1_500
                wait_for(lambda moment=moment: now_ms() >= moment)  # type: ignore[misc]
                process.kill()
                process.start()
            # A broker that has just begun is late with the others, wherever starting takes long: these could be early.
            send_later(range(count, count + more), max(now_ms(), begin + 9_000) + 1_000, 1_000)
            wait_for(lambda: len(reader.came) >= count + more)
        found = read(process, "t", count + more, partitions)
    assert sorted(int(one.value() or b"") for one in found) == list(range(count + more))
    assert [one for one in reader.came if one.at_ms < due[int(one.value)]] == [], "it came early"
    waited = [one for one in reader.came if "runnel-message-id" in one.headers]
    assert len(waited) >= 10_000, "they came too late to have to wait"
    last: dict[int, int] = {}
    for one in waited:
        assert due[int(one.value)] >= last.get(one.partition, 0), "it overtook another"
        last[one.partition] = due[int(one.value)]
