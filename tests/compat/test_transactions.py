"""Transactions as real clients make and read them: the old protocol, and the new one of KIP-890 (java-4.3)."""

import pytest
from tests.compat.agent import COMMITTED, UNCOMMITTED, Message, Refused
from tests.compat.stage import CLIENTS, Stage, clients, texts, values
from tests.compat.transactional import Transactional
from tests.compat.waiting import wait_until

WRITERS = tuple(name for name in CLIENTS if name != "kcat")
MEMBERS = ("confluent", "kafka-python", "java-3.9", "java-4.3")  # who names its seat in the group with its offsets
JUDGE = "java-3.9"  # reads what the client under test wrote


def words(*texts: str, partition: int = 0) -> list[Message]:
    return [Message(text.encode(), partition=partition) for text in texts]


def seen(stage: Stage, topic: str, isolation: str = COMMITTED, *, by: str = JUDGE, partitions: int = 1) -> list[str]:
    found = stage.agent(by).read(topic, partitions=partitions, isolation=isolation)
    return [(value or b"").decode() for value in values(found)]


def shows(stage: Stage, topic: str, *wanted: str, by: str = JUDGE, partitions: int = 1) -> None:
    """A commit is answered before every partition knows of it: wait for all of it, and never see anything else."""

    def complete() -> bool:
        found = seen(stage, topic, by=by, partitions=partitions)
        assert found == [text for text in wanted if text in found]
        return found == list(wanted)

    wait_until(complete, f"{len(wanted)} committed messages")


def producer(stage: Stage, client: str, *, timeout_ms: int = 60_000) -> Transactional:
    return Transactional(stage.agent(client), stage.name("tx"), timeout_ms=timeout_ms)


@clients(*WRITERS)
def test_what_is_committed_is_seen_and_what_is_aborted_is_not(client: str, stage: Stage) -> None:
    topic, writer = stage.topic("tx"), producer(stage, client)
    stage.agent(client).produce(topic, words("plain-1"))
    writer.begin().send(topic, *words("a-1", "a-2")).commit()
    writer.begin().send(topic, *words("b-1", "b-2")).abort()
    stage.agent(client).produce(topic, words("plain-2"))
    writer.begin().send(topic, *words("c-1")).send(topic, *words("c-2")).commit()
    writer.close()
    everything = ["plain-1", "a-1", "a-2", "b-1", "b-2", "plain-2", "c-1", "c-2"]
    assert seen(stage, topic, UNCOMMITTED) == everything
    shows(stage, topic, *[text for text in everything if not text.startswith("b")])


@clients()
def test_every_reader_sees_the_same(client: str, stage: Stage) -> None:
    topic = stage.topic("tx-read")
    old, new = producer(stage, "confluent"), producer(stage, "java-4.3")
    old.begin().send(topic, *words("old-1"))
    new.begin().send(topic, *words("new-1"))
    stage.agent("confluent").produce(topic, words("plain"))
    old.send(topic, *words("old-2")).abort()
    new.send(topic, *words("new-2")).commit()
    old.begin().send(topic, *words("old-3")).commit()
    new.begin().send(topic, *words("new-3")).abort()
    shows(stage, topic, "new-1", "plain", "new-2", "old-3", by=client)
    everything = ["old-1", "new-1", "plain", "old-2", "new-2", "old-3", "new-3"]
    assert seen(stage, topic, UNCOMMITTED, by=client) == everything


@clients(*WRITERS)
def test_an_open_transaction_holds_back_what_comes_after_it(client: str, stage: Stage) -> None:
    topic, writer = stage.topic("tx-open"), producer(stage, client)
    stage.agent(client).produce(topic, words("before"))
    writer.begin().send(topic, *words("open"))
    stage.agent(client).produce(topic, words("after"))
    assert seen(stage, topic) == ["before"]
    assert seen(stage, topic, UNCOMMITTED) == ["before", "open", "after"]
    writer.commit()
    shows(stage, topic, "before", "open", "after")


@clients(*WRITERS)
def test_a_transaction_spans_topics_and_partitions(client: str, stage: Stage) -> None:
    one, two, writer = stage.topic("tx-one", partitions=3), stage.topic("tx-two", partitions=2), producer(stage, client)
    for outcome in ("gone", "here"):
        writer.begin()
        writer.send(one, *[Message(f"{outcome}-{n}".encode(), partition=n % 3) for n in range(9)])
        writer.send(two, *[Message(f"{outcome}-{n}".encode(), partition=n % 2) for n in range(4)])
        writer.abort() if outcome == "gone" else writer.commit()
    shows(stage, one, *[f"here-{n}" for n in (0, 3, 6, 1, 4, 7, 2, 5, 8)], partitions=3)
    shows(stage, two, *[f"here-{n}" for n in (0, 2, 1, 3)], partitions=2)
    assert len(seen(stage, one, UNCOMMITTED, partitions=3)) == 18


@clients(*WRITERS)
def test_an_empty_transaction_is_none(client: str, stage: Stage) -> None:
    topic, writer = stage.topic("tx-empty"), producer(stage, client)
    writer.begin().commit()
    writer.begin().abort()
    writer.begin().send(topic, *words("x")).commit()
    writer.begin().commit()
    shows(stage, topic, "x")


@clients(*WRITERS)
def test_many_transactions_keep_their_order(client: str, stage: Stage) -> None:
    topic, writer = stage.topic("tx-many"), producer(stage, client)
    for number in range(40):
        writer.begin().send(topic, *words(f"{number}"))
        writer.commit() if number % 3 else writer.abort()
    shows(stage, topic, *[f"{number}" for number in range(40) if number % 3])


@clients(*WRITERS)
def test_a_large_transaction_takes_many_batches(client: str, stage: Stage) -> None:
    topic, writer = stage.topic("tx-large", partitions=2), producer(stage, client)
    for outcome in ("gone", "here"):
        padding = outcome.encode() * 250
        sent = [Message(b"%d/%s" % (number, padding), partition=number % 2) for number in range(3_000)]
        writer.begin().send(topic, *sent)
        writer.abort() if outcome == "gone" else writer.commit()
    in_order = [(message.value or b"").decode() for part in (0, 1) for message in sent if message.partition == part]
    shows(stage, topic, *in_order, by=client, partitions=2)


@clients(*WRITERS)
def test_offsets_take_part(client: str, stage: Stage) -> None:
    source, target, group = stage.topic("tx-in", partitions=2), stage.topic("tx-out"), stage.name("tx-group")
    writer = producer(stage, client)

    def committed(*offsets: int) -> bool:
        found = stage.agent("confluent").call("group_offsets", group=group)
        return bool(found == {f"{source}/{number}": offset for number, offset in enumerate(offsets)})

    writer.begin().send(target, *words("x")).send_offsets(group, [(source, 0, 5), (source, 1, 7)]).commit()
    wait_until(lambda: committed(5, 7), "the offsets of the first transaction")
    writer.begin().send(target, *words("y")).send_offsets(group, [(source, 0, 6)]).abort()
    assert committed(5, 7)
    writer.begin().send_offsets(group, [(source, 1, 8)]).commit()  # nothing but offsets
    wait_until(lambda: committed(5, 8), "the offsets of the last transaction")
    shows(stage, target, "x")


@clients(*WRITERS)
def test_a_zombie_is_fenced(client: str, stage: Stage) -> None:
    topic, zombie = stage.topic("tx-zombie"), producer(stage, client)
    zombie.begin().send(topic, *words("zombie"))
    heir = Transactional(stage.agent(client), zombie.id)
    heir.begin().send(topic, *words("heir"))
    with pytest.raises(Refused):
        zombie.commit()
    heir.commit()
    shows(stage, topic, "heir")
    assert seen(stage, topic, UNCOMMITTED) == ["zombie", "heir"]


@clients(*WRITERS)
def test_a_zombie_that_sends_on_is_refused(client: str, stage: Stage) -> None:
    topic, zombie = stage.topic("tx-zombie-send"), producer(stage, client)
    zombie.begin().send(topic, *words("one")).commit()
    zombie.begin()
    heir = Transactional(stage.agent("java-4.3"), zombie.id)
    with pytest.raises(Refused):
        zombie.send(topic, *words("two")).commit()
    heir.begin().send(topic, *words("three")).commit()
    shows(stage, topic, "one", "three")


@pytest.mark.side_by_side
@clients(*WRITERS)
def test_a_transaction_that_takes_too_long_is_aborted(client: str, stage: Stage) -> None:
    topic = stage.topic("tx-late")
    slow = Transactional(stage.start(client), stage.name("tx"), timeout_ms=1_000)
    slow.begin().send(topic, *words("slow"))
    stage.agent("confluent").produce(topic, words("quick"))
    wait_until(lambda: seen(stage, topic, by="confluent") == ["quick"], "the abort of what took too long")
    with pytest.raises(Refused):
        slow.commit()
    assert seen(stage, topic, by="confluent") == ["quick"]


@clients(*MEMBERS)
def test_offsets_of_a_member_that_was_replaced_are_refused(client: str, stage: Stage) -> None:
    source, target, group = stage.topic("tx-in"), stage.topic("tx-out"), stage.name("tx-seat")
    stage.agent("confluent").produce(source, texts("in", 3, partitions=1))
    member = stage.member(client, group, source)
    member.wait(lambda: len(member.records) == 3, "the input")
    member.call("keep_seat")
    writer = Transactional(member, stage.name("tx"))
    writer.begin().send(target, *words("first")).send_offsets(group, [(source, 0, 3)], as_member=True).commit()

    def committed() -> bool:
        return bool(stage.agent("confluent").call("group_offsets", group=group) == {f"{source}/0": 3})

    wait_until(committed, "the offsets of a member")
    writer.begin().send(target, *words("second"))
    stage.agent("java-3.9").call("remove_members", group=group)
    with pytest.raises(Refused):
        writer.send_offsets(group, [(source, 0, 2)], as_member=True)
    writer.abort()
    assert committed()
    shows(stage, target, "first")
    member.leave()


@clients("java-3.9", "java-4.3")
def test_transactions_are_described_and_ended_from_outside(client: str, stage: Stage) -> None:
    topic, writer, admin = stage.topic("tx-admin", partitions=2), producer(stage, client), stage.agent(client)
    writer.begin().send(topic, *words("hangs", partition=1))
    described = admin.call("describe_transaction", transactional_id=writer.id)
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)
    assert described["partitions"] == [[topic, 1]]
    assert admin.call("list_transactions")[writer.id] == "Ongoing"
    (open_one,) = admin.call("describe_producers", topic=topic, partition=1)
    assert (open_one["producer_id"], open_one["begins_at"]) == (described["producer_id"], 0)
    admin.call("fence", transactional_id=writer.id)
    with pytest.raises(Refused):
        writer.commit()
    wait_until(lambda: admin.call("list_transactions")[writer.id] != "Ongoing", "the end of the transaction")
    assert seen(stage, topic, partitions=2) == []
    with pytest.raises(Refused) as refusal:
        admin.call("describe_transaction", transactional_id=stage.name("nobody"))
    assert refusal.value.code == 105


@clients("java-3.9", "java-4.3")
def test_an_operator_aborts_in_one_partition(client: str, stage: Stage) -> None:
    topic, writer, admin = stage.topic("tx-abort"), producer(stage, client), stage.agent(client)
    writer.begin().send(topic, *words("hangs"))
    stage.agent("confluent").produce(topic, words("after"))
    assert seen(stage, topic) == []
    (open_one,) = admin.call("describe_producers", topic=topic, partition=0)
    known = {name: open_one[name] for name in ("producer_id", "epoch", "coordinator_epoch")}
    admin.call("abort_from_outside", topic=topic, partition=0, **known)
    shows(stage, topic, "after")
