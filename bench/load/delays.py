"""How late delayed messages come while many others wait: sent and read with librdkafka, through the Kafka door.

Rule 1: what is counted is the time from when a message was due until a consumer that waits for it has it, both by the
        wall clock of this machine.
Rule 2: each message is to come once, and none before it is due: anything else ends the measurement.
Rule 3: the messages that are counted are due evenly over the time that is measured; all others wait for a day.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.load import Refused

DAY_MS = 24 * 60 * 60 * 1000
AHEAD_MS = 3_000  # the first is due so long after it was sent
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Delays:
    """`rate` messages a second come due, for so many seconds, while `pending` others wait."""

    address: str  # HOST:PORT of the Kafka door
    topic: str
    pending: int
    rate: int
    seconds: int
    size: int = 100
    partitions: int = 8


@dataclass(frozen=True, slots=True)
class Lateness:
    """What came of it, in milliseconds."""

    park_s: float  # how long it took to send those that wait
    late_ms: Sequence[float]  # of each message, ascending

    def percentile(self, share: float) -> float:
        return self.late_ms[min(int(len(self.late_ms) * share), len(self.late_ms) - 1)]


def measure(delays: Delays) -> Lateness:
    """Send, wait, read; raises Refused if something was early, came twice or did not come."""
    _create(delays)
    began = time.monotonic()
    sending = _Sending(delays)
    sending.send_waiting()
    park_s = time.monotonic() - began
    consumer = Consumer({"bootstrap.servers": delays.address, "group.id": "delays", "enable.auto.commit": False})
    consumer.assign([TopicPartition(delays.topic, number, 0) for number in range(delays.partitions)])
    try:
        consumer.poll(1.0)
        return Lateness(park_s, sorted(_read(consumer, sending.send_due(), delays)))
    finally:
        consumer.close()


def _create(delays: Delays) -> None:
    admin = AdminClient({"bootstrap.servers": delays.address})
    topic = NewTopic(delays.topic, delays.partitions, 1, config={"delay.enable": "true"})
    for made in admin.create_topics([topic]).values():
        made.result(GRACE_S)


class _Sending:
    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._value = b"x" * delays.size
        self._errors: list[KafkaError] = []
        settings = {"bootstrap.servers": delays.address, "linger.ms": 20, "enable.idempotence": True}
        self._producer = Producer({**settings, "queue.buffering.max.messages": 200_000, "acks": "all"})

    def send_waiting(self) -> None:
        due = time.time_ns() // 1_000_000 + DAY_MS
        for number in range(self._delays.pending):
            self._send(f"wait-{number}", due + number % DAY_MS, number)
        self._flush()

    def send_due(self) -> dict[str, int]:
        """When each is due, by its name."""
        delays = self._delays
        begin = time.time_ns() // 1_000_000 + AHEAD_MS
        due = {f"due-{n}": begin + n * 1000 // delays.rate for n in range(delays.rate * delays.seconds)}
        for number, (name, at) in enumerate(due.items()):
            self._send(name, at, number)
        self._flush()
        return due

    def _send(self, name: str, due_ms: int, number: int) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("runnel-deliver-at", str(due_ms))]
        place = number % self._delays.partitions
        while True:
            try:
                self._producer.produce(
                    self._delays.topic, self._value, name.encode(), place, headers=headers, on_delivery=self._done
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        if number % 1000 == 0:
            self._producer.poll(0)

    def _done(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(error)

    def _flush(self) -> None:
        if self._producer.flush(10 * GRACE_S) or self._errors:
            raise Refused(f"delayed messages could not be sent: {self._errors[:1]}")


def _read(consumer: Consumer, due: dict[str, int], delays: Delays) -> list[float]:
    late: list[float] = []
    end = time.monotonic() + AHEAD_MS / 1000 + delays.seconds + GRACE_S
    left = dict(due)
    while left:
        message = consumer.poll(0.1)  # one by one: to ask for many is to wait for many
        if message is not None and message.error() is None:
            now_ms = time.time_ns() / 1_000_000
            name = str(message.key() or b"", "ascii")
            if name not in left:
                raise Refused(f"{name} came twice, or was not due for a day")
            late.append(now_ms - left.pop(name))
            if late[-1] < 0:
                raise Refused(f"{name} came {-late[-1]:.0f} ms early")
        if time.monotonic() > end:
            raise Refused(f"{len(left)} of {len(due)} delayed messages did not come")
    return late


def main(address: str, pending: str = "1000000", rate: str = "500", seconds: str = "30") -> None:
    found = measure(Delays(address, f"delays-{time.time_ns()}", int(pending), int(rate), int(seconds)))
    shown = ", ".join(f"p{share * 100:g} {found.percentile(share):.1f} ms" for share in (0.5, 0.9, 0.99, 0.999, 1))
    print(f"{pending} waiting (sent in {found.park_s:.1f} s), {rate} a second due: {shown}")


if __name__ == "__main__":
    main(*sys.argv[1:])
