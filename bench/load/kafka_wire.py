"""The Kafka protocol without a client library: requests made beforehand, so that the server is the limit.

Produce v7 and Fetch v11, the last before the flexible encodings; both are spoken by every broker since 2.3.

    produce answer: size i32 | correlation i32 | topics i32 | name | partitions i32
                    | index i32 | error i16 | 24 bytes | throttle i32
    fetch answer:   size i32 | correlation i32 | throttle i32 | error i16 | session i32 | topics i32 | name
                    | partitions i32 | index i32 | error i16 | high watermark i64 | stable i64 | start i64
                    | aborted i32 | replica i32 | records
"""

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bench.load import AckCounter, Refused, ask, connect, librdkafka
from bench.load.line import Line
from runnel.record import batch, records

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
FETCH_BYTES_MAX = 4 << 20
WAIT_MS = 500
READY_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class KafkaWire:
    address: str
    topic: str
    acks_wanted: int = 1
    partition: int = 0
    partitions: int = 1
    config: dict[str, str] = field(default_factory=dict, hash=False)
    replication: int = 1  # above it, `address` names several brokers, and requests go to the leader

    def for_connection(self, number: int) -> "KafkaWire":
        return self

    def connect(self) -> socket.socket:
        if self.replication == 1:
            return connect(self.address)
        return connect(ask.leader_address(self.address.split(",")[0], self.topic, self.partition))

    def create(self) -> None:
        librdkafka.create_topics(self.address, [self.topic], self.partitions, self.replication, self.config)
        for partition in range(self.partitions):
            self.at(partition).await_ready()

    def delete(self) -> None:
        librdkafka.delete_topic(self.address, self.topic)

    def at(self, partition: int) -> "KafkaWire":
        return replace(self, partition=partition)

    def request(self, payloads: Sequence[bytes]) -> bytes:
        now_ms = int(time.time() * 1000)
        return self.request_of(records.encode([records.Record(n, now_ms, None, v) for n, v in enumerate(payloads)]))

    def request_of(self, made: bytes) -> bytes:
        """The same for a batch as it is."""
        body = struct.pack(">hhii", -1, self.acks_wanted, 30_000, 1) + _string(self.topic)
        body += struct.pack(">iii", 1, self.partition, len(made)) + made
        return _frame(PRODUCE, 7, body)

    def answers(self, messages: int) -> int:
        return 1

    def acks(self) -> AckCounter:
        answer_bytes = 4 + 4 + 4 + len(_string(self.topic)) + 4 + 4 + 2 + 24 + 4
        error_at = answer_bytes - 4 - 24 - 2
        rest = b""

        def count(received: bytes) -> int:
            nonlocal rest
            rest += received
            whole = len(rest) // answer_bytes
            for start in range(0, whole * answer_bytes, answer_bytes):
                if error := int.from_bytes(rest[start + error_at : start + error_at + 2], "big", signed=True):
                    raise Refused(f"produce to {self.topic}-{self.partition} was answered with Kafka's error {error}")
            rest = rest[whole * answer_bytes :]
            return whole

        return count

    def fetch_request(self, offset: int, *, bytes_max: int = FETCH_BYTES_MAX, wait_ms: int = WAIT_MS) -> bytes:
        body = struct.pack(">iiiibiii", -1, wait_ms, 1, bytes_max, 0, 0, -1, 1) + _string(self.topic)
        body += struct.pack(">iiiqqi", 1, self.partition, -1, offset, -1, bytes_max)
        return _frame(FETCH, 11, body + struct.pack(">i", 0) + _string(""))

    def fetched(self, answer: memoryview) -> memoryview:
        """The record bytes of one answer (without its size)."""
        position = 4 + 4 + 2 + 4 + 4 + len(_string(self.topic)) + 4 + 4
        (error,) = struct.unpack_from(">h", answer, position)
        if error:
            raise Refused(f"fetch of {self.topic}-{self.partition} was answered with Kafka's error {error}")
        (aborted,) = struct.unpack_from(">i", answer, position + 26)
        position += 26 + 4 + max(0, aborted) * 16 + 4
        (size,) = struct.unpack_from(">i", answer, position)
        return answer[position + 4 : position + 4 + size]

    def fetch(
        self, line: "Line", offset: int, *, bytes_max: int = FETCH_BYTES_MAX, wait_ms: int = WAIT_MS
    ) -> memoryview:
        return self.fetched(line.ask(self.fetch_request(offset, bytes_max=bytes_max, wait_ms=wait_ms)))

    def read(self, total: int) -> Iterator[int]:
        offset = 0
        with self.connect() as connection:
            line = Line(connection)
            while offset < total:
                after = next_offset(self.fetch(line, offset), offset)
                yield after - offset
                offset = after

    def tail(self) -> Iterator[bytes]:
        offset = 0
        with self.connect() as connection:
            line = Line(connection)
            while True:
                fetched = self.fetch(line, offset)
                for position, header in batch.headers(fetched):
                    for record in records.decode(fetched[position : position + header.size]):
                        if record.offset >= offset:
                            yield record.value or b""
                offset = next_offset(fetched, offset)

    def await_ready(self) -> None:
        """Wait until the partition answers a fetch: a topic just made may have no leader yet."""
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                with self.connect() as connection:
                    self.fetch(Line(connection), 0, wait_ms=0)
            except Refused:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return


def greet(connection: socket.socket) -> None:
    """Ask for the versions of all APIs, as every client does first."""
    Line(connection).ask(_frame(API_VERSIONS, 0, b""))


def next_offset(fetched: memoryview, offset: int) -> int:
    """The offset behind the last whole batch; a broker may cut the last one off."""
    position = 0
    while position + batch.HEADER_BYTES <= len(fetched):
        header = batch.read_header(fetched, position)
        position += header.size
        if position > len(fetched):
            break
        offset = header.last_offset + 1
    return offset


def _frame(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", api, version, 0) + _string("bench")
    return struct.pack(">i", len(head) + len(body)) + head + body


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
