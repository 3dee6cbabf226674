"""Floods of messages that are refused."""

import json

from tests.bounds.rig import Answer, ask, ask_at_once, statuses

from runnel.model.limits import KIB, MIB
from runnel.testing.process import BrokerProcess

MESSAGE_BYTES = 900 * KIB


def refused_bulk_sends(broker: BrokerProcess, rounds: int) -> str:
    """Lists of large messages into one partition: more than may wait to be written there."""
    ask(broker.http, "POST", "/v1/topics", json.dumps({"name": "bulk", "partitions": 1}).encode())
    body = json.dumps([{"text": "x" * MESSAGE_BYTES}] * 17).encode()
    answers: list[Answer] = []
    for _ in range(rounds):
        answers += ask_at_once(15, lambda _: ask(broker.http, "POST", "/v1/topics/bulk/messages?acks=all", body))
    return f"{len(answers)} lists of {len(body) // MIB} MB: {statuses(answers)}"
