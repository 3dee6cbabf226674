"""The broker is killed and started again under the hands of every client: nothing acknowledged is lost or doubled.

kcat is not among them: it ends itself when its only broker goes away.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.compat.agent import Agent, Message
from tests.compat.raw import end_offset
from tests.compat.stage import Stage, clients_but, texts, values

from runnel.testing.process import BrokerProcess

MESSAGES = 20_000
ATTEMPTS_MAX = 10
SMALL_BATCHES = {  # so that the kill falls between many batches, not before or behind a single one
    "confluent": {"batch.num.messages": 100},
    "kafka-python": {"batch_size": 2000},
    "aiokafka": {"max_batch_size": 2000},
    "java-3.9": {"batch.size": 2000},
    "java-4.3": {"batch.size": 2000},
}


@dataclass
class Mortal:
    """A broker that these tests may kill, and the clients that talk to it."""

    broker: BrokerProcess
    stage: Stage

    def crash(self) -> None:
        """SIGKILL, and a new start at the same address."""
        self.broker.kill()
        self.broker.start()


@pytest.fixture(scope="module")
def mortal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    if request.config.getoption("--bootstrap", default=None):
        pytest.skip("a broker that was not started here is not killed here")
    folder = tmp_path_factory.mktemp("restart")
    with BrokerProcess(folder / "data") as broker:
        stage = Stage(broker.kafka, folder)
        yield Mortal(broker, stage)
        stage.close()


@clients_but("kcat")
def test_a_member_goes_on_where_it_was(client: str, mortal: Mortal) -> None:
    stage = mortal.stage
    topic, group = stage.topic("read"), stage.name("read")
    stage.agent("confluent").produce(topic, texts("before", 10, partitions=1))
    member = stage.member(client, group, topic, session_ms=20_000)
    member.wait(lambda: len(member.records) == 10, "ten messages")
    member.call("commit")
    mortal.crash()
    stage.agent("confluent").produce(topic, texts("after", 10, partitions=1))
    member.wait_values(b"after-%d" % number for number in range(10))
    assert values(member.records) == [b"before-%d" % n for n in range(10)] + [b"after-%d" % n for n in range(10)]
    member.leave()
    assert stage.agent("confluent").call("group_offsets", group=group) == {f"{topic}/0": 10}


@clients_but("kcat")
def test_an_idempotent_producer_loses_and_doubles_nothing(client: str, mortal: Mortal) -> None:
    stage, agent = mortal.stage, mortal.stage.agent(client)
    for _ in range(ATTEMPTS_MAX):
        topic = stage.topic("write")
        interrupted = killed_while_writing(mortal, agent, topic, SMALL_BATCHES.get(client, {}))
        assert values(stage.agent("confluent").read(topic)) == [b"%d" % number for number in range(MESSAGES)]
        if interrupted:
            return
    pytest.fail(f"{client} was too quick to be interrupted, {ATTEMPTS_MAX} times")


def killed_while_writing(mortal: Mortal, agent: Agent, topic: str, native: dict[str, int]) -> bool:
    """Kill the broker when the first batch is in; whether the client still had something to send then."""
    records = [Message(b"%d" % number, partition=0).to_json() for number in range(MESSAGES)]
    options = {"idempotent": True, "native": native}
    with mortal.stage.connect() as line:
        request = agent.start("produce", topic=topic, records=records, codec="none", acks=-1, options=options)
        agent.wait(lambda: end_offset(line, topic) > 0, "a first batch")
    mortal.crash()
    with mortal.stage.connect() as line:
        written = end_offset(line, topic)
    agent.result(request)
    return written < MESSAGES
