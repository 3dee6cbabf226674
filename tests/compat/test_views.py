"""Views, as every client reads them: topics of which somebody else chose the messages."""

import pytest
from tests.compat.agent import COMMITTED, UNCOMMITTED, Message, Refused
from tests.compat.stage import Stage, clients, clients_but, settle, values
from tests.compat.transactional import Transactional
from tests.compat.waiting import wait_until

INVALID_TOPIC = 17


def view(stage: Stage, source: str, chosen: str, *, partitions: int) -> str:
    return stage.topic("view", partitions=partitions, config={"view.of": source, "view.filter": chosen})


def numbered(first: int, count: int, partitions: int) -> list[Message]:
    """One in a hundred is wanted."""
    return [
        Message(b"%d" % n, b"k%d" % n, (("wanted", b"yes" if n % 100 == 7 else b"no"),), (n + n // 100) % partitions)
        for n in range(first, first + count)
    ]


@clients()
def test_a_view_shows_what_passes_at_the_offsets_of_its_source(client: str, stage: Stage) -> None:
    source = stage.topic("source", partitions=2)
    shown = view(stage, source, "headers.wanted = 'yes'", partitions=2)
    stage.agent("confluent").produce(source, numbered(0, 4_000, 2))
    found = stage.agent(client).read(shown, partitions=2)
    assert sorted(int(value or b"") for value in values(found)) == list(range(7, 4_000, 100))
    there = {message.value: message.offset for message in stage.agent("confluent").read(source, partitions=2)}
    assert all(there[message.value] == message.offset for message in found)
    for number in range(2):
        offsets = [message.offset or 0 for message in found if message.partition == number]
        assert offsets == sorted(set(offsets))


@pytest.mark.side_by_side
@clients_but("kcat")
def test_a_group_shares_a_view(client: str, stage: Stage) -> None:
    source, group = stage.topic("source", partitions=4), stage.name("group")
    shown = view(stage, source, "headers.wanted = 'yes'", partitions=4)
    stage.agent("confluent").produce(source, numbered(0, 2_000, 4))
    first = stage.member(client, group, shown)
    first.wait_values(b"%d" % n for n in range(7, 2_000, 100))
    first.call("commit")
    second = stage.member(client, group, shown)
    settle(first, second, counts=(2, 2))
    for member in (first, second):
        member.records.clear()
    stage.agent("confluent").produce(source, numbered(2_000, 2_000, 4))
    wanted = {b"%d" % n for n in range(2_007, 4_000, 100)}
    wait_until(lambda: wanted <= {*values(first.records), *values(second.records)}, "every late message")
    assert {*values(first.records), *values(second.records)} == wanted
    for member in (first, second):
        member.leave()


@clients_but("kcat")
def test_who_has_read_all_has_no_lag(client: str, stage: Stage) -> None:
    source, group = stage.topic("source"), stage.name("group")
    shown = view(stage, source, "headers.wanted = 'yes'", partitions=1)
    stage.agent("confluent").produce(source, numbered(0, 1_000, 1))
    member = stage.member(client, group, shown)
    member.wait_values(b"%d" % n for n in range(7, 1_000, 100))
    member.call("commit")
    end = stage.agent("confluent").call("offsets", topic=shown, partition=0, timestamp=0)["latest"]
    assert stage.agent("confluent").call("group_offsets", group=group)[f"{shown}/0"] == end
    member.leave()


@clients()
def test_one_message_behind_much_that_does_not_pass(client: str, stage: Stage) -> None:
    """More than a broker looks at for one fetch: its answers say only where to go on."""
    source = stage.topic("source")
    shown = view(stage, source, "key = 'needle'", partitions=1)
    hay = [Message(b"x" * 900_000, b"hay", partition=0)] * 40
    stage.agent("confluent").produce(source, [*hay, Message(b"found", b"needle", partition=0)])
    assert values(stage.agent(client).read(shown, partitions=1)) == [b"found"]
    member = stage.member(client, stage.name("group"), shown)
    member.wait_values([b"found"])
    member.leave()


@clients()
def test_committed_messages_alone(client: str, stage: Stage) -> None:
    source = stage.topic("source")
    shown = view(stage, source, "value LIKE '%-1'", partitions=1)
    writer = Transactional(stage.agent("confluent"), stage.name("tx"))
    for name, ending in (("a", "commit"), ("b", "abort"), ("c", "commit")):
        writer.begin().send(source, *(Message(b"%s-%d" % (name.encode(), n), partition=0) for n in range(3)))
        getattr(writer, ending)()
    writer.close()
    reader = stage.agent(client)
    wait_until(
        lambda: values(reader.read(shown, partitions=1, isolation=COMMITTED)) == [b"a-1", b"c-1"], "what was committed"
    )
    assert values(reader.read(shown, partitions=1, isolation=UNCOMMITTED)) == [b"a-1", b"b-1", b"c-1"]


@clients_but("kcat", "kafkajs")
def test_nobody_writes_to_a_view(client: str, stage: Stage) -> None:
    shown = view(stage, stage.topic("source"), "TRUE", partitions=1)
    with pytest.raises(Refused) as refused:
        stage.agent(client).produce(shown, [Message(b"x", partition=0)])
    assert refused.value.code in (INVALID_TOPIC, None)
