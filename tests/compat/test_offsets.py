"""Where reading starts: offsets by time, earliest, latest, seek, commit and resume."""

import pytest
from tests.compat.agent import Agent, Message
from tests.compat.stage import KEPT, Stage, clients, clients_but, texts, values

START = 1_700_000_000_000


@clients()
def test_offsets_by_name_and_by_time(client: str, stage: Stage) -> None:
    topic = stage.topic("times", config=KEPT)
    for number in range(10):  # each in a batch of its own
        message = Message(b"%d" % number, partition=0, timestamp=START + number * 1000)
        stage.agent("confluent").produce(topic, [message])
    agent = stage.agent(client)
    between = agent.call("offsets", topic=topic, partition=0, timestamp=START + 4500)
    assert (between["earliest"], between["latest"], between["at"]) == (0, 10, 5)
    assert between.get("largest", 9) == 9
    exact = agent.call("offsets", topic=topic, partition=0, timestamp=START + 3000)
    assert exact["at"] == 3
    before = agent.call("offsets", topic=topic, partition=0, timestamp=START - 1)
    assert before["at"] == 0
    if client != "kcat":  # its -Q knows no answer for a time after the last message
        after = agent.call("offsets", topic=topic, partition=0, timestamp=START + 1_000_000)
        assert after["at"] is None


@clients()
def test_offsets_by_time_inside_one_batch(client: str, stage: Stage) -> None:
    topic = stage.topic("times-batch", config=KEPT)
    sent = [Message(b"%d" % number, partition=0, timestamp=START + number * 1000) for number in range(10)]
    stage.agent("java-4.3" if client == "java-4.3" else "aiokafka").produce(topic, sent, codec="gzip")
    found = stage.agent(client).call("offsets", topic=topic, partition=0, timestamp=START + 4500)
    assert found["at"] == 5


@pytest.mark.side_by_side
@clients_but("kcat")
def test_a_group_resumes_where_it_committed(client: str, stage: Stage) -> None:
    topic, group = stage.topic("resume"), stage.name("resume")
    stage.agent("confluent").produce(topic, texts("a", 10, partitions=1))
    first = stage.member(client, group, topic)
    first.wait(lambda: len(first.records) == 10, "the first ten")
    first.call("commit")
    if client != "kafkajs":  # it has no such call for a consumer
        assert first.call("committed", topic=topic, partition=0) == 10
    first.leave()
    stage.agent("confluent").produce(topic, texts("b", 5, partitions=1))
    second = stage.member(client, group, topic)
    second.wait(lambda: len(second.records) == 5, "the other five")
    assert values(second.records) == [b"b-%d" % number for number in range(5)]
    second.leave()


@pytest.mark.side_by_side
@clients_but("kcat")
def test_seek(client: str, stage: Stage) -> None:
    topic = stage.topic("seek")
    stage.agent("confluent").produce(topic, texts("s", 10, partitions=1))
    member = stage.member(client, stage.name("seek"), topic)
    member.wait(lambda: len(member.records) == 10, "all ten")
    member.call("seek", topic=topic, partition=0, offset=7)
    member.wait(lambda: len(member.records) == 13, "the last three again")
    assert values(member.records)[10:] == [b"s-7", b"s-8", b"s-9"]
    member.leave()


@pytest.mark.side_by_side
@clients()
def test_latest_starts_at_the_end(client: str, stage: Stage) -> None:
    topic = stage.topic("latest")
    stage.agent("confluent").produce(topic, texts("before", 10, partitions=1))
    member: Agent = stage.member(client, stage.name("latest"), topic, reset="latest")
    member.wait_assigned(1)
    sent = 0

    def something_arrived() -> bool:  # where "latest" is, is decided at the first fetch: send until it was
        nonlocal sent
        sent += 1
        stage.agent(client).produce(topic, [Message(b"after-%d" % sent, partition=0)])
        return bool(member.records)

    member.wait(something_arrived, "a message sent after the start")
    assert all(value is not None and value.startswith(b"after-") for value in values(member.records))
    member.leave()


@pytest.mark.side_by_side
@clients()
def test_an_offset_that_is_gone_falls_back_to_the_earliest(client: str, stage: Stage) -> None:
    topic, group = stage.topic("range"), stage.name("range")
    stage.agent("confluent").produce(topic, texts("r", 10, partitions=1))
    stage.agent("confluent").call("set_group_offset", group=group, topic=topic, partition=0, offset=2)
    stage.agent("confluent").call("delete_records", topic=topic, partition=0, offset=6)
    member = stage.member(client, group, topic)
    member.wait(lambda: len(member.records) == 4, "what is left")
    assert values(member.records) == [b"r-6", b"r-7", b"r-8", b"r-9"]
    member.leave()


@clients("confluent", "aiokafka", "kafka-python", "java-3.9", "java-4.3")
def test_offsets_are_committed_without_being_a_member(client: str, stage: Stage) -> None:
    topic, group = stage.topic("alone", partitions=2), stage.name("alone")
    where = {"group": group, "topic": topic, "partition": 1}
    assert stage.agent(client).call("commit_alone", **where, offset=42) == 42
    assert stage.agent(client).call("commit_alone", **where, offset=7) == 7
    assert stage.agent("confluent").call("group_offsets", group=group) == {f"{topic}/1": 7}


SMALL_FETCHES = {
    "confluent": {"max.partition.fetch.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000},
    "java-3.9": {"max.partition.fetch.bytes": 1000, "fetch.max.bytes": 1000},
    "java-4.3": {"max.partition.fetch.bytes": 1000, "fetch.max.bytes": 1000},
}


@pytest.mark.side_by_side
@clients(*SMALL_FETCHES)
def test_a_message_larger_than_the_fetch_arrives_all_the_same(client: str, stage: Stage) -> None:
    topic = stage.topic("large-fetch")
    sent = [Message(bytes([number]) * 50_000, partition=0) for number in range(4)]
    for message in sent:
        stage.agent(client).produce(topic, [message])
    member = stage.member(client, stage.name("large-fetch"), topic, native=SMALL_FETCHES[client])
    member.wait(lambda: len(member.records) == 4, "all four")
    assert values(member.records) == values(sent)
    member.leave()
