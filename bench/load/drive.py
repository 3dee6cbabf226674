"""The ways of loading a server with any dialect: as fast as a window allows, one at a time, or at a fixed rate."""

import selectors
import socket
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass

from bench.load import RECEIVE_BYTES, REPLY_S_MAX, Dialect, Outcome, Refused, payload

STAMP_BYTES = 20  # a monotonic time in ns, in digits


@dataclass(frozen=True, slots=True)
class Bulk:
    """`total` messages of `size` bytes, `batch` in a request, at most `window` requests unanswered.

    After `seconds` no more are sent: a slow server costs a benchmark no more time than a fast one.
    """

    dialect: Dialect
    total: int
    size: int
    batch: int
    seconds: float
    window: int = 5  # librdkafka's and Java's maximum for requests in flight when order matters


@dataclass(frozen=True, slots=True)
class Single:
    """One message a request, one request in flight on each connection, for `seconds`."""

    dialect: Dialect
    size: int
    connections: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Paced:
    """`rate` messages a second, each sent when it is due whatever has become of those before it."""

    dialect: Dialect
    size: int
    rate: float
    seconds: float


class Stopwatch:
    """Wall time and this process's CPU time since it was made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._wall

    def outcome(self, messages: int) -> Outcome:
        return Outcome(messages, self.seconds(), time.process_time() - self._cpu)


def publish(job: Bulk) -> Outcome:
    """Publish in batches, as fast as the window allows."""
    with job.dialect.connect() as connection:
        request = job.dialect.request([payload(job.size)] * job.batch)
        answers = job.dialect.answers(job.batch)
        acks, open_answers, sent = job.dialect.acks(), 0, 0
        watch = Stopwatch()
        while sent < job.total and watch.seconds() < job.seconds:
            connection.sendall(request)
            sent += job.batch
            open_answers += answers
            while open_answers > (job.window - 1) * answers:
                open_answers -= acks(receive(connection))
        while open_answers:
            open_answers -= acks(receive(connection))
        return watch.outcome(sent)


def read(job: Bulk) -> Outcome:
    """Read the stream from its start until all messages have come, or the time is over."""
    watch, seen = Stopwatch(), 0
    for count in job.dialect.read(job.total):
        seen += count
        if watch.seconds() > job.seconds:
            break
    return watch.outcome(seen)


def ping_pong(job: Single) -> tuple[Outcome, list[float]]:
    """One-message requests, each sent when the one before it is answered; also gives each round trip in seconds."""
    trips: list[float] = []
    with selectors.DefaultSelector() as ready, ExitStack() as opened:
        players = [_Player(job.dialect.for_connection(number), job.size) for number in range(job.connections)]
        for player in players:
            ready.register(opened.enter_context(player.connection), selectors.EVENT_READ, player)
        watch, end = Stopwatch(), time.perf_counter() + job.seconds
        for player in players:
            player.serve()
        while time.perf_counter() < end:
            for key, _ in ready.select(REPLY_S_MAX):
                if (trip := key.data.returned()) is not None:
                    trips.append(trip)
                    key.data.serve()
        return watch.outcome(len(trips)), trips


class _Player:
    """One connection with one request in flight."""

    def __init__(self, dialect: Dialect, size: int) -> None:
        self.connection = dialect.connect()
        self._request = dialect.request([payload(size)])
        self._acks = dialect.acks()
        self._served = 0.0

    def serve(self) -> None:
        self._served = time.perf_counter()
        self.connection.sendall(self._request)

    def returned(self) -> float | None:
        """Take what has arrived; the round trip in seconds if that completes the answer."""
        return time.perf_counter() - self._served if self._acks(receive(self.connection)) else None


def pace(job: Paced) -> list[float]:
    """Send each message when it is due; gives the seconds from then to its acknowledgement."""
    waiting: deque[float] = deque()
    latencies: list[float] = []
    total, step, sent = int(job.rate * job.seconds), 1 / job.rate, 0
    with job.dialect.connect() as connection, selectors.DefaultSelector() as ready:
        ready.register(connection, selectors.EVENT_READ)
        acks, start = job.dialect.acks(), time.monotonic()
        while len(latencies) < total:
            now, requests = time.monotonic(), []
            while sent < total and (due := start + sent * step) <= now:
                requests.append(job.dialect.request([payload(job.size, stamp(due))]))
                waiting.append(due)
                sent += 1
            connection.sendall(b"".join(requests))
            pause = REPLY_S_MAX if sent == total else max(0.0, start + sent * step - time.monotonic())
            if ready.select(pause):
                answered = acks(receive(connection))
                now = time.monotonic()
                latencies += [now - waiting.popleft() for _ in range(answered)]
            elif sent == total:
                raise Refused(f"{len(waiting)} messages were never acknowledged")
    return latencies


def follow(job: Paced) -> list[float]:
    """Read while another process paces; gives the seconds from when each message was due to its arrival."""
    total = int(job.rate * job.seconds)
    latencies: list[float] = []
    for start in job.dialect.tail():
        latencies.append(age(start))
        if len(latencies) == total:
            break
    return latencies


def stamp(due: float) -> bytes:
    return b"%0*d" % (STAMP_BYTES, int(due * 1e9))


def age(start: bytes) -> float:
    return time.monotonic() - int(start[:STAMP_BYTES]) / 1e9


def receive(connection: socket.socket) -> bytes:
    """What has arrived, at least one byte."""
    received = connection.recv(RECEIVE_BYTES)
    if not received:
        raise Refused("the server closed the connection")
    return received
