"""A consumer that looks on while other things happen, and notes when it got each message.

It is the clock of who receives that tells whether a message came early: a broker stamps it with its due time at least.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition


class Arrived(NamedTuple):
    partition: int
    offset: int
    value: str
    at_ms: int  # by the clock of this machine, after it had come
    headers: dict[str, bytes | None]


class Arrivals:
    """Reads a topic from its beginning, in a thread of its own."""

    def __init__(self, brokers: Sequence[str], topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": ",".join(brokers), "group.id": "arrivals", "fetch.wait.max.ms": 50}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self.came: list[Arrived] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    @contextmanager
    def watched(self) -> Iterator["Arrivals"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()
            self._consumer.close()

    def _read(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now_ms = time.time_ns() // 1_000_000
            place, value = (message.partition() or 0, message.offset() or 0), (message.value() or b"").decode()
            self.came.append(Arrived(*place, value, now_ms, dict(message.headers() or ())))  # type: ignore[arg-type]

    @property
    def values(self) -> set[str]:
        return {each.value for each in self.came}
