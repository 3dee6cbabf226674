"""Conversations with a shard, kept as golden files under transcripts/.

A line at the margin is said to the shard, the indented lines below are what came of it. `+500` lets time pass, `crash`
ends the shard and replays its log. Run with RUNNEL_WRITE_TRANSCRIPTS=1 to write the answers anew, and read them.

    A join topics=t            a member says something; it remembers its id, generation, epoch and partitions
    A join id=B gen=3          ... unless told otherwise: another's id, any number
"""

import os
import re
import uuid
from collections.abc import Collection
from pathlib import Path

import pytest

from runnel.groups import GroupConfig, GroupShard, Step
from runnel.groups.record_codec import decode
from runnel.groups.records import OffsetKey, PendingKey, PendingRecord, TopicKey
from runnel.groups.share_values import DescribedShareGroup, NoteTopics, ShareAlive, ShareHeartbeat
from runnel.groups.subscription import Subscription, read_assignment, write_assignment, write_subscription
from runnel.groups.values import (
    CommitInTransaction,
    CommitOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    DeleteOffsets,
    DescribedConsumerGroup,
    DescribedGroup,
    Done,
    EndTransaction,
    FetchedOffset,
    FetchOffsets,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    Left,
    ListGroups,
    OfferedProtocol,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    OffsetToCommit,
    Sync,
    Synced,
)
from runnel.model.errors import MemberIdRequired, RunnelError
from runnel.model.ids import Life, Millis, Offset, PartitionKey, TopicId

FOLDER = Path(__file__).parent / "transcripts"
WALL_MS = 1_000_000_000


class Topics:
    """Topics by name; a topic that is made again gets another id."""

    def __init__(self) -> None:
        self.version = 0
        self._counts: dict[str, int] = {}
        self._ids: dict[str, TopicId] = {}

    def make(self, name: str, count: int) -> None:
        self.version += 1
        if name not in self._ids:
            self._ids[name] = TopicId(uuid.UUID(int=self.version))
        self._counts[name] = count

    def remove(self, name: str) -> TopicId:
        self.version += 1
        del self._counts[name]
        return self._ids.pop(name)

    def names(self) -> Collection[str]:
        return list(self._ids)

    def id_of(self, name: str) -> TopicId | None:
        return self._ids.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, each in self._ids.items() if each == topic_id), None)

    def is_over(self, life: Life) -> bool:
        return False

    def partition_count(self, topic_id: TopicId) -> int:
        return self._counts.get(self.name_of(topic_id) or "", 0)


class Counter:
    """Chance that counts: ids stay readable."""

    def __init__(self) -> None:
        self._next = 0

    def below(self, bound: int) -> int:
        return 0

    def token(self, size: int) -> bytes:
        self._next += 1
        return self._next.to_bytes(size, "big")


class Actor:
    """What a client remembers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.epoch = 0
        self.owned: tuple[PartitionKey, ...] = ()
        self.joined: dict[str, str] = {}  # the words of its last join


class Stage:
    def __init__(self) -> None:
        self.config: dict[str, int] = {"initial_rebalance_delay_ms": 0}
        self.topics = Topics()
        self.rng = Counter()
        self.now = 0
        self.log: dict[bytes, bytes | None] = {}
        self.actors: dict[str, Actor] = {}
        self.tickets: dict[object, str] = {}  # whose question a ticket is; each is answered once
        self.asked = 0
        self.out: list[str] = []
        self._shard: GroupShard | None = None

    @property
    def shard(self) -> GroupShard:
        if self._shard is None:
            self._shard = GroupShard(GroupConfig(**self.config), self.rng)  # type: ignore[arg-type]
            for key, value in self.log.items():
                self._shard.replay(key, value)
            self.take(self._shard.wake(self.topics, Millis(self.now), self.wall))
        return self._shard

    @property
    def wall(self) -> Millis:
        return Millis(WALL_MS + self.now)

    def play(self, line: str) -> list[str]:
        self.out = []
        head, *words = line.split("#")[0].split()
        match head:
            case "config":
                self.config.update({name: int(value) for name, value in map(pair, words)})
            case "topics":
                for name, value in map(pair, words):
                    self.topics.make(name, int(value))
            case "drop":
                gone = self.topics.remove(words[0])
                if "unseen" not in words:
                    self.take(self.shard.topic_deleted(gone, self.topics, Millis(self.now), self.wall))
            case "crash":
                self._shard = None
                self.tickets.clear()
                _ = self.shard
            case _ if head.startswith("+"):
                self.pass_time(int(head[1:]))
            case _:
                self.act(self.actors.setdefault(head, Actor(head)), words[0], words[1:])
        return self.out

    def pass_time(self, span: int) -> None:
        end = self.now + span
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            before = len(self.out)
            self.take(self.shard.tick(Millis(self.now), self.topics, self.wall))
            if len(self.out) > before:
                self.out.insert(before, f"at {self.now}")
        self.now = end

    def act(self, actor: Actor, verb: str, words: list[str]) -> None:
        flags = {word for word in words if "=" not in word}
        given = dict(pair(word) for word in words if "=" in word)
        self.asked += 1
        ticket = self.asked
        self.tickets[ticket] = actor.name
        request = getattr(self, "ask_" + verb.replace("-", "_"))(actor, flags, given)
        method = getattr(self.shard, VERBS.get(verb, verb.replace("-", "_")))
        step: Step = method(request, ticket, self.topics, Millis(self.now), self.wall)
        answered = any(reply.ticket == ticket for reply in step.replies)
        if not answered:
            self.out.append("(waits)")
        self.take(step)

    def take(self, step: Step) -> None:
        for key, value in step.records:
            self.log.pop(key, None)
            self.log[key] = value
        for reply in step.replies:
            name = self.tickets.pop(reply.ticket)
            self.out.append(f"{name}: {self.shown(self.actors[name], reply.result)}")
        if step.records:
            self.out.append("log: " + ", ".join(self.shown_record(*record) for record in step.records))

    # --- what members say
    def ask_join(self, actor: Actor, flags: set[str], given: dict[str, str]) -> Join:
        member_id, owned = self.member(given, actor), self.by_topic(given.pop("owns", ""))
        given.pop("id", None)
        given = actor.joined = {**actor.joined, **given}
        subscription = Subscription(names(given.get("topics", "t")), owned, actor.generation)
        metadata = write_subscription(subscription) if "bytes" not in given else given["bytes"].encode()
        return Join(
            given.get("group", "g"), member_id, given.get("instance"), actor.name, "/127.0.0.1",
            int(given.get("session", 10_000)), int(given.get("rebalance", 60_000)), given.get("type", "consumer"),
            tuple(OfferedProtocol(name, metadata) for name in given.get("protocols", "range").split(",")),
            requires_known_id="old" not in flags, can_skip_assignment="skip" in flags,
        )  # fmt: skip

    def ask_sync(self, actor: Actor, flags: set[str], given: dict[str, str]) -> Sync:
        assignments = [
            (self.actors[name].member_id, write_assignment((("t", tuple(map(int, numbers.split(",")))),)))
            for name, numbers in given.items()
            if name in self.actors
        ]
        return Sync("g", self.generation(given, actor), self.member(given, actor), given.get("instance"),
                    given.get("type"), given.get("protocol"), tuple(assignments))  # fmt: skip

    def ask_beat(self, actor: Actor, flags: set[str], given: dict[str, str]) -> Heartbeat:
        return Heartbeat("g", self.generation(given, actor), self.member(given, actor), given.get("instance"))

    def ask_leave(self, actor: Actor, flags: set[str], given: dict[str, str]) -> Leave:
        if "members" not in given:
            return Leave("g", (Leaver(self.member(given, actor), given.get("instance")),))
        names = given["members"].split(",")
        return Leave("g", tuple(
            Leaver(self.actors[name].member_id) if name in self.actors else Leaver("", name) for name in names
        ))  # fmt: skip

    def ask_hb(self, actor: Actor, flags: set[str], given: dict[str, str]) -> ConsumerHeartbeat:
        epoch = int(given.get("epoch", actor.epoch))
        actor.member_id = actor.member_id or actor.name
        joins = epoch == 0
        owned = None if joins else actor.owned
        if "owned" in given:
            owned = self.partitions(given["owned"])
        return ConsumerHeartbeat(
            given.get("group", "g"), self.member(given, actor), epoch, actor.name, "/127.0.0.1",
            given.get("instance"), given.get("rack"),
            int(given["rebalance"]) if "rebalance" in given else 60_000 if joins else None,
            names(given["topics"]) if "topics" in given else (() if joins else None),
            given.get("regex"), given.get("assignor"), () if joins else (None if "brief" in flags else owned),
        )  # fmt: skip

    def ask_share(self, actor: Actor, flags: set[str], given: dict[str, str]) -> ShareHeartbeat:
        epoch = int(given.get("epoch", actor.epoch))
        actor.member_id = actor.member_id or actor.name
        return ShareHeartbeat(
            given.get("group", "g"), self.member(given, actor), epoch, actor.name, "/127.0.0.1", given.get("rack"),
            names(given["topics"]) if "topics" in given else None, int(given.get("session", 45_000)),
        )  # fmt: skip

    def ask_note_topics(self, actor: Actor, flags: set[str], given: dict[str, str]) -> NoteTopics:
        added, removed = (
            tuple(self.partition(f"{name}/0").topic_id for name in names(given.get(word, "")))
            for word in ("add", "remove")
        )
        return NoteTopics(given.get("group", "g"), added, removed, "creates" in flags)

    def ask_commit(self, actor: Actor, flags: set[str], given: dict[str, str]) -> CommitOffsets:
        generation = int(given.pop("gen", actor.epoch if actor.epoch > 0 else actor.generation))
        member_id, instance = self.member(given, actor), given.pop("instance", None)
        given.pop("id", None)
        metadata, retention, group = given.pop("meta", ""), given.pop("retention", None), given.pop("group", "g")
        offsets = tuple(
            OffsetToCommit(self.partition(name), Offset(int(at)), metadata=metadata) for name, at in given.items()
        )
        return CommitOffsets(
            group, member_id, generation, offsets, instance, None if retention is None else int(retention)
        )

    def ask_hold(self, actor: Actor, flags: set[str], given: dict[str, str]) -> CommitInTransaction:
        """As `commit`, in the transaction of a producer: pid=7/0 is its id and epoch."""
        producer_id, _, epoch = given.pop("pid", "7/0").partition("/")
        coordinator = int(given.pop("coordinator", 1))
        commit = self.ask_commit(actor, flags, given)
        return CommitInTransaction(
            commit.group_id, commit.member_id, commit.generation, commit.offsets, commit.instance_id,
            producer_id=int(producer_id), producer_epoch=int(epoch), coordinator_epoch=coordinator,
        )  # fmt: skip

    def ask_end(self, actor: Actor, flags: set[str], given: dict[str, str]) -> EndTransaction:
        producer_id, _, epoch = given.get("pid", "7/0").partition("/")
        return EndTransaction(
            producer_id=int(producer_id), producer_epoch=int(epoch), commit="commit" in flags,
            coordinator_epoch=int(given.get("coordinator", 1)), bumped="bumped" in flags,
        )  # fmt: skip

    def ask_fetch(self, actor: Actor, flags: set[str], given: dict[str, str]) -> FetchOffsets:
        wanted = self.partitions(given["of"]) if "of" in given else None
        if "as" not in given:
            return FetchOffsets(given.get("group", "g"), wanted, require_stable="stable" in flags)
        return FetchOffsets("g", wanted, self.actors[given["as"]].member_id, int(given["epoch"]))

    def ask_delete_offsets(self, actor: Actor, flags: set[str], given: dict[str, str]) -> DeleteOffsets:
        return DeleteOffsets(given.get("group", "g"), self.partitions(given["of"]))

    def ask_delete(self, actor: Actor, flags: set[str], given: dict[str, str]) -> str:
        return given.get("group", "g")

    ask_describe = ask_describe_consumer = ask_describe_share = ask_delete

    def ask_list(self, actor: Actor, flags: set[str], given: dict[str, str]) -> ListGroups:
        return ListGroups(names(given.get("states", "")), names(given.get("types", "")))

    def member(self, given: dict[str, str], actor: Actor) -> str:
        name = given.get("id")
        if name is None:
            return actor.member_id
        return self.actors[name].member_id if name in self.actors else "" if name == "none" else name

    def generation(self, given: dict[str, str], actor: Actor) -> int:
        return int(given.get("gen", actor.generation))

    def partition(self, name: str) -> PartitionKey:
        topic, number = name.split("/")
        return PartitionKey(self.topics.id_of(topic) or TopicId(uuid.UUID(int=99)), int(number))

    def partitions(self, text: str) -> tuple[PartitionKey, ...]:
        return tuple(self.partition(name) for name in text.split(",") if name and name != "none")

    def by_topic(self, text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((name.split("/")[0], (int(name.split("/")[1]),)) for name in names(text))

    # --- what they hear
    def shown(self, actor: Actor, result: object) -> str:
        match result:
            case MemberIdRequired(member_id=member_id):
                actor.member_id = member_id
                return f"member id required: {short(member_id)}"
            case RunnelError():
                return f"{type(result).__name__}: {short(str(result))}"
            case Joined():
                actor.member_id, actor.generation = result.member_id, result.generation
                members = " ".join(short(each.member_id) for each in result.members)
                skip = ", assignment skipped" if result.skip_assignment else ""
                return (
                    f"joined as {short(actor.member_id)}, generation {result.generation}, {result.protocol},"
                    f" leader {short(result.leader)}{skip}{', members ' + members if members else ''}"
                )
            case Synced():
                return "assigned " + (by_name(read_assignment(result.assignment)) or "nothing")
            case ConsumerAlive() | ShareAlive():
                actor.member_id, actor.epoch = result.member_id, result.member_epoch
                if result.assigned is None:
                    return f"epoch {result.member_epoch}"
                actor.owned = result.assigned
                return f"epoch {result.member_epoch}, assigned {self.listed(result.assigned)}"
            case Done():
                return "ok"
            case Left(members=left):
                return ", ".join(
                    f"{short(each.member_id or each.instance_id or '')} {type(error).__name__ if error else 'left'}"
                    for each, error in left
                )
            case OffsetsCommitted(errors=errors) | OffsetsDeleted(errors=errors):
                return " ".join("ok" if error is None else type(error).__name__ for error in errors)
            case OffsetsFetched(offsets=found):
                return " ".join(
                    f"{self.listed((each.partition,))}={shown_offset(each)}" for each in found
                ) or "nothing"  # fmt: skip
        return self.shown_group(result)

    def shown_group(self, result: object) -> str:
        match result:
            case DescribedGroup():
                members = "".join(
                    f"; {short(each.member_id)} {by_name(read_assignment(each.assignment))}".rstrip()
                    for each in result.members
                )
                return f"{result.state.value} {result.protocol_type}/{result.protocol}{members}"
            case DescribedConsumerGroup():
                members = "".join(
                    f"; {each.member_id} ({each.type.value}) epoch {each.member_epoch} has {self.listed(each.assigned)}"
                    f" target {self.listed(each.target)}"
                    for each in result.members
                )
                epochs = f"epoch {result.group_epoch}/{result.assignment_epoch}"
                return f"{result.state.value} {epochs} {result.assignor}{short(members)}"
            case DescribedShareGroup():
                members = "".join(
                    f"; {each.member_id} epoch {each.member_epoch} has {self.listed(each.assigned)}"
                    for each in result.members
                )
                topics = " ".join(self.topics.name_of(each) or "gone" for each in result.topics) or "nothing"
                return f"{result.state.value} epoch {result.group_epoch} {result.assignor} of {topics}{members}"
            case tuple():
                return (
                    ", ".join(f"{each.group_id} {each.type.value} {each.state.value}" for each in result) or "no groups"
                )
        raise AssertionError(result)

    def listed(self, partitions: tuple[PartitionKey, ...]) -> str:
        shown = [f"{self.topics.name_of(each.topic_id) or 'gone'}/{each.number}" for each in sorted(partitions)]
        return " ".join(shown) or "nothing"

    def shown_record(self, key: bytes, value: bytes | None) -> str:
        record = decode(key, value)
        assert record is not None
        name, sign = record[0], "-" if value is None else "+"
        if isinstance(name, OffsetKey):
            return f"{sign}offset {name.topic}/{name.number}"
        if isinstance(name, TopicKey):
            return f"{sign}topic {name.topic}"
        if isinstance(name, PendingKey):
            held = record[1].offsets if isinstance(record[1], PendingRecord) else ()
            shown = [f"{self.listed((each.partition,))}={each.offset}" for each in held]
            return " ".join([f"{sign}pending {name.producer_id}", *shown])
        shown_kind = name.kind.name.lower().split("_", 1)[-1].replace("_", "-")
        return f"{sign}{shown_kind} {short(name.member_id)}".rstrip()


VERBS = {
    "beat": "heartbeat",
    "hb": "consumer_heartbeat",
    "share": "share_heartbeat",
    "commit": "commit_offsets",
    "hold": "commit_in_transaction",
    "end": "end_transaction",
    "fetch": "fetch_offsets",
    "delete": "delete_group",
}


def shown_offset(each: FetchedOffset) -> str:
    return type(each.error).__name__ if each.error else f"{each.offset}{each.metadata and ':' + each.metadata}"


def pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def by_name(topics: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    return " ".join(f"{name}/{number}" for name, numbers in topics for number in numbers)


def short(text: str) -> str:
    return re.sub(r"-0{8,}([0-9a-f]+)", r"-\1", text)


def perform(text: str) -> str:
    stage, out = Stage(), []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        out.append(line)
        if line.strip() and not line.startswith("#"):
            out.extend("    " + answer for answer in stage.play(line))
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.txt")))
def test_conversation(name: str) -> None:
    path = FOLDER / name
    golden = path.read_text()
    performed = perform(golden)
    if os.environ.get("RUNNEL_WRITE_TRANSCRIPTS"):
        path.write_text(performed)
    else:
        assert performed == golden
