"""Groups of the classic protocol, with every client: joining, leaving, dying, standing by, coming back."""

import pytest
from tests.compat.stage import CLIENTS, Stage, clients, clients_but, settle, texts, values
from tests.compat.waiting import wait_until


@pytest.mark.side_by_side
@clients()
def test_one_joins_later_and_leaves(client: str, stage: Stage) -> None:
    topic, group = stage.topic("join", partitions=4), stage.name("join")
    stage.agent("confluent").produce(topic, texts("early", 40, partitions=4))
    first = stage.member(client, group, topic)
    first.wait_values(b"early-%d" % number for number in range(40))
    second = stage.member(client, group, topic)
    settle(first, second, counts=(2, 2))
    first.records.clear()
    second.records.clear()
    stage.agent("confluent").produce(topic, texts("late", 40, partitions=4))
    wanted = {b"late-%d" % number for number in range(40)}
    wait_until(lambda: wanted <= {*values(first.records), *values(second.records)}, "every late message")
    late = [set(values(member.records)) & wanted for member in (first, second)]
    assert all(late), "both must have got some"
    assert not late[0] & late[1], "no message goes to both"
    second.leave()
    first.wait_assigned(4)
    first.leave()


@pytest.mark.side_by_side
@clients_but("kcat")
def test_one_dies_and_is_replaced_at_its_committed_offset(client: str, stage: Stage) -> None:
    topic, group = stage.topic("die", partitions=2), stage.name("die")
    members = [stage.member(client, group, topic) for _ in range(2)]
    settle(*members, counts=(1, 1))
    stage.agent("confluent").produce(topic, texts("done", 20, partitions=2))
    wait_until(lambda: all(len(member.records) >= 10 for member in members), "ten messages for each")
    for member in members:
        member.call("commit")
    victim, heir = members
    victim.kill()
    heir.records.clear()
    stage.agent("confluent").produce(topic, texts("open", 20, partitions=2))
    heir.wait_assigned(2)
    heir.wait_values(b"open-%d" % number for number in range(20))
    assert set(values(heir.records)) == {b"open-%d" % number for number in range(20)}, "only what was not committed"
    heir.leave()


@pytest.mark.side_by_side
@clients()
def test_more_members_than_partitions_stand_by(client: str, stage: Stage) -> None:
    topic, group = stage.topic("standby", partitions=2), stage.name("standby")
    members = [stage.member(client, group, topic) for _ in range(3)]
    settle(*members, counts=(0, 1, 1))
    owner = next(member for member in members if member.assignment)
    owner.leave()
    rest = [member for member in members if member is not owner]
    settle(*rest, counts=(1, 1))
    for member in rest:
        member.leave()


@pytest.mark.side_by_side
@clients_but("kcat", "kafkajs", "aiokafka")
def test_a_static_member_returns_to_its_partitions(client: str, stage: Stage) -> None:
    topic, group = stage.topic("static", partitions=2), stage.name("static")
    options = {"session_ms": 30_000}
    first = stage.member(client, group, topic, instance="one", **options)
    second = stage.member(client, group, topic, instance="two", **options)
    settle(first, second, counts=(1, 1))
    before = first.assignment
    seen = len(second.assignments)
    first.kill()
    again = stage.member(client, group, topic, instance="one", **options)
    again.wait_assigned(1)
    assert again.assignment == before, "it gets what it had"
    stage.agent("confluent").produce(topic, texts("static", 20, partitions=2))
    wait_until(lambda: len(again.records) == len(second.records) == 10, "ten messages for each")
    assert len(second.assignments) == seen, "nobody else was disturbed"
    again.leave()
    second.leave()


@pytest.mark.side_by_side
@clients("confluent", "java-3.9", "java-4.3")
def test_cooperative_rebalances_move_only_what_must_move(client: str, stage: Stage) -> None:
    topic, group = stage.topic("cooperative", partitions=4), stage.name("cooperative")
    options = {"strategy": "cooperative-sticky"}
    first = stage.member(client, group, topic, **options)
    first.wait_assigned(4)
    seen = len(first.assignments)
    second = stage.member(client, group, topic, **options)
    settle(first, second, counts=(2, 2))
    assert all(len(held) >= 2 for held in first.assignments[seen:]), "what it keeps it never lets go"
    stage.agent("confluent").produce(topic, texts("c", 40, partitions=4))
    wait_until(lambda: len(first.records) + len(second.records) == 40, "every message once")
    second.leave()
    first.wait_assigned(4)
    first.leave()


@pytest.mark.side_by_side
@clients()
def test_a_pattern_finds_topics_that_come_later(client: str, stage: Stage) -> None:
    prefix = stage.name("pattern")
    (one, other) = (f"{prefix}-one", f"{prefix}-two")
    admin = stage.agent("confluent")
    admin.call("create_topic", topic=one, partitions=1, config={})
    member = stage.member(client, stage.name("pattern"), pattern=f"^{prefix}-.*")
    member.wait_assigned(1)
    if client not in ("kafkajs", "kafka-python"):  # these look for matching topics only once
        admin.call("create_topic", topic=other, partitions=2, config={})
        member.wait_assigned(3)
    member.leave()


@pytest.mark.side_by_side
@clients("confluent", "aiokafka", "kafka-python", "java-3.9")
def test_different_clients_share_one_group(client: str, stage: Stage) -> None:
    partner = CLIENTS[(CLIENTS.index(client) + 1) % len(CLIENTS)]
    topic, group = stage.topic("mixed", partitions=4), stage.name("mixed")
    first, second = stage.member(client, group, topic), stage.member(partner, group, topic)
    settle(first, second, counts=(2, 2))
    stage.agent("confluent").produce(topic, texts("m", 40, partitions=4))
    wait_until(lambda: len(first.records) + len(second.records) >= 40, "every message")
    assert {*values(first.records), *values(second.records)} == {b"m-%d" % number for number in range(40)}
    first.leave()
    second.leave()


@clients("java-3.9", "java-4.3")
def test_an_administrator_removes_the_members(client: str, stage: Stage) -> None:
    topic, group = stage.topic("remove"), stage.name("remove")
    member = stage.member(client, group, topic, instance="static", session_ms=30_000)
    member.wait_assigned(1)
    member.kill()  # a static member stays in its group
    stage.agent(client).call("remove_members", group=group)
    described = stage.agent(client).call("describe_group", group=group)
    assert (described["state"], described["members"]) == ("EMPTY", [])


@pytest.mark.parametrize("strategy", ["roundrobin", "sticky"])
@clients("java-4.3")
def test_other_strategies(client: str, strategy: str, stage: Stage) -> None:
    topic, group = stage.topic("strategy", partitions=4), stage.name("strategy")
    members = [stage.member(client, group, topic, strategy=strategy) for _ in range(2)]
    settle(*members, counts=(2, 2))
    for member in members:
        member.leave()
