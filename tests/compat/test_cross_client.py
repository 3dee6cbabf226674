"""What one client writes, every other reads, in every codec."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.compat import setup_clients
from tests.compat.agent import Message
from tests.compat.raw import batch_attributes
from tests.compat.stage import CLIENTS, CODECS, Stage, clients, values


def messages_of(writer: str) -> list[Message]:
    """A few messages that name their writer."""
    name = writer.encode()
    return [
        Message(name + b" plain " * 50, key=name, partition=0),
        Message(name + b" no key", partition=0),
        Message(None, key=name + b" tombstone", partition=0),
        Message(name + b" headers", key=name, headers=(("writer", name), ("lang", b"any")), partition=0),
    ]


@pytest.fixture(scope="module")
def written(stage: Stage) -> dict[str, tuple[str, list[Message]]]:
    """One topic for each codec, filled by every client that is there; what lies in it, in order."""
    topics = {}
    for codec in CODECS:
        topic, sent = stage.topic(f"cross-{codec}"), []
        for writer in CLIENTS:
            if setup_clients.missing(writer) is None:
                messages = messages_of(writer)
                stage.agent(writer).produce(topic, messages, codec=codec)
                sent += messages
        topics[codec] = (topic, sent)
    return topics


@clients()
@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_all_wrote(
    client: str, codec: str, stage: Stage, written: dict[str, tuple[str, list[Message]]]
) -> None:
    topic, sent = written[codec]
    found = stage.agent(client).read(topic)
    assert [Message(m.value, m.key, m.headers, m.partition) for m in found] == sent
    assert [message.offset for message in found] == list(range(len(sent)))


@pytest.fixture(scope="module")
def compressed_anew(stage: Stage) -> dict[str, tuple[str, list[Message]]]:
    """One topic for each codec that a broker can give batches, filled by every client in a codec of its own."""
    topics = {}
    for number, codec in enumerate(CODECS):
        setting = "uncompressed" if codec == "none" else codec
        topic, sent = stage.topic(f"anew-{codec}", config={"compression.type": setting}), []
        for turn, writer in enumerate(CLIENTS, number):
            if setup_clients.missing(writer) is None:
                messages = messages_of(writer)
                stage.agent(writer).produce(topic, messages, codec=CODECS[turn % len(CODECS)])
                sent += messages
        assert {attributes & 0x07 for attributes, _ in batch_attributes(stage.address, topic)} == {number}
        topics[codec] = (topic, sent)
    return topics


@clients()
@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_the_broker_compressed(
    client: str, codec: str, stage: Stage, compressed_anew: dict[str, tuple[str, list[Message]]]
) -> None:
    topic, sent = compressed_anew[codec]
    found = stage.agent(client).read(topic)
    assert [Message(m.value, m.key, m.headers, m.partition) for m in found] == sent
    assert [message.offset for message in found] == list(range(len(sent)))


def test_all_clients_write_at_once_and_each_keeps_its_order(stage: Stage) -> None:
    topic = stage.topic("crowd", partitions=2)
    writers = [writer for writer in CLIENTS if setup_clients.missing(writer) is None]
    sent = {writer: [Message(f"{writer} {n}".encode(), partition=n % 2) for n in range(500)] for writer in writers}

    def write(writer: str) -> None:
        stage.agent(writer).produce(topic, sent[writer], idempotent=True, codec="lz4")

    with ThreadPoolExecutor(len(writers)) as crowd:
        list(crowd.map(write, writers))
    found = stage.agent("java-4.3" if "java-4.3" in writers else "confluent").read(topic, partitions=2)
    assert len(found) == 500 * len(writers)
    for writer in writers:
        name = f"{writer} ".encode()
        mine = [message for message in found if message.value and message.value.startswith(name)]
        assert values(mine) == values(sorted(sent[writer], key=lambda message: message.partition or 0))
