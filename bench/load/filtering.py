"""Messages of which a hundredth is wanted: written, and read through whatever a server has for choosing them.

A message has a key, a header and a field of its JSON value that say the same number below a hundred; on NATS, which
chooses by subject alone, a subject says it.
"""

import json
import time
from dataclasses import dataclass

from bench.load import Outcome, Refused, stream_of
from bench.load.drive import Stopwatch, receive
from bench.load.kafka_wire import KafkaWire, next_offset
from bench.load.line import Line
from bench.load.nats_wire import DELIVERY, NatsWire, _message, _open, _publish
from runnel.record import records
from runnel.record.records import Record
from runnel.route.filter import Filter
from runnel.route.message import View

KINDS = 100
WANTED = KINDS - 1  # the last of each batch, so that a reader ends where the log ends
PULL = 500
WINDOW = 4


@dataclass(frozen=True, slots=True)
class Written:
    log: KafkaWire | NatsWire
    messages: int  # a multiple of KINDS
    size: int


@dataclass(frozen=True, slots=True)
class Sought:
    """Read a topic, or a view, of so many messages to its end."""

    log: KafkaWire | NatsWire
    messages: int


@dataclass(frozen=True, slots=True)
class Found:
    outcome: Outcome  # of all messages of the source
    received_bytes: int


@dataclass(frozen=True, slots=True)
class Judged:
    text: str
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class Cost:
    compile_s: float
    message_s: float


def value_of(number: int, size: int) -> bytes:
    rows = [{"id": row, "price": row * 1.5, "label": f"item {row}"} for row in range(size // 60)]
    body = json.dumps({"amount": number, "customer": {"city": "Bern"}, "rows": rows}).encode()
    return body[:-1] + b" " * max(0, size - len(body)) + body[-1:]


def write(job: Written) -> None:
    if isinstance(job.log, NatsWire):
        _write_nats(job.log, job)
        return
    rows = [
        Record(n, 1_700_000_000_000, b"k%d" % n, value_of(n, job.size), (("region", b"r%d" % n),)) for n in range(KINDS)
    ]
    request = job.log.request_of(records.encode(rows))
    with job.log.connect() as connection:
        acks, waiting = job.log.acks(), 0
        for _ in range(job.messages // KINDS):
            connection.sendall(request)
            waiting += 1
            while waiting >= WINDOW:
                waiting -= acks(receive(connection))
        while waiting:
            waiting -= acks(receive(connection))


def seek(job: Sought) -> Found:
    if isinstance(job.log, NatsWire):
        return _seek_nats(job.log, job.messages)
    watch, offset, received = Stopwatch(), 0, 0
    with job.log.connect() as connection:
        line = Line(connection)
        while offset < job.messages:
            answer = line.ask(job.log.fetch_request(offset))
            received += len(answer)
            after = next_offset(job.log.fetched(answer), offset)
            if after == offset and watch.seconds() > 600:
                raise Refused(f"{job.log.topic} gave nothing behind offset {offset}")
            offset = after
    return Found(watch.outcome(job.messages), received)


def judge(job: Judged) -> Cost:
    """What a filter costs this process, in CPU time."""
    begun = time.process_time()
    passes = Filter(job.text).passes
    compile_s = time.process_time() - begun
    view = View(
        "t", 0, 1, 1_700_000_000_000, b"k7", value_of(7, job.size), (("region", b"r7"), ("trace", b"0af7651916cd"))
    )
    count, begun = 0, time.process_time()
    while (took := time.process_time() - begun) < job.seconds:
        for _ in range(10):
            passes(view)
        count += 10
    return Cost(compile_s, took / count)


# --- NATS
def create_nats(log: NatsWire) -> None:
    stream = {"name": log.topic, "subjects": [f"{log.topic}.*"], "storage": "file", "num_replicas": 1}
    log._ask(f"$JS.API.STREAM.CREATE.{log.topic}", stream)


def _write_nats(log: NatsWire, job: Written) -> None:
    parts = []
    for number in range(KINDS):
        value = value_of(number, job.size)
        subject, to = f"{log.topic}.{number}".encode(), log._acks_to.encode()
        parts.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, to, len(value), value))
    request = b"".join(parts)
    with log.connect() as connection:
        acks, waiting = log.acks(), 0
        for _ in range(job.messages // KINDS):
            connection.sendall(request)
            waiting += KINDS
            while waiting >= WINDOW * KINDS:
                waiting -= acks(receive(connection))
        while waiting:
            waiting -= acks(receive(connection))


def _seek_nats(log: NatsWire, messages: int) -> Found:
    chosen = f"{log.topic}.{WANTED}"
    made = {"durable_name": "chosen", "ack_policy": "none", "deliver_policy": "all", "filter_subject": chosen}
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{log.topic}.chosen"
    watch, seen, asked, received = Stopwatch(), 0, 0, 0
    log._ask(subject, {"stream_name": log.topic, "config": {**made, "replay_policy": "instant"}})
    with _open(log.address, DELIVERY) as connection:
        stream = stream_of(connection)
        while seen < messages // KINDS:
            if asked - seen <= PULL // 2:
                _publish(connection, f"$JS.API.CONSUMER.MSG.NEXT.{log.topic}.chosen", {"batch": PULL}, DELIVERY)
                asked += PULL
            received += len(_message(stream))
            seen += 1
    found = Found(watch.outcome(messages), received)
    log._ask(f"$JS.API.CONSUMER.DELETE.{log.topic}.chosen", {})  # the next round begins at the first message again
    return found
