"""Messages between users over plain HTTP, one in each POST: sent when they are due, received by long polling.

Rule 1: a message is sent when it is due, whatever has become of those before it. It waits for a free connection if
        there is none; that is counted, for its latency begins when it was due.
Rule 2: what is received is checked: each user gets its messages in the order of their ids, none missing, none twice.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import cast

import msgspec
import uvloop

from bench.load import REPLY_S_MAX, Refused
from bench.machine import kept_to_one_core

TICK_S = 0.001
WAIT_MS = 5_000
STAMP_CHARS = 20  # a monotonic time in ns, in digits


@dataclass(frozen=True, slots=True)
class Letters:
    """`rate` messages a second of `size` bytes from one connection of many, in turn to each of `users`."""

    address: str  # HOST:PORT
    prefix: str  # of the users' names: those of another measurement have other messages
    users: int
    size: int
    rate: float
    seconds: float
    connections: int = 512  # of senders: so many wait for their answers at once, at the most

    @property
    def total(self) -> int:
        return max(1, int(self.rate * self.seconds))

    def user(self, number: int) -> str:
        return f"{self.prefix}-{number % self.users}"

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)


class _Message(msgspec.Struct):
    message_id: str
    message: str


class _Messages(msgspec.Struct):
    messages: list[_Message]


decode = msgspec.json.Decoder(_Messages).decode


class _Line(asyncio.Protocol):
    """One connection with one request in flight; answers are given whole to `answered`."""

    def __init__(self, answered: "_Answered") -> None:
        self._answered = answered
        self._buffer = b""
        self.transport: asyncio.Transport
        self.due = 0.0
        self.user = 0
        self.seen: set[str] = set()
        self.last_id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if len(body) >= size:
            self._buffer = b""
            if not head.startswith(b"HTTP/1.1 200"):
                self._answered.failed(Refused(f"{head.decode()}\n{body.decode()[:500]}"))
            else:
                self._answered.answered(self, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answered.failed(Refused("a connection was closed"))


class _Answered:
    """Who is told of answers, and when all is done."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, line: _Line, body: bytes) -> None:
        raise NotImplementedError

    def failed(self, error: Refused) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    async def lines(self, job: Letters, count: int) -> list[_Line]:
        loop = asyncio.get_running_loop()
        return [(await loop.create_connection(lambda: _Line(self), *job.place))[1] for _ in range(count)]


class _Sender(_Answered):
    def __init__(self, job: Letters) -> None:
        super().__init__()
        self._job = job
        self._late: deque[float] = deque()
        self._idle: list[_Line] = []
        self._sent = 0
        self.latencies: list[float] = []

    async def run(self) -> list[float]:
        job = self._job
        lines = await self.lines(job, job.connections)
        self._idle = lines
        began, due = time.perf_counter(), 0
        while due < job.total and not self.done.done():
            now = time.perf_counter()
            while due < job.total and began + due / job.rate <= now:
                self._late.append(began + due / job.rate)
                due += 1
            while self._late and self._idle:
                self._send(self._idle.pop(), self._late.popleft())
            await asyncio.sleep(TICK_S)
        await asyncio.wait_for(self.done, REPLY_S_MAX + job.seconds)
        for line in lines:
            line.transport.abort()
        return self.latencies

    def _send(self, line: _Line, due: float) -> None:
        job = self._job
        text = f"{due * 1e9:0{STAMP_CHARS}.0f} {self._sent // job.users:08d} ".ljust(job.size, "x")
        body = b'{"from_user":"bench","to_user":"%b","message":"%b"}' % (job.user(self._sent).encode(), text.encode())
        head = b"POST /send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        line.due = due
        self._sent += 1
        line.transport.write(head % len(body) + body)

    def answered(self, line: _Line, body: bytes) -> None:
        self.latencies.append(time.perf_counter() - line.due)
        if len(self.latencies) == self._job.total and not self.done.done():
            self.done.set_result(None)
        elif self._late:
            self._send(line, self._late.popleft())
        else:
            self._idle.append(line)


class _Receiver(_Answered):
    def __init__(self, job: Letters) -> None:
        super().__init__()
        self._job = job
        self.latencies: list[float] = []

    async def run(self) -> list[float]:
        lines = await self.lines(self._job, self._job.users)
        for number, line in enumerate(lines):
            line.user = number
            self._ask(line)
        await asyncio.wait_for(self.done, 2 * REPLY_S_MAX + self._job.seconds)
        for line in lines:
            line.transport.abort()
        return self.latencies

    def _ask(self, line: _Line) -> None:
        after = f"&last_message_id={line.last_id}" if line.last_id else ""
        path = f"/receive?user_id={self._job.user(line.user)}&wait_ms={WAIT_MS}{after}"
        line.transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def answered(self, line: _Line, body: bytes) -> None:
        now = time.perf_counter()
        for got in decode(body).messages:
            text, number = got.message, got.message[STAMP_CHARS + 1 : STAMP_CHARS + 9]
            if got.message_id <= line.last_id or number in line.seen:
                self.failed(Refused(f"user {line.user} got {text[:40]!r} twice, or out of order"))
                return
            line.seen.add(number)
            line.last_id = got.message_id
            self.latencies.append(now - int(text[:STAMP_CHARS]) / 1e9)
        if len(self.latencies) == self._job.total and not self.done.done():
            self.done.set_result(None)
        else:
            self._ask(line)


def send(job: Letters) -> list[float]:
    """Send all; seconds from when each was due to its answer."""
    with kept_to_one_core():
        return uvloop.run(_run(_Sender, job))


def receive(job: Letters) -> list[float]:
    """Receive all; seconds from when each was due to its arrival."""
    with kept_to_one_core():
        return uvloop.run(_run(_Receiver, job))


async def _run(kind: type[_Sender] | type[_Receiver], job: Letters) -> list[float]:
    return await kind(job).run()
