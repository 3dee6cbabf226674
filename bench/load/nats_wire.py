"""NATS JetStream in the NATS text protocol: PUB with a reply subject for the acknowledgement, and a pull consumer."""

import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from bench.load import AckCounter, Refused, connect, stream_of

ANSWERS = "_INBOX.answer"
DELIVERY = "_INBOX.delivery"
CONSUMER = "bench"
PULL = 2000  # messages asked for at a time; as many again are asked for when half of them have come


@dataclass(frozen=True, slots=True)
class NatsWire:
    address: str
    topic: str
    number: int = 0

    def for_connection(self, number: int) -> "NatsWire":
        return replace(self, number=number)

    @property
    def _acks_to(self) -> str:
        return f"_INBOX.ack.{self.number}"

    def connect(self) -> socket.socket:
        return _open(self.address, self._acks_to)

    def create(self) -> None:
        stream = {"name": self.topic, "subjects": [self.topic], "storage": "file", "num_replicas": 1}
        self._ask(f"$JS.API.STREAM.CREATE.{self.topic}", stream)

    def delete(self) -> None:
        self._ask(f"$JS.API.STREAM.DELETE.{self.topic}", {})

    def request(self, payloads: Sequence[bytes]) -> bytes:
        subject, acks_to = self.topic.encode(), self._acks_to.encode()
        return b"".join(b"PUB %b %b %d\r\n%b\r\n" % (subject, acks_to, len(p), p) for p in payloads)

    def answers(self, messages: int) -> int:
        return messages

    def acks(self) -> AckCounter:
        def count(received: bytes) -> int:
            if b'"error"' in received or b"-ERR" in received:
                raise Refused(received.decode(errors="replace")[:200])
            return received.count(b"}")  # an acknowledgement is one flat JSON object

        return count

    def read(self, total: int) -> Iterator[int]:
        for seen, _ in enumerate(self.tail(), 1):
            yield 1
            if seen == total:
                return

    def tail(self) -> Iterator[bytes]:
        consumer = {"durable_name": CONSUMER, "ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant"}
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{self.topic}.{CONSUMER}"
        self._ask(subject, {"stream_name": self.topic, "config": consumer})
        asked, seen = 0, 0
        with _open(self.address, DELIVERY) as connection:
            stream = stream_of(connection)
            while True:
                if asked - seen <= PULL // 2:
                    _publish(
                        connection, f"$JS.API.CONSUMER.MSG.NEXT.{self.topic}.{CONSUMER}", {"batch": PULL}, DELIVERY
                    )
                    asked += PULL
                yield _message(stream)
                seen += 1

    def _ask(self, subject: str, body: dict[str, Any]) -> None:
        with _open(self.address, ANSWERS) as connection:
            _publish(connection, subject, body, ANSWERS)
            answer = json.loads(_message(stream_of(connection)))
        if "error" in answer:
            raise Refused(f"{subject}: {answer['error']}")


def _open(address: str, inbox: str) -> socket.socket:
    """A connection that gets what is sent to its inbox."""
    connection = connect(address)
    options = json.dumps({"verbose": False, "pedantic": False, "lang": "python", "version": "0"})
    connection.sendall(f"CONNECT {options}\r\nSUB {inbox} 1\r\nPING\r\n".encode())
    received = b""
    while not received.endswith(b"PONG\r\n"):
        received += connection.recv(65536)
    return connection


def _publish(connection: socket.socket, subject: str, body: dict[str, Any], answer_to: str) -> None:
    raw = json.dumps(body).encode()
    connection.sendall(f"PUB {subject} {answer_to} {len(raw)}\r\n".encode() + raw + b"\r\n")


def _message(stream: BinaryIO) -> bytes:
    """The next message; pings are answered by silence, the server allows two of them, two minutes apart."""
    while line := stream.readline():
        if line.startswith(b"MSG "):
            return stream.read(int(line.rsplit(b" ", 1)[-1]) + 2)[:-2]
        if line.startswith(b"-ERR"):
            raise Refused(line.decode(errors="replace"))
    raise Refused("the server closed the connection")
