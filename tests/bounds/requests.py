"""Floods of small requests that become large when they are decoded."""

import json
import socket
import struct

from tests.bounds.rig import LIMIT_S, Answer, Kafka, ask, ask_at_once, statuses

from runnel.model.limits import KIB, MIB
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

AT_ONCE = 4
NIL_MESSAGE = b"\x91\xc0"  # of msgpack: an array with nil in it
CALL_BYTES = 3_000_000


def calls_of_many_values(broker: BrokerProcess, rounds: int) -> str:
    """A list of empty messages as one call: each byte becomes an object."""
    count = CALL_BYTES // len(NIL_MESSAGE)
    messages = b"\xdd" + struct.pack(">I", count) + NIL_MESSAGE * count
    body = b"\x94" + b"\xa1t" + messages + b"\xff" + b"\xcd\x03\xe8"

    def one(_: int) -> Answer:
        with Kafka(broker.kafka) as kafka:
            answer = kafka.ask(Api.RUNNEL_CALL, 0, m.RunnelCallRequest(name="message.send", body=body))
        return Answer(answer.error_code, {}, b"")

    answers = [answer for _ in range(rounds) for answer in ask_at_once(AT_ONCE, one)]
    return f"{len(answers)} calls of {CALL_BYTES} bytes: codes {statuses(answers)}"


def lists_of_json(broker: BrokerProcess, rounds: int, bytes_each: int) -> str:
    body = b"[" + b",".join([b"{}"] * (bytes_each // 3)) + b"]"
    answers: list[Answer] = []
    for _ in range(rounds):
        answers += ask_at_once(AT_ONCE, lambda _: ask(broker.http, "POST", "/v1/topics/lists/messages", body))
    return f"{len(answers)} lists of {len(body) // KIB} KB: {statuses(answers)}"


def socket_messages(broker: BrokerProcess, count: int) -> str:
    """Messages that are not complete, over many WebSockets, and deflated ones where that is agreed upon."""
    ask(broker.http, "POST", "/v1/topics", json.dumps({"name": "sockets"}).encode())
    sockets, deflated = [], 0
    for _ in range(count):
        one, head = _upgraded(broker.http)
        deflated += b"permessage-deflate" in head
        sockets.append(one)
    sent = 0
    for one in sockets:
        try:
            one.sendall(b"\x02\xff" + struct.pack(">Q", MIB) + bytes(4))  # the first part of a message that goes on
            one.sendall(bytes(MIB // 2))
            sent += MIB // 2
        except OSError:
            continue  # there was no room for more
    ask(broker.http, "GET", "/health")  # what was sent before has arrived
    for one in sockets:
        one.close()
    return f"{count} WebSockets, half a message on each: {sent // MIB} MB; {deflated} of them deflated"


def _upgraded(address: str) -> tuple[socket.socket, bytes]:
    host, _, port = address.rpartition(":")
    one = socket.create_connection((host, int(port)), LIMIT_S)
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    one.sendall(
        f"GET /v1/topics/sockets/socket HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        part = one.recv(4 * KIB)
        if not part:
            raise ConnectionError("the broker closed the connection")
        head += part
    return one, head
