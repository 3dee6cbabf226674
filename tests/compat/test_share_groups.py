"""Share groups (KIP-932) with the clients that know them: every message to one member, and what becomes of it then."""

import time

import pytest
from tests.compat.agent import Refused
from tests.compat.sharer import ACCEPT, REJECT, RELEASE, RENEW, Got, Sharer
from tests.compat.stage import Stage, clients, texts, values
from tests.compat.transactional import Transactional
from tests.compat.waiting import wait_until

ABLE = ("confluent", "java-4.3")
INVALID_RECORD_STATE = {"InvalidRecordStateException", "INVALID_RECORD_STATE"}
GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, INCONSISTENT_GROUP_PROTOCOL = 69, 68, 23


def group_of(stage: Stage, **settings: str) -> str:
    """A new group that reads from the start, with these settings (as Kafka calls them, with underscores for dots)."""
    group = stage.name("share")
    configure(stage, group, share_auto_offset_reset="earliest", **settings)
    return group


def configure(stage: Stage, group: str, **settings: str) -> None:
    given = {name.replace("_", "."): text for name, text in settings.items()}
    stage.share_admin().call("configure", group=group, settings=given)


def member_of(stage: Stage, client: str, group: str, topic: str, **options: str) -> Sharer:
    member = stage.sharer(client)
    member.open(group, topic, **options)
    return member


def numbers(prefix: bytes, count: int) -> list[bytes]:
    return [b"%s-%d" % (prefix, number) for number in range(count)]


def dead_letters(stage: Stage, group: str, count: int) -> list[dict[str, bytes | None]]:
    """The headers of what lies in the group's topic of dead letters, once it is that many; values under ""."""
    topic, reader = f"{group}.dead", stage.agent("confluent")

    def all_there() -> bool:
        return topic in reader.call("list_topics") and len(reader.read(topic)) >= count

    wait_until(all_there, f"{count} dead letters")
    return [{"": letter.value, **dict(letter.headers)} for letter in reader.read(topic)]


@pytest.mark.side_by_side
@clients(*ABLE)
def test_each_message_is_delivered_to_one_member(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share", partitions=2), group_of(stage)
    members = [member_of(stage, client, group, topic) for _ in range(3)]  # one more than there are partitions
    got: list[Got] = []
    stage.agent("confluent").produce(topic, texts("a", 300, partitions=2))

    def all_came() -> bool:
        for member in members:
            part = member.poll(200)
            member.accept(part)
            got.extend(part)
        return len(got) >= 300

    wait_until(all_came, "300 messages")
    assert sorted(each.value for each in got) == sorted(numbers(b"a", 300))
    assert {each.attempt for each in got} == {1}
    for member in members:
        member.leave()
    late = member_of(stage, client, group, topic)
    stage.agent("confluent").produce(topic, texts("b", 1))
    assert [each.value for each in late.take()] == [b"b-0"], "what was accepted does not come again"
    late.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_what_is_released_comes_again_and_is_counted(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-release"), group_of(stage)
    stage.agent("confluent").produce(topic, texts("a", 3))
    member = member_of(stage, client, group, topic)
    first = member.take()
    member.acknowledge(first[:1], ACCEPT)
    member.acknowledge(first[1:2], RELEASE)
    member.settle(first[2:], ACCEPT)
    [again] = member.take()
    assert (again.value, again.attempt) == (b"a-1", 2)
    member.accept([again])
    assert member.poll(300) == []
    member.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_what_is_rejected_is_a_dead_letter(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-reject"), group_of(stage)
    stage.agent("confluent").produce(topic, texts("a", 2))
    member = member_of(stage, client, group, topic)
    got = member.take()
    member.acknowledge(got[:1], REJECT)
    member.settle(got[1:], ACCEPT)
    [letter] = dead_letters(stage, group, 1)
    assert letter[""] == b"a-0"
    assert letter["runnel-origin-topic"] == topic.encode()
    assert letter["runnel-origin-offset"] == b"0"
    assert letter["runnel-dead-reason"] == b"rejected"
    assert letter["runnel-dead-queue"] == group.encode()
    assert member.poll(300) == []
    member.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_what_fails_too_often_is_a_dead_letter(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-limit"), group_of(stage, share_delivery_count_limit="3")
    stage.agent("confluent").produce(topic, texts("a", 1))
    member = member_of(stage, client, group, topic)
    for attempt in (1, 2, 3):
        got = member.take()
        assert [each.attempt for each in got] == [attempt]
        member.settle(got, RELEASE)
    [letter] = dead_letters(stage, group, 1)
    assert (letter[""], letter["runnel-attempts"], letter["runnel-dead-reason"]) == (b"a-0", b"3", b"attempts")
    member.leave()


def lost_to_another(stage: Stage, client: str) -> tuple[Sharer, Got, Sharer, Got]:
    """A member that was too slow with a message, and one that has it now, for as long as it likes."""
    topic, group = stage.topic("share-lock"), group_of(stage, share_record_lock_duration_ms="3000")
    slow, quick = stage.sharer(client), stage.sharer(client)
    stage.agent("confluent").produce(topic, texts("a", 1))
    slow.open(group, topic)
    [got] = slow.take()
    slow.freeze()  # clients fetch ahead: it would have the message again itself
    configure(stage, group, share_record_lock_duration_ms="3600000")
    quick.open(group, topic)
    [again] = quick.take()
    assert (again.value, again.attempt) == (got.value, got.attempt + 1)
    slow.thaw()
    return slow, got, quick, again


@pytest.mark.side_by_side
@clients(*ABLE)
def test_a_lock_that_ran_out_frees_the_message(client: str, stage: Stage) -> None:
    slow, got, quick, again = lost_to_another(stage, client)
    quick.accept([again])
    slow.acknowledge([got], ACCEPT)
    assert set(slow.call("commit").values()) <= INVALID_RECORD_STATE | {""}  # it is done: either way nobody is harmed
    assert quick.poll(300) == []
    slow.leave()
    quick.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_who_is_too_late_is_told_so(client: str, stage: Stage) -> None:
    slow, got, quick, again = lost_to_another(stage, client)
    slow.acknowledge([got], REJECT)
    assert set(slow.call("commit").values()) <= INVALID_RECORD_STATE
    quick.accept([again])
    slow.leave()
    quick.leave()


@pytest.mark.side_by_side
@clients("java-4.3")
def test_a_lock_that_is_renewed_lasts(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-renew"), group_of(stage, share_record_lock_duration_ms="8000")
    worker, other = stage.sharer(client), stage.sharer(client)
    other.call("types", group=group)  # it runs by now: that may take longer than the lock
    stage.agent("confluent").produce(topic, texts("a", 1))
    worker.open(group, topic)
    [got] = worker.take()
    assert worker.call("lock_ms") == 8000
    other.open(group, topic)
    begun = time.monotonic()
    while time.monotonic() < begun + 12:  # longer than the lock
        worker.acknowledge([got], RENEW)
        assert set(worker.call("commit").values()) == {""}
        assert worker.take() == [got], "the client shows it again, as the same delivery"
        assert other.poll(500) == []
    worker.acknowledge([got], ACCEPT)
    assert set(worker.call("commit").values()) == {""}
    worker.leave()
    other.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_messages_of_a_member_that_dies_are_free_at_once(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-die"), group_of(stage, share_record_lock_duration_ms="3600000")
    stage.agent("confluent").produce(topic, texts("a", 5))
    dying = member_of(stage, client, group, topic)
    assert len(dying.take()) == 5
    dying.kill()
    heir = member_of(stage, client, group, topic)
    got = heir.take()
    assert {each.value for each in got} == set(numbers(b"a", 5))
    assert {each.attempt for each in got} == {2}
    heir.accept(got)
    heir.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_a_new_group_begins_at_the_end_unless_told_otherwise(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-latest"), stage.name("share")
    stage.agent("confluent").produce(topic, texts("old", 3))
    member = member_of(stage, client, group, topic)

    def has_begun() -> bool:
        assert member.poll(200) == []
        try:
            return bool(stage.share_admin().call("describe", group=group)["members"] == [[f"{topic}/0"]])
        except Refused:
            return False

    wait_until(has_begun, "a member that reads")
    assert member.poll(1_000) == []  # it has looked by now
    stage.agent("confluent").produce(topic, texts("new", 1))
    assert [each.value for each in member.take()] == [b"new-0"]
    member.leave()


@pytest.mark.side_by_side
@clients("java-4.3")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_limits_of_messages_are_exact_where_asked_for(client: str, codec: str, stage: Stage) -> None:
    topic, group = stage.topic("share-records"), group_of(stage)
    stage.agent("confluent").produce(topic, texts("a", 50), codec=codec)
    member = member_of(stage, client, group, topic, max_poll_records="8", share_acquire_mode="record_limit")
    got: list[Got] = []
    while len(got) < 50:
        part = member.take()
        assert len(part) <= 8
        member.accept(part)
        got += part
    assert [each.value for each in got] == numbers(b"a", 50)
    member.leave()


@pytest.mark.side_by_side
@clients(*ABLE)
def test_whole_batches_come_whichever_way_they_were_written(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-batches"), group_of(stage)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        stage.agent("java-4.3").produce(topic, texts(codec, 20), codec=codec)
    member = member_of(stage, client, group, topic, max_poll_records="7")
    got = member.poll_until(100)
    assert [each.offset for each in got] == list(range(100))
    member.leave()


@pytest.mark.side_by_side
@clients("java-4.3")
def test_only_committed_messages_are_delivered(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-txn"), group_of(stage, share_isolation_level="read_committed")
    producer = Transactional(stage.agent("java-4.3"), stage.name("txn"))
    producer.begin().send(topic, *texts("bad", 5)).abort()
    producer.begin().send(topic, *texts("good", 5)).commit()
    producer.begin().send(topic, *texts("open", 5))
    member = member_of(stage, client, group, topic)
    assert [each.value for each in member.poll_until(5)] == numbers(b"good", 5)
    assert member.poll(300) == []
    producer.commit()
    assert [each.value for each in member.poll_until(5)] == numbers(b"open", 5)
    producer.close()
    member.leave()


@pytest.mark.side_by_side
@clients("java-4.3")
def test_everything_is_delivered_unless_the_group_reads_committed_messages_alone(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-dirty"), group_of(stage)
    producer = Transactional(stage.agent("java-4.3"), stage.name("txn"))
    producer.begin().send(topic, *texts("bad", 5)).abort()
    producer.begin().send(topic, *texts("open", 5))
    member = member_of(stage, client, group, topic)
    assert [each.value for each in member.poll_until(10)] == numbers(b"bad", 5) + numbers(b"open", 5)
    producer.abort()
    producer.close()
    member.leave()


@pytest.mark.side_by_side
@clients("java-4.3")
def test_a_group_that_is_not_there_begins_where_an_administrator_says(client: str, stage: Stage) -> None:
    topic, group, admin = stage.topic("share-made"), stage.name("share"), stage.share_admin()
    stage.agent("confluent").produce(topic, texts("a", 10))
    admin.call("alter", group=group, topic=topic, partition=0, offset=7)
    described = admin.call("describe", group=group)
    assert (described["state"], described["members"]) == ("Empty", [])
    assert admin.call("offsets", group=group) == {f"{topic}/0": [7, 3]}
    member = member_of(stage, client, group, topic)
    assert [each.offset for each in member.poll_until(3)] == [7, 8, 9]
    member.leave()


@pytest.mark.side_by_side
@clients("java-4.3")
def test_an_administrator_sees_and_moves_a_group(client: str, stage: Stage) -> None:
    topic, group, admin = stage.topic("share-admin", partitions=2), group_of(stage), stage.share_admin()
    stage.agent("confluent").produce(topic, texts("a", 10, partitions=2))
    member = member_of(stage, client, group, topic)
    member.poll_until(10)
    described = admin.call("describe", group=group)
    assert (described["state"], described["members"]) == ("Stable", [[f"{topic}/0", f"{topic}/1"]])
    assert admin.call("types", group=group) == ["Share share Stable"]
    assert admin.call("offsets", group=group) == {f"{topic}/0": [5, 0], f"{topic}/1": [5, 0]}
    with pytest.raises(Refused) as refused:
        admin.call("alter", group=group, topic=topic, partition=0, offset=2)
    assert refused.value.code == NON_EMPTY_GROUP
    member.leave()
    wait_until(lambda: bool(admin.call("describe", group=group)["state"] == "Empty"), "an empty group")
    admin.call("alter", group=group, topic=topic, partition=0, offset=2)
    assert admin.call("offsets", group=group) == {f"{topic}/0": [2, 3], f"{topic}/1": [5, 0]}
    again = member_of(stage, client, group, topic)
    assert sorted(each.offset for each in again.poll_until(3)) == [2, 3, 4]
    again.leave()
    wait_until(lambda: bool(admin.call("describe", group=group)["state"] == "Empty"), "an empty group")
    admin.call("delete_offsets", group=group, topic=topic)
    assert admin.call("offsets", group=group) == {}
    anew = member_of(stage, client, group, topic)
    assert len(anew.poll_until(10)) == 10, "it begins anew"
    anew.leave()
    wait_until(lambda: bool(admin.call("describe", group=group)["state"] == "Empty"), "an empty group")
    admin.call("delete", group=group)
    with pytest.raises(Refused) as refused:
        admin.call("describe", group=group)
    assert refused.value.code == GROUP_ID_NOT_FOUND


@pytest.mark.side_by_side
@clients("java-4.3")
def test_settings_of_a_group_can_be_read(client: str, stage: Stage) -> None:
    group = group_of(stage, share_record_lock_duration_ms="20000", share_delivery_count_limit="7")
    settings = stage.share_admin().call("settings", group=group)
    assert settings["share.record.lock.duration.ms"] == "20000"
    assert settings["share.delivery.count.limit"] == "7"
    assert settings["share.auto.offset.reset"] == "earliest"


@pytest.mark.side_by_side
@clients("java-4.3")
def test_the_name_of_a_share_group_is_taken(client: str, stage: Stage) -> None:
    topic, group = stage.topic("share-name"), group_of(stage)
    member = member_of(stage, client, group, topic)
    wait_until(
        lambda: bool(member.poll(100) == [] and stage.share_admin().call("types", group=group)), "the share group"
    )
    outsider = stage.start("java-4.3")
    outsider.call("join", group=group, topics=[topic], options={})
    with pytest.raises(RuntimeError, match="InconsistentGroupProtocol"):
        outsider.wait(lambda: bool(outsider.assignment), "an assignment that never comes")
    assert values(outsider.records) == []
    outsider.close()
    member.leave()
