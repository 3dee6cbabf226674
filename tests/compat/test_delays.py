"""Delayed and named messages, as every client sends and reads them: what is taken out of batches harms no sequence."""

import time

from tests.compat.agent import Message
from tests.compat.stage import Stage, clients, values
from tests.compat.waiting import wait_until

PATIENCES_MS = (2_000, 10_000, 45_000)  # until messages are due: a busy machine may need that long to send them


def _all(client: str, stage: Stage, topic: str, count: int) -> list[bytes | None]:
    """What is there as soon as so many are; every client reads over the gaps."""
    found: list[bytes | None] = []

    def enough() -> bool:
        found[:] = values(stage.agent(client).read(topic, partitions=1))
        return len(found) >= count

    wait_until(enough, f"{count} messages in {topic}")
    return found


@clients()
def test_delayed_messages_come_later_in_the_order_of_their_times(client: str, stage: Stage) -> None:
    for patience_ms in PATIENCES_MS:
        topic = stage.topic("delayed", config={"delay.enable": "true"})
        in_time = _send_some_later(client, stage, topic, patience_ms)
        found = [int(value or b"") for value in _all(client, stage, topic, 40)]
        at_once, late = [n for n in found if n % 4 != 3], [n for n in found if n % 4 == 3]
        assert at_once == [n for n in range(40) if n % 4 != 3]
        assert sorted(late) == [n for n in range(40) if n % 4 == 3]
        if in_time:
            assert found == at_once + sorted(late, reverse=True)
            return
    raise AssertionError("the messages were never there before they were due")


def _send_some_later(client: str, stage: Stage, topic: str, patience_ms: int) -> bool:
    """Every fourth of 40 messages, the last one due first; whether all were kept well before that."""
    stage.agent(client).produce(stage.topic("warm"), [Message(b"", partition=0)])  # its client runs by now
    due = int(time.time() * 1000) + patience_ms
    batch = [
        Message(b"%d" % n, b"k", (("runnel-deliver-at", b"%d" % (due - n)),) if n % 4 == 3 else (("x", b"y"),), 0)
        for n in range(40)
    ]
    for first in range(0, 40, 8):
        stage.agent(client).produce(topic, batch[first : first + 8])
    return time.time() * 1000 < due - 500


@clients()
def test_a_batch_of_delayed_messages_alone_leaves_its_producer_whole(client: str, stage: Stage) -> None:
    topic = stage.topic("delayed", config={"delay.enable": "true"})
    agent = stage.agent(client)
    for n in range(3):
        agent.produce(topic, [Message(b"late %d" % n, b"k", (("runnel-delay-ms", b"500"),), 0)])
        agent.produce(topic, [Message(b"now %d" % n, b"k", (), 0)])
    found = _all(client, stage, topic, 6)
    assert [value for value in found if value and value.startswith(b"now")] == [b"now 0", b"now 1", b"now 2"]
    assert [value for value in found if value and value.startswith(b"late")] == [b"late 0", b"late 1", b"late 2"]


@clients()
def test_a_second_message_of_a_name_is_not_kept(client: str, stage: Stage) -> None:
    topic = stage.topic("named", config={"dedup.window.ms": "600000"})
    for turn in range(3):
        batch = [
            Message(b"%d.%d" % (turn, n), b"k", (("runnel-message-id", b"id-%d" % (n // 2)),), 0) for n in range(6)
        ]
        stage.agent(client).produce(topic, [*batch, Message(b"plain %d" % turn, b"k", (("x", b"y"),), 0)])
    assert _all(client, stage, topic, 6) == [b"0.0", b"0.2", b"0.4", b"plain 0", b"plain 1", b"plain 2"]
