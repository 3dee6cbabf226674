"""A broker as a process under a flood: its memory as the system sees it, and whether others are served meanwhile."""

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from runnel.model.limits import KIB, MIB
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import codec
from runnel.wire.kafka.apis import Api

LIMIT_S = 120.0  # of one answer: generous, a busy machine may be slow
GIVEN_BACK_S = 60.0  # freed memory goes back to the system within seconds
PAUSE_S = 0.1  # between two requests of another user
FRESH_PEAK = "5"  # written to clear_refs: the peak begins anew (proc(5))


class Memory(NamedTuple):
    """Of a process, in MB."""

    now: float
    peak: float


def memory_of(pid: int) -> Memory:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = [int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM")]
    return Memory(*(each * KIB / MIB for each in kib))


class Others:
    """Another user, who sends and receives while the flood is on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = threading.Event()
        self._was_served = threading.Event()
        self._thread = threading.Thread(target=self._use, daemon=True)
        self.served = 0
        self.failed = 0
        self.slowest_s = 0.0

    def __enter__(self) -> Self:
        self._once()  # the topic is made, and read
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._was_served.wait(LIMIT_S)  # the flood may have been short
        self._over.set()
        self._thread.join(LIMIT_S)

    def _use(self) -> None:
        while not self._over.wait(PAUSE_S):
            began = time.monotonic()
            try:
                self._once()
                self.served += 1
                self._was_served.set()
            except (OSError, http.client.HTTPException, ValueError):
                self.failed += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _once(self) -> None:
        letter = {"from_user": "alice", "to_user": "bob", "message": "hello"}
        sent = ask(self._address, "POST", "/send", json.dumps(letter).encode())
        got = ask(self._address, "GET", "/receive?user_id=bob&limit=1")
        if sent.status >= 300 or got.status >= 300:
            raise ValueError(f"answered with {sent.status} and {got.status}")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes


def ask(address: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, named, answer.read())
    finally:
        connection.close()


def ask_at_once(count: int, one: Callable[[int], Answer]) -> list[Answer]:
    """As many requests at the same time; connections that the broker closes without an answer count as status 0."""

    def tried(number: int) -> Answer:
        try:
            return one(number)
        except (OSError, http.client.HTTPException):
            return Answer(0, {}, b"")

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(tried, range(count)))


def statuses(answers: Sequence[Answer]) -> str:
    """As `3 x 200, 27 x 503`."""
    counts: dict[int, int] = {}
    for answer in answers:
        counts[answer.status] = counts.get(answer.status, 0) + 1
    return ", ".join(f"{count} x {status or 'closed'}" for status, count in sorted(counts.items()))


class Kafka:
    """A connection to the Kafka door that sends what it is told to."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), LIMIT_S)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, api: Api, version: int, request: Any) -> None:
        self._sent += 1
        parts = codec.encode_request(api, version, self._sent, "flood", request)
        self.socket.sendall(b"".join(bytes(part) for part in parts))

    def ask(self, api: Api, version: int, request: Any) -> Any:
        """The answer; ConnectionError if the broker closes the connection instead."""
        self.send(api, version, request)
        [size] = struct.unpack(">i", self._read(4))
        return codec.decode_response(api, version, memoryview(self._read(size)))[1]

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = self.socket.recv(min(size, MIB))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Seen(NamedTuple):
    """Of one flood."""

    sent: str
    before: Memory
    peak_mb: float
    after_mb: float
    served: int
    failed: int
    slowest_s: float

    @property
    def grown_mb(self) -> float:
        return self.peak_mb - self.before.now


Flood = Callable[[BrokerProcess], str]  # says what was sent


def under(flood: Flood, broker: BrokerProcess, kept_mb: float) -> Seen:
    """Flood a broker that runs, look at it, and wait until no more than so much is left of the flood."""
    with Others(broker.http) as others:
        before = memory_of(broker.pid)
        Path(f"/proc/{broker.pid}/clear_refs").write_text(FRESH_PEAK)
        sent = flood(broker)
        after = memory_of(broker.pid)
        end = time.monotonic() + GIVEN_BACK_S
        while after.now - before.now > kept_mb and time.monotonic() < end:
            time.sleep(0.5)
            after = memory_of(broker.pid)
    return Seen(sent, before, after.peak, after.now, others.served, others.failed, others.slowest_s)
