"""All groups of one partition of the internal topic: the verbs.

Rule 1: a verb never waits. It returns a Step at once; a reply that must wait for other members comes in a later Step.
Rule 2: state in memory may run ahead of the log, replies never: the caller sends them when the records are durable.
Rule 3: if an append fails the caller throws the shard away and replays the log.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from runnel.groups import offsets, pending, sayings
from runnel.groups.classic import ClassicGroup
from runnel.groups.consumer import ConsumerGroup, check_heartbeat
from runnel.groups.migrate import downgraded, emptied_to_classic, emptied_to_consumer, upgraded
from runnel.groups.old_records import OldRecords, is_old
from runnel.groups.record_codec import decode
from runnel.groups.records import Kind
from runnel.groups.regex import Patterns
from runnel.groups.share import ShareGroup, check_share_heartbeat
from runnel.groups.share_values import NoteTopics, ShareHeartbeat
from runnel.groups.store import Store
from runnel.groups.timers import Alarm, Timer
from runnel.groups.turn import Turn
from runnel.groups.values import (
    NO_GENERATION,
    CommitInTransaction,
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteOffsets,
    Done,
    EndTransaction,
    FetchOffsets,
    GroupConfig,
    Heartbeat,
    Join,
    Leave,
    Left,
    ListGroups,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    Sync,
    TopicView,
)
from runnel.model.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    InvalidGroupId,
    RunnelError,
    UnknownMember,
)
from runnel.model.ids import Millis, TopicId
from runnel.model.seams import Rng
from runnel.model.step import Step
from runnel.model.timers import Timers

Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup
# A group that has offsets alone is a classic one.
TYPES: Final[dict[Kind | None, type[ConsumerGroup] | type[ShareGroup]]] = {
    Kind.CONSUMER_GROUP: ConsumerGroup,
    Kind.SHARE_GROUP: ShareGroup,
}
R = TypeVar("R")


class GroupShard:
    def __init__(self, config: GroupConfig, rng: Rng) -> None:
        self._config = config
        self._rng = rng
        self._store = Store()
        self._old = OldRecords()
        self._timers = Timers[Timer]()
        self._patterns = Patterns()
        self._groups: dict[str, Group] = {}

    # --- loading
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the log, in its order; call `wake` after the last."""
        if is_old(key):
            self._old.replay(key, value)
        elif (record := decode(key, value)) is not None:
            self._store.apply(*record)

    def wake(self, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: every session starts with a fresh full timeout."""
        turn = self._turn(topics, now_ms, wall_ms)
        self._old.rewrite(turn)
        self._store.drop_strays()
        for group_id, stored in self._store.groups.items():
            self._groups[group_id] = TYPES.get(stored.type, ClassicGroup).restored(group_id, stored)
        for group in self._groups.values():
            group.wake(turn)
        self._remove_orphans(turn)
        self._timers.set(Timer(Alarm.EXPIRE), now_ms + self._config.offsets_check_interval_ms)
        return self._step(turn)

    # --- time
    def next_deadline_ms(self) -> Millis | None:
        return self._timers.next_ms()

    def tick(self, now_ms: Millis, topics: TopicView, wall_ms: Millis) -> Step:
        """Do what is due."""
        turn = self._turn(topics, now_ms, wall_ms)
        while timer := self._timers.pop_due(now_ms):
            if timer.alarm is Alarm.EXPIRE:
                self._expire(turn)
            else:
                self._groups[timer.group_id].expire(timer, turn)
                self._settle(timer.group_id, turn)
        return self._step(turn)

    # --- members of the classic protocol
    def join(self, request: Join, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._join, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _join(self, request: Join, ticket: object, turn: Turn) -> None:
        check_name(request.group_id)
        sayings.check(request, self._groups.values(), turn.config)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise UnknownMember(f"there is no group {request.group_id!r} (any more): join without a member id")
            group = self._groups[request.group_id] = ClassicGroup(request.group_id)
        elif isinstance(group, ConsumerGroup) and group.empty and not request.member_id:
            group = self._groups[request.group_id] = emptied_to_classic(group, turn)
        group.join(request, ticket, turn)

    def sync(self, request: Sync, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._sync, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _sync(self, request: Sync, ticket: object, turn: Turn) -> None:
        sayings.check(request, self._groups.values(), turn.config)
        self._group_of_member(request.group_id).sync(request, ticket, turn)

    def heartbeat(self, request: Heartbeat, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._heartbeat, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _heartbeat(self, request: Heartbeat, ticket: object, turn: Turn) -> None:
        self._group_of_member(request.group_id).heartbeat(request, ticket, turn)

    def leave(self, request: Leave, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._leave, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _leave(self, request: Leave, ticket: object, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            error = UnknownMember(f"there is no group {request.group_id!r}: nothing to leave")
            turn.reply(ticket, Left(tuple((each, error) for each in request.members)))
        else:
            group.leave(request, ticket, turn)

    # --- members of KIP-848
    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._consumer_heartbeat, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _consumer_heartbeat(self, request: ConsumerHeartbeat, ticket: object, turn: Turn) -> None:
        check_name(request.group_id)
        check_heartbeat(request, turn)
        sayings.check(request, self._groups.values(), turn.config)
        self._consumer_group(request, turn).consumer_heartbeat(request, ticket, turn)

    def _consumer_group(self, request: ConsumerHeartbeat, turn: Turn) -> ConsumerGroup:
        """The group a member speaks to; the first of its kind makes it, or turns a classic group into it."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if isinstance(group, ShareGroup):
            raise GroupNotFound(f"group {request.group_id!r} is a share group: choose another group.id")
        if request.member_epoch != 0:
            raise UnknownMember(f"{request.member_id!r} is no member of group {request.group_id!r}: join with epoch 0")
        if group is None:
            made = ConsumerGroup(request.group_id)
        else:
            made = emptied_to_consumer(group, turn) if group.empty else upgraded(group, turn)
        self._groups[request.group_id] = made
        return made

    # --- members of share groups
    def share_heartbeat(
        self, request: ShareHeartbeat, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._share_heartbeat, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _share_heartbeat(self, request: ShareHeartbeat, ticket: object, turn: Turn) -> None:
        check_share_heartbeat(request)
        sayings.check(request, self._groups.values(), turn.config)
        if request.member_epoch == 0 and request.group_id not in self._groups:
            self._groups[request.group_id] = ShareGroup(request.group_id)
        self._group_of_member(request.group_id)
        self._share_group(request.group_id).share_heartbeat(request, ticket, turn)

    def _share_group(self, group_id: str) -> ShareGroup:
        group = self._group(group_id)
        if not isinstance(group, ShareGroup):
            raise GroupNotFound(f"group {group_id!r} is no share group: choose another group.id")
        return group

    def note_topics(
        self, request: NoteTopics, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._note_topics, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _note_topics(self, request: NoteTopics, ticket: object, turn: Turn) -> None:
        if request.creates and request.group_id not in self._groups:
            check_name(request.group_id)
            self._groups[request.group_id] = ShareGroup(request.group_id)
        self._share_group(request.group_id).note_topics(request, turn)
        turn.reply(ticket, Done())

    # --- offsets
    def commit_offsets(
        self, request: CommitOffsets, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._commit_offsets, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _commit_offsets(self, request: CommitOffsets, ticket: object, turn: Turn) -> None:
        group = self._committing(request)
        group.check_commit(request, turn)
        turn.reply(ticket, OffsetsCommitted(offsets.commit(request, group.check_partition, turn)))

    def _committing(self, request: CommitOffsets) -> Group:
        """The group that a request commits to; one from outside makes it."""
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation > NO_GENERATION:
                raise IllegalGeneration(f"there is no group {request.group_id!r} (any more): join again")
            group = self._groups[request.group_id] = ClassicGroup(request.group_id)
        return group

    def commit_in_transaction(
        self, request: CommitInTransaction, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._commit_in_transaction, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _commit_in_transaction(self, request: CommitInTransaction, ticket: object, turn: Turn) -> None:
        check_name(request.group_id)
        pending.check_epoch(request, turn)
        group = self._committing(request)
        group.check_transaction(request)
        turn.reply(ticket, OffsetsCommitted(offsets.hold(request, group.check_transaction_partition, turn)))

    def end_transaction(
        self, request: EndTransaction, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._end_transaction, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _end_transaction(self, request: EndTransaction, ticket: object, turn: Turn) -> None:
        for group_id in pending.end(request, turn):
            self._settle(group_id, turn)
        turn.reply(ticket, Done())

    def fetch_offsets(
        self, request: FetchOffsets, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._fetch_offsets, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _fetch_offsets(self, request: FetchOffsets, ticket: object, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is not None:
            group.check_fetch(request)
        turn.reply(ticket, OffsetsFetched(offsets.fetch(request, turn)))

    def delete_offsets(
        self, request: DeleteOffsets, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._delete_offsets, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _delete_offsets(self, request: DeleteOffsets, ticket: object, turn: Turn) -> None:
        group = self._group(request.group_id)
        group.check_delete_offsets()
        turn.reply(ticket, OffsetsDeleted(offsets.delete(request, group.subscribes, turn)))

    def topic_deleted(self, topic_id: TopicId, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        """Forget how far groups were in a topic that is gone."""
        turn = self._turn(topics, now_ms, wall_ms)
        offsets.drop_topic(topic_id, turn)
        for group_id, group in self._groups.items():
            if isinstance(group, ShareGroup) and topic_id in group.topics:
                group.forget_topic(topic_id)
                self._settle(group_id, turn)
        return self._step(turn)

    def brokers_changed(self, _: None, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        """A broker came or went: the members that it ran in an earlier life leave."""
        turn = self._turn(topics, now_ms, wall_ms)
        self._remove_orphans(turn)
        return self._step(turn)

    def _remove_orphans(self, turn: Turn) -> None:
        for group_id, group in list(self._groups.items()):
            if isinstance(group, ShareGroup):
                continue  # brokers run no members of those
            if group.remove_orphans(turn):
                self._settle(group_id, turn)

    def _expire(self, turn: Turn) -> None:
        for group_id, group in list(self._groups.items()):
            offsets.drop_expired(group_id, group.unused_since_ms, turn)
            stored = self._store.groups.get(group_id)
            if group.idle and not (stored and (stored.offsets or stored.pending)):
                self._delete(group_id, turn)
        self._timers.set(Timer(Alarm.EXPIRE), turn.now_ms + self._config.offsets_check_interval_ms)

    # --- administration
    def delete_group(self, group_id: str, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._delete_group, group_id, ticket, self._turn(topics, now_ms, wall_ms))

    def _delete_group(self, group_id: str, ticket: object, turn: Turn) -> None:
        if not self._group(group_id).empty:
            raise GroupNotEmpty(f"group {group_id!r} has members: stop them before deleting it")
        self._delete(group_id, turn)
        turn.reply(ticket, Done())

    def describe(self, group_id: str, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._describe, group_id, ticket, self._turn(topics, now_ms, wall_ms))

    def _describe(self, group_id: str, ticket: object, turn: Turn) -> None:
        group = self._group(group_id)
        if not isinstance(group, ClassicGroup):
            other = "ConsumerGroupDescribe" if isinstance(group, ConsumerGroup) else "ShareGroupDescribe"
            raise GroupNotFound(f"group {group_id!r} is not a classic group: use {other}")
        turn.reply(ticket, group.describe())

    def describe_consumer(
        self, group_id: str, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._describe_consumer, group_id, ticket, self._turn(topics, now_ms, wall_ms))

    def _describe_consumer(self, group_id: str, ticket: object, turn: Turn) -> None:
        group = self._group(group_id)
        if not isinstance(group, ConsumerGroup):
            other = "ShareGroupDescribe" if isinstance(group, ShareGroup) else "DescribeGroups"
            raise GroupNotFound(f"group {group_id!r} is not a consumer group: use {other}")
        turn.reply(ticket, group.describe_consumer(self._config.consumer_assignors[0]))

    def describe_share(self, group_id: str, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._describe_share, group_id, ticket, self._turn(topics, now_ms, wall_ms))

    def _describe_share(self, group_id: str, ticket: object, turn: Turn) -> None:
        turn.reply(ticket, self._share_group(group_id).describe_share())

    def list(self, request: ListGroups, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._list, request, ticket, self._turn(topics, now_ms, wall_ms))

    def _list(self, request: ListGroups, ticket: object, turn: Turn) -> None:
        states = {each.lower() for each in request.states}
        types = {each.lower() for each in request.types}
        listed = [group.listed() for group in self._groups.values()]
        turn.reply(ticket, tuple(
            each for each in listed
            if (not states or each.state.value.lower() in states) and (not types or each.type.value in types)
        ))  # fmt: skip

    # --- the rest
    def _turn(self, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Turn:
        return Turn(self._config, self._store, self._timers, self._rng, self._patterns, topics, now_ms, wall_ms)

    def _run(self, verb: Callable[[R, object, Turn], None], request: R, ticket: object, turn: Turn) -> Step:
        try:
            verb(request, ticket, turn)
        except RunnelError as error:
            turn.reply(ticket, error)
        group_id = request if isinstance(request, str) else getattr(request, "group_id", "")
        self._settle(group_id, turn)
        return self._step(turn)

    def _step(self, turn: Turn) -> Step:
        return Step(self._store.drain(), turn.replies)

    def _group(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupNotFound(f"there is no group {group_id!r}")
        return group

    def _group_of_member(self, group_id: str) -> Group:
        check_name(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMember(f"there is no group {group_id!r} (any more): join again")
        return group

    def _delete(self, group_id: str, turn: Turn) -> None:
        self._groups.pop(group_id).retire(turn)
        self._store.drop_group(group_id)

    def _settle(self, group_id: str, turn: Turn) -> None:
        """After each change: a group of classic members alone is a classic group; one without a trace never was."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.only_classic and self._config.migration:
            self._groups[group_id] = downgraded(group, turn)
        elif isinstance(group, ConsumerGroup | ShareGroup) and (not group.idle or group_id in self._store.groups):
            group.keep(turn)
        elif group is not None and group.idle and group_id not in self._store.groups:
            del self._groups[group_id]


def check_name(group_id: str) -> None:
    """Members need a group with a name; offsets of consumers that assign themselves may have none, as in Kafka."""
    if not group_id:
        raise InvalidGroupId("a group needs a name: set group.id")
