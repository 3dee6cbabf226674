"""Groups whose assignment the broker makes (KIP-848), and groups on their way between the two protocols."""

import pytest
from tests.compat.agent import Agent
from tests.compat.stage import Stage, clients, settle, texts, values
from tests.compat.waiting import wait_until

NEW = {"protocol": "consumer"}
ABLE = ("confluent", "java-3.9", "java-4.3")


@pytest.mark.side_by_side
@clients(*ABLE)
def test_join_commit_leave(client: str, stage: Stage) -> None:
    topic, group = stage.topic("new", partitions=4), stage.name("new")
    stage.agent("confluent").produce(topic, texts("a", 40, partitions=4))
    first = stage.member(client, group, topic, **NEW)
    first.wait_assigned(4)
    first.wait_values(b"a-%d" % number for number in range(40))
    first.call("commit")
    second = stage.member(client, group, topic, **NEW)
    settle(first, second, counts=(2, 2))
    stage.agent("confluent").produce(topic, texts("b", 40, partitions=4))
    wanted = {b"b-%d" % number for number in range(40)}
    wait_until(lambda: wanted <= {*values(first.records), *values(second.records)}, "every message of the second round")
    assert set(values(second.records)) < wanted, "what was committed does not come again"
    described = stage.agent(client).call("describe_group", group=group)
    assert (described["state"], len(described["members"])) == ("STABLE", 2)
    first.call("commit")
    first.leave()
    second.wait_assigned(4)
    second.leave()


@pytest.mark.side_by_side
@clients("confluent", "java-4.3")
def test_a_static_member_returns_to_its_partitions(client: str, stage: Stage) -> None:
    topic, group = stage.topic("new-static", partitions=2), stage.name("new-static")
    first = stage.member(client, group, topic, instance="one", **NEW)
    first.wait_assigned(2)
    second = stage.member(client, group, topic, instance="two", **NEW)
    settle(first, second, counts=(1, 1))
    before = first.assignment
    first.leave()
    again = stage.member(client, group, topic, instance="one", **NEW)
    again.wait_assigned(1)
    assert again.assignment == before, "it gets what it had"
    again.leave()
    second.leave()


@pytest.mark.side_by_side
@clients("confluent", "java-4.3")
def test_more_members_than_partitions_stand_by(client: str, stage: Stage) -> None:
    topic, group = stage.topic("new-standby", partitions=2), stage.name("new-standby")
    members = [stage.member(client, group, topic, **NEW) for _ in range(3)]
    settle(*members, counts=(0, 1, 1))
    for member in members:
        member.leave()


PATTERN_OPTION = {"confluent": "pattern", "java-4.3": "broker_pattern"}  # the option that hands it to the broker


@pytest.mark.side_by_side
@clients("confluent", "java-4.3")
def test_the_broker_follows_a_pattern(client: str, stage: Stage) -> None:
    prefix = stage.name("new-pattern")
    admin = stage.agent("confluent")
    admin.call("create_topic", topic=f"{prefix}-one", partitions=1, config={})
    text = f"{'^' if client == 'confluent' else ''}{prefix}-.*"
    member = stage.member(client, stage.name("new-pattern"), **{PATTERN_OPTION[client]: text}, **NEW)
    member.wait_assigned(1)
    admin.call("create_topic", topic=f"{prefix}-two", partitions=2, config={})
    member.wait_assigned(3)
    member.leave()


@pytest.mark.side_by_side
@pytest.mark.parametrize("assignor", ["uniform", "range"])
@clients("confluent", "java-4.3")
def test_a_member_names_the_assignor(client: str, assignor: str, stage: Stage) -> None:
    topic, group = stage.topic("new-assignor", partitions=4), stage.name("new-assignor")
    native = {"group.remote.assignor": assignor}
    members = [stage.member(client, group, topic, native=native, **NEW) for _ in range(2)]
    settle(*members, counts=(2, 2))
    if assignor == "range":
        assert {frozenset(number for _, number in member.assignment) for member in members} == {
            frozenset({0, 1}),
            frozenset({2, 3}),
        }
    for member in members:
        member.leave()


@pytest.mark.side_by_side
@clients("confluent", "java-4.3")
def test_a_group_moves_to_the_new_protocol_and_back_while_it_works(client: str, stage: Stage) -> None:
    topic, group = stage.topic("migrate", partitions=4), stage.name("migrate")
    got: list[bytes | None] = []

    def round_of(name: str, *members: Agent) -> None:
        stage.agent("confluent").produce(topic, texts(name, 20, partitions=4))
        wanted = {b"%s-%d" % (name.encode(), number) for number in range(20)}
        wait_until(lambda: wanted <= {value for member in members for value in values(member.records)}, f"round {name}")
        for member in members:
            got.extend(values(member.records))
            member.records.clear()
            member.call("commit")

    old = stage.member(client, group, topic, session_ms=10_000)
    old.wait_assigned(4)
    round_of("classic", old)
    new = stage.member(client, group, topic, **NEW)
    settle(old, new, counts=(2, 2))
    round_of("up", old, new)
    old.leave()
    new.wait_assigned(4)
    round_of("consumer", new)
    back = stage.member(client, group, topic, session_ms=10_000)
    settle(new, back, counts=(2, 2))
    round_of("down", new, back)
    new.leave()
    back.wait_assigned(4)
    round_of("classic-again", back)
    back.leave()
    assert len(got) == len(set(got)) == 100, "nothing lost, nothing twice"


@pytest.mark.side_by_side
@clients("aiokafka", "kafka-python", "kafkajs")
def test_a_client_of_the_old_protocol_joins_a_group_of_the_new(client: str, stage: Stage) -> None:
    topic, group = stage.topic("both", partitions=4), stage.name("both")
    new = stage.member("java-4.3", group, topic, **NEW)
    new.wait_assigned(4)
    old = stage.member(client, group, topic, session_ms=10_000)
    settle(new, old, counts=(2, 2))
    stage.agent("confluent").produce(topic, texts("b", 40, partitions=4))
    wait_until(lambda: len(new.records) + len(old.records) >= 40, "every message")
    assert {*values(new.records), *values(old.records)} == {b"b-%d" % number for number in range(40)}
    old.leave()
    new.wait_assigned(4)
    new.leave()
