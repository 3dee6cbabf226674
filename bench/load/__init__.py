"""Load: what a client does to a server, in a process of its own.

Rule 1: requests are made before the clock starts; what runs on the clock is sending, receiving and counting.
Rule 2: a job is plain data, so that it can be sent to a worker; a worker knows no peer, only a protocol.
"""

import io
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeAlias

RECEIVE_BYTES = 1 << 20
REPLY_S_MAX = 60.0  # a server that says nothing for so long has failed

AckCounter: TypeAlias = Callable[[bytes], int]  # bytes as they arrive -> how many requests they answer


class Refused(Exception):
    """The server answered with an error."""


class Dialect(Protocol):
    """One stream on one server, in the server's own protocol."""

    def for_connection(self, number: int) -> "Dialect":
        """The same stream, for one of several connections of a process."""
        ...

    def connect(self) -> socket.socket:
        """A connection that is ready for requests."""
        ...

    def create(self) -> None:
        """Make the stream, and wait until it can be used."""
        ...

    def delete(self) -> None: ...

    def request(self, payloads: Sequence[bytes]) -> bytes:
        """The bytes that publish these messages; answered `answers(len(payloads))` times."""
        ...

    def answers(self, messages: int) -> int: ...

    def acks(self) -> AckCounter: ...

    def read(self, total: int) -> Iterator[int]:
        """Read the stream from its start; yields how many messages came, until `total` have come."""
        ...

    def tail(self) -> Iterator[bytes]:
        """The first bytes of every message as it arrives, from the start on and without end."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one job took. The client's CPU time tells whether the client or the server was the limit."""

    messages: int
    seconds: float
    client_cpu_s: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    made = socket.create_connection((host, int(port)), timeout=REPLY_S_MAX)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def stream_of(connection: socket.socket) -> BinaryIO:
    """To read lines and counted bytes from."""
    return io.BufferedReader(connection.makefile("rb", buffering=0), RECEIVE_BYTES)


def payload(size: int, start: bytes = b"") -> bytes:
    """A message of `size` bytes: letters, so that no protocol mistakes it for framing."""
    letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._"
    return (start + letters * (size // len(letters) + 1))[:size]
