"""A log that an older Runnel wrote is understood, and written anew in one batch before anything is decided."""

import uuid
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from runnel.groups import GroupConfig, GroupShard, Step
from runnel.groups.old_records import is_old
from runnel.groups.record_codec import decode
from runnel.groups.records import AnyKey, GroupDetails, Key, Kind, OffsetKey, OffsetRecord, PendingKey, TopicKey, Value
from runnel.groups.values import EndTransaction, FetchOffsets, ListGroups
from runnel.model.errors import RecordUnreadable
from runnel.model.ids import Life, Millis, PartitionKey, TopicId
from runnel.model.step import Record

T, GONE = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=9))


def old(*parts: Any) -> bytes:
    return msgspec.msgpack.encode(parts)


KEY_OF_GONE = old(5, "reads", GONE.bytes, 0)
LOG: dict[bytes, bytes] = {
    old(1, "classic", ""): old(1, "consumer", 7, "range", "a", True, 1_000),
    old(2, "classic", "a"): old(1, None, "c", "/h", 45_000, 60_000, [["range", b"wishes"], ["rr", b""]], b"given"),
    old(2, "classic", "b"): old(1, "two", "c", "/h", 45_000, 60_000, [["range", b""]], b""),
    old(5, "classic", T.bytes, 0): old(1, 11, 3, "note", 2_000, None),
    old(6, "classic", 77): old(1, 4, 5, [[T.bytes, 1, 1, 22, -1, "later"]]),
    old(1, "consumer", ""): old(2, 5, 4, "uniform", 2**40, 3_000),
    old(2, "consumer", "n"): old(2, "i", None, "c", "/h", 300_000, ["t"], "", "uniform", None),
    old(2, "consumer", "o"): old(2, None, "r", "c", "/h", 300_000, ["t"], "x.*", "", [45_000, [["range", b"m"]]]),
    old(3, "consumer", "n"): old(1, [[T.bytes, [0, 1]]]),
    old(4, "consumer", "n"): old(1, 5, 4, 3, [[4, [[T.bytes, [0]]]], [5, [[T.bytes, [1]]]]], []),
    old(4, "consumer", "o"): old(1, 4, 3, 2, [], [[T.bytes, [2]]]),
    old(1, "share", ""): old(3, 6, 2**40, 4_000, [T.bytes], [3]),
    old(2, "share", "s"): old(3, None, "c", "/h", 30_000, ["t"]),
    old(3, "share", "s"): old(1, [[T.bytes, [0, 1, 2]]]),
    old(4, "share", "s"): old(1, 6, 5, 1, [[6, [[T.bytes, [0, 1, 2]]]]], []),
    old(5, "reads", T.bytes, 2): old(1, 5, -1, "", 5_000, 9_000),
    KEY_OF_GONE: old(1, 5, -1, "", 5_000),
}


class Topics:
    version = 1

    def names(self) -> Collection[str]:
        return ["t"]

    def id_of(self, name: str) -> TopicId | None:
        return T if name == "t" else None

    def name_of(self, topic_id: TopicId) -> str | None:
        return "t" if topic_id == T else None

    def is_over(self, life: Life) -> bool:
        return False

    def partition_count(self, topic_id: TopicId) -> int:
        return 3 if topic_id == T else 0


class Tokens:
    def below(self, bound: int) -> int:
        return 0

    def token(self, size: int) -> bytes:
        return b"\x01" * size


def woken(log: list[Record]) -> tuple[GroupShard, Step]:
    shard = GroupShard(GroupConfig(), Tokens())
    for key, value in log:
        shard.replay(key, value)
    return shard, shard.wake(Topics(), Millis(0), Millis(10_000))


def ask(shard: GroupShard, verb: str, request: Any) -> Any:
    return getattr(shard, verb)(request, "ticket", Topics(), Millis(0), Millis(10_000)).replies[0].result


def seen(shard: GroupShard) -> list[Any]:
    """All that the shard tells about its groups."""
    groups = ["classic", "consumer", "share", "reads"]
    return [
        ask(shard, "list", ListGroups()),
        [ask(shard, "fetch_offsets", FetchOffsets(each)) for each in ("classic", "reads")],
        [
            repr(ask(shard, verb, each))
            for each in groups
            for verb in ("describe", "describe_consumer", "describe_share")
        ],
    ]


def compacted(log: list[Record]) -> dict[bytes, bytes]:
    last = dict(log)
    return {key: value for key, value in last.items() if value is not None}


def new(step: Step) -> dict[AnyKey, Value | None]:
    """The records of a step that are in the new format."""
    return dict(filter(None, (decode(key, value) for key, value in step.records if not is_old(key))))


def test_everything_is_written_anew_in_one_step() -> None:
    _, step = woken(list(LOG.items()))
    assert [key for key in compacted([*LOG.items(), *step.records]) if is_old(key)] == [KEY_OF_GONE]
    written = new(step)
    kinds = {each.kind for each in written if isinstance(each, Key)}
    assert kinds == set(Kind) - {Kind.OFFSET, Kind.TOPIC, Kind.PENDING}
    assert written[OffsetKey("classic", "t", 0)] == OffsetRecord(11, 3, "note", 2_000)
    assert written[OffsetKey("reads", "t", 2)] == OffsetRecord(5, -1, "", 5_000, 9_000)
    assert {TopicKey("classic", "t"), TopicKey("reads", "t"), PendingKey("classic", 77)} <= written.keys()


def test_the_groups_are_what_they_were() -> None:
    shard, step = woken(list(LOG.items()))
    listed, offsets, _ = seen(shard)
    assert {each.group_id: each.type.value for each in listed} == {
        "classic": "classic", "consumer": "consumer", "share": "share", "reads": "classic",
    }  # fmt: skip
    assert [each.offset for group in offsets for each in group.offsets] == [11, 5]
    consumer = {each.member_id: each for each in ask(shard, "describe_consumer", "consumer").members}
    assert (consumer["n"].member_epoch, len(consumer["n"].assigned), len(consumer["n"].target)) == (5, 2, 2)
    assert (consumer["o"].member_epoch, consumer["o"].topic_regex) == (4, "x.*")
    classic = ask(shard, "describe", "classic")
    assert [(each.member_id, each.metadata, each.assignment) for each in classic.members] == [
        ("a", b"wishes", b"given"), ("b", b"", b""),
    ]  # fmt: skip
    again, more = woken([*LOG.items(), *step.records])
    assert seen(again) == seen(shard)
    assert more.records == []


def test_pending_offsets_count_when_their_transaction_is_committed() -> None:
    shard, _ = woken(list(LOG.items()))
    end = EndTransaction(producer_id=77, producer_epoch=4, commit=True, coordinator_epoch=5, bumped=False)
    ask(shard, "end_transaction", end)
    fetched = ask(shard, "fetch_offsets", FetchOffsets("classic", (PartitionKey(T, 1),)))
    assert [(each.offset, each.metadata) for each in fetched.offsets] == [(22, "later")]


def test_a_crash_before_the_batch_is_kept_changes_nothing() -> None:
    first, step = woken(list(LOG.items()))
    second, again = woken(list(LOG.items()))
    assert seen(first) == seen(second)
    assert step.records == again.records


def test_what_the_new_records_say_counts() -> None:
    _, step = woken(list(LOG.items()))
    new = [record for record in step.records if record[1] is not None]  # as if no tombstone had been kept
    shard, again = woken([*LOG.items(), *new])
    assert [key for key, value in again.records if value is not None] == []
    assert all(is_old(key) for key, _ in again.records)
    assert seen(woken([*LOG.items(), *step.records])[0]) == seen(shard)


def test_a_group_that_was_deleted_by_then_stays_deleted() -> None:
    tombstones: list[Record] = [(key, None) for key in LOG]
    shard, step = woken([*LOG.items(), *tombstones])
    assert step.records == []
    assert ask(shard, "list", ListGroups()) == ()


def test_an_unknown_kind_is_skipped() -> None:
    assert woken([(old(99, "g"), b"anything")])[1].records == []


FOREIGN: list[Record] = [
    (old(5, "g", "x", 1), b""), (old(5, "g", b"short", 1), old(1, 5)), (old(1), b""), (old(1, "g", ""), old(9, 1)),
    (old(6, "g"), b""), (old(), b""), (b"\x91" * 5_000, b""), (old([1], "g"), b""), (old(1, 7, ""), b""),
    (old(1, "classic", "", 1), b""), (old(5, "reads", T.bytes, 1), b"\xc1"),
    # They have the shape of what Runnel wrote, but no place in Kafka's records.
    (old(5, "reads", T.bytes, 2**31), old(1, 5, -1, "", 5_000)), (old(6, "reads", 2**63), old(1, 4, 5, [])),
    (old(5, "reads", T.bytes, 1), old(1, 2**63, -1, "", 5_000)),
    (old(5, "reads", T.bytes, 1), old(1, 5, -1, "x" * 32_768, 5_000)),
    (old(1, "x" * 32_768, ""), old(2, 5, 4, "uniform", 0, 3_000)),
    (old(1, "big", ""), old(2, 2**31, 4, "uniform", 0, 3_000)),
    (old(4, "consumer", "p"), old(1, 5, 4, 9, [], [])), (old(3, "consumer", "p"), old(1, [[T.bytes, [2**31]]])),
]  # fmt: skip


@pytest.mark.parametrize("record", FOREIGN)
def test_an_unreadable_record_is_set_aside_and_its_neighbours_are_written_anew(record: Record) -> None:
    shard = GroupShard(GroupConfig(), Tokens())
    for key, value in [*LOG.items(), record]:
        try:
            shard.replay(key, value)
        except RecordUnreadable as problem:
            refused = str(problem)
    step = shard.wake(Topics(), Millis(0), Millis(10_000))
    assert "can't be read" in refused
    assert step.records == woken(list(LOG.items()))[1].records


def test_members_of_another_type_than_their_group_are_not_written_anew() -> None:
    share, consumer = LOG[old(2, "share", "s")], LOG[old(2, "consumer", "n")]
    strays = {
        old(2, "classic", "s"): share, old(2, "consumer", "s"): share, old(2, "share", "n"): consumer,
        old(3, "consumer", "gone"): old(1, []), old(2, "none", "n"): consumer,
        old(4, "none", "n"): old(1, 5, 4, 1, [], []),
    }  # fmt: skip
    _, step = woken([*LOG.items(), *strays.items()])
    _, without = woken(list(LOG.items()))
    assert compacted(step.records) == compacted(without.records)
    assert {key for key, value in step.records if value is None} == (LOG.keys() | strays.keys()) - {KEY_OF_GONE}


def test_counts_of_a_share_group_that_belong_to_other_topics_are_forgotten() -> None:
    _, step = woken([(old(1, "share", ""), old(3, 6, 0, 4_000, [T.bytes], [3, 4]))])
    assert new(step)[Key(Kind.DETAILS, "share")] == GroupDetails(4_000, topics=((T, -1),))


def test_the_session_timeout_of_a_group_is_kept() -> None:
    member = old(2, None, None, "c", "/h", 300_000, ["t"], "", "", None, 1_500)
    _, step = woken([*LOG.items(), (old(2, "consumer", "n"), member)])
    details = GroupDetails(3_000, assignor="uniform", session_timeout_ms=1_500)
    assert new(step)[Key(Kind.DETAILS, "consumer")] == details


def test_an_offset_that_expires_later_than_a_record_can_say_is_written_anew() -> None:
    key = old(5, "reads", T.bytes, 2)
    _, step = woken([(key, old(1, 5, -1, "", 5_000, 2**63 + 5_000))])
    assert new(step)[OffsetKey("reads", "t", 2)] == OffsetRecord(5, -1, "", 5_000, 2**63 - 1)


def test_members_of_a_group_that_has_new_records_are_not_taken_from_old_ones() -> None:
    """A broker of before may have written in between: its members have joined another group of this name."""
    _, step = woken(list(LOG.items()))
    later = {old(1, "classic", ""): old(2, 5, 4, "uniform", 0, 1), old(2, "classic", "z"): LOG[old(2, "consumer", "n")]}
    shard, again = woken([*LOG.items(), *step.records, *later.items()])
    assert {each.group_id: each.type.value for each in ask(shard, "list", ListGroups())}["classic"] == "classic"
    assert again.records == [(key, None) for key in later]
