"""Redis Streams in RESP: XADD, pipelined, and XREAD."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from bench.load import AckCounter, Refused, connect, stream_of

READ_COUNT = 1000
BLOCK_MS = 1000


@dataclass(frozen=True, slots=True)
class RedisWire:
    address: str
    topic: str

    def for_connection(self, number: int) -> "RedisWire":
        return self

    def connect(self) -> socket.socket:
        return connect(self.address)

    def create(self) -> None:
        """XADD makes the stream."""

    def delete(self) -> None:
        with self.connect() as connection:
            connection.sendall(command("UNLINK", self.topic))
            reply(stream_of(connection))

    def request(self, payloads: Sequence[bytes]) -> bytes:
        return b"".join(command("XADD", self.topic, "*", "d", value) for value in payloads)

    def answers(self, messages: int) -> int:
        return messages

    def acks(self) -> AckCounter:
        def count(received: bytes) -> int:
            if b"-ERR" in received:
                raise Refused(received.decode(errors="replace")[:200])
            return received.count(b"$")  # an id is a bulk string of digits and one dash

        return count

    def read(self, total: int) -> Iterator[int]:
        seen = 0
        for entries in self._entries():
            yield len(entries)
            seen += len(entries)
            if seen >= total:
                return

    def tail(self) -> Iterator[bytes]:
        for entries in self._entries():
            for _, fields in entries:
                yield fields[1]

    def _entries(self) -> Iterator[list[Any]]:
        last = b"0"
        with self.connect() as connection:
            stream = stream_of(connection)
            while True:
                connection.sendall(
                    command("XREAD", "COUNT", READ_COUNT, "BLOCK", BLOCK_MS, "STREAMS", self.topic, last)
                )
                if answer := reply(stream):
                    entries = answer[0][1]
                    last = entries[-1][0]
                    yield entries


def command(*words: str | bytes | int) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def reply(stream: BinaryIO) -> Any:
    """One RESP value; the client's half of the protocol in ten lines."""
    line = stream.readline()
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"$":
            return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
        case b"*":
            return [reply(stream) for _ in range(int(rest))]
        case b":":
            return int(rest)
        case b"+":
            return rest
    raise Refused(line.decode(errors="replace") or "the server closed the connection")
