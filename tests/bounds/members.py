"""Members of groups that say much of themselves."""

from functools import partial

from tests.bounds.rig import Answer, Kafka, ask_at_once, statuses

from runnel.model.limits import MIB
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

JOIN_V = 3  # the last one in which a member has its place at once
SESSION_MS = 1_800_000
AT_ONCE = 10


def members_that_say_much(broker: BrokerProcess, count: int, bytes_each: int) -> str:
    """Each in a group of its own, for half an hour."""
    with Kafka(broker.kafka) as kafka:
        while kafka.ask(Api.FIND_COORDINATOR, 1, m.FindCoordinatorRequest(key="g", key_type=0)).error_code:
            pass  # the topic of groups is being made

    def one(number: int) -> Answer:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(bytes_each))
        request = m.JoinGroupRequest(
            group_id=f"flood-{number}", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS,
            member_id="", protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        with Kafka(broker.kafka) as kafka:
            return Answer(kafka.ask(Api.JOIN_GROUP, JOIN_V, request).error_code, {}, b"")

    answers: list[Answer] = []
    for first in range(0, count, AT_ONCE):
        answers += ask_at_once(AT_ONCE, partial(lambda first, number: one(first + number), first))
    return f"{count} members that say {bytes_each / MIB:.1f} MB each: codes {statuses(answers)}"
