"""Answers that clients ask for and do not take."""

import json
import time

from tests.bounds.rig import LIMIT_S, Kafka, ask

from runnel.model.ids import NO_TOPIC_ID
from runnel.model.limits import KIB, MIB
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

TOPIC = "answers"
BYTES = 60 * MIB
Fetched = m.FetchRequest.FetchTopic
FETCH_V = 12  # by name


def filled(broker: BrokerProcess) -> None:
    """A topic with more in it than one answer takes."""
    made = ask(broker.http, "POST", "/v1/topics", json.dumps({"name": TOPIC, "partitions": 1}).encode())
    if made.status == 409:
        return
    body = json.dumps([{"text": "x" * 900 * KIB}] * 15).encode()
    for _ in range(BYTES // len(body) + 1):
        assert ask(broker.http, "POST", f"/v1/topics/{TOPIC}/messages", body).status == 200


def fetch_of(bytes_max: int) -> m.FetchRequest:
    wanted = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=bytes_max)
    topics = [Fetched(topic=TOPIC, topic_id=NO_TOPIC_ID, partitions=[wanted])]
    return m.FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, topics=topics, session_epoch=-1
    )


def fetches_not_taken(broker: BrokerProcess, clients: int) -> str:
    """Each client asks for all that it may, and reads nothing of it."""
    filled(broker)
    before = answered(broker)
    connections = [Kafka(broker.kafka) for _ in range(clients)]
    try:
        for one in connections:
            one.send(Api.FETCH, FETCH_V, fetch_of(BYTES))
        wait_until_answered(broker, before + clients)
        with Kafka(broker.kafka) as another:  # gets on all the same
            answer = another.ask(Api.FETCH, FETCH_V, fetch_of(BYTES))
        got = len(answer.responses[0].partitions[0].records or b"")
    finally:
        for one in connections:
            one.socket.close()
    return f"{clients} fetches of {BYTES // MIB} MB that nobody takes; another one got {got / MIB:.1f} MB"


def wait_until_answered(broker: BrokerProcess, count: float) -> None:
    """Until the broker has answered so many requests of Kafka's protocol, as its metrics tell."""
    end = time.monotonic() + LIMIT_S
    while answered(broker) < count and time.monotonic() < end:
        time.sleep(0.05)


def answered(broker: BrokerProcess) -> float:
    told = ask(broker.http, "GET", "/metrics").content.decode()
    name = 'runnel_door_requests_total{door="kafka"} '
    return next(float(line.removeprefix(name)) for line in told.splitlines() if line.startswith(name))
