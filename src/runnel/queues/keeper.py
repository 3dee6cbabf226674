"""What the leaders of partitions have kept for them elsewhere: a journal of small keyed records for each owner, fenced.

An owner is "queue/topic id/partition": the state of one queue over one partition. Its epoch is the leader epoch of that
partition. This machine is one partition of the topic that all this lives in; docs/formats/queue-state.md draws it.

Rule 1: whoever opens an owner is given all that it keeps, and a session that nobody had before. Whoever opened it
        earlier, in a lower epoch or in the same one, writes nothing any more.
Rule 2: a write counts only in the epoch and the session that were opened last. So a leader that was replaced, and a
        write that was under way for too long, change nothing.
Rule 3: an owner is opened in no lower epoch than it was. One that was open before, and is not known any more, was
        forgotten: it is not opened again by who still believes in it.
Rule 4: what belonged to a topic is taken out when the image proves that the topic was deleted.
Rule 5: an owner's name is parsed before anything changes, so that every record of this machine can be read again. A
        record that can't be read changes no owner. It may have held a session: all later sessions are above that.
Rule 6: a queue is forgotten with all that was opened for it, and for those of its name that were made before. What a
        later one opened stays, however late the word comes.
"""

from collections.abc import Container, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from runnel.model.calls import Nothing
from runnel.model.errors import FencedEpoch, InvalidRequest, NotCoordinator, RecordUnreadable, RunnelError, as_value
from runnel.model.ids import Millis, PartitionKey, TopicId
from runnel.model.internal_calls import Forgotten, KeeperForget, KeeperOpen, KeeperPending, KeeperWrite, Kept, Owners
from runnel.model.step import Record, Reply, Step
from runnel.model.unreadable import FOREIGN

S = TypeVar("S")


# The first element of a record's key: who holds an owner, one record of an owner, what is left of the forgotten.
OWNER, KEPT, FORGOTTEN = 1, 2, 3
BEYOND_ALL = 1 << 40  # more sessions than an owner has in a thousand years
_read_key = msgspec.msgpack.Decoder(list[Any]).decode


class _Holder(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The last who opened an owner."""

    epoch: int
    session: int
    made: int = 0  # the number of the queue that it was opened for; 0: of a share group


class _Forgotten(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Owners that are forgotten had sessions up to this one: an owner of the same name begins above."""

    session: int


class _Owner:
    __slots__ = ("holder", "records")

    def __init__(self) -> None:
        self.holder: _Holder | None = None
        self.records: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.records.pop(key, None)
        else:
            self.records[key] = value


def owner_name(queue: str, key: PartitionKey) -> str:
    """Stable for ever: what a queue keeps of a partition is found by it."""
    return f"{queue}/{key.topic_id}/{key.number}"


def owner_partition(owner: str) -> tuple[str, PartitionKey]:
    """The queue and the partition of an owner; the name of a queue may hold slashes. InvalidRequest if it is none."""
    try:
        queue, topic, number = owner.rsplit("/", 2)
        key = PartitionKey(TopicId(UUID(topic)), int(number))
    except ValueError:
        key = None
    if key is None or key.number < 0 or owner_name(queue, key) != owner:
        raise InvalidRequest(f"{owner[:200]!r} is no owner: it has to be 'queue/topic id/partition'")
    return queue, key


def owner_parts(owner: str) -> tuple[str, TopicId]:
    """The queue and the topic of an owner that was taken apart before."""
    queue, topic, _ = owner.rsplit("/", 2)
    return queue, TopicId(UUID(topic))


class KeeperShard:
    """One partition of the keepers' topic. What it sees of the cluster: which topics are proved to be deleted."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._of_topic: dict[TopicId, dict[str, None]] = {}  # the owners of each topic, in order
        self._forgotten = _Forgotten(0)

    # --- loading and time

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the log."""
        try:
            kind, name, rest = _parts_of(key)
            holder = None if value is None or kind != OWNER else _decode(value, _Holder)
            forgotten = None if value is None or kind != FORGOTTEN else _decode(value, _Forgotten)
        except RecordUnreadable:
            self._forgotten = _Forgotten(max(self._forgotten.session, BEYOND_ALL))
            raise
        if kind == KEPT:
            self._owner(name).put(rest, value)
        elif kind == OWNER:
            self._owner(name).holder = holder
        elif forgotten is not None:
            self._forgotten = _Forgotten(max(self._forgotten.session, forgotten.session))
        if value is None:
            self._tidy(name)

    def _owner(self, name: str) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner()
            self._of_topic.setdefault(owner_parts(name)[1], {})[name] = None
        return owner

    def _remove(self, name: str) -> _Owner:
        topic_id = owner_parts(name)[1]
        owners = self._of_topic[topic_id]
        del owners[name]
        if not owners:
            del self._of_topic[topic_id]
        return self._owners.pop(name)

    def _tidy(self, name: str) -> None:
        owner = self._owners.get(name)
        if owner is not None and owner.holder is None and not owner.records:
            self._remove(name)

    def wake(self, deleted: Container[TopicId], now_ms: Millis, wall_ms: Millis) -> Step:
        gone = [topic_id for topic_id in self._of_topic if topic_id in deleted]
        return Step(records=[record for topic_id in gone for record in self._drop_topic(topic_id)])

    def tick(self, now_ms: Millis, deleted: Container[TopicId], wall_ms: Millis) -> Step:
        return Step()

    def next_deadline_ms(self) -> Millis | None:
        return None

    # --- verbs

    def open(
        self, request: KeeperOpen, ticket: object, deleted: Container[TopicId], now_ms: Millis, wall_ms: Millis
    ) -> Step:
        known = self._owners.get(request.owner)
        holder = known.holder if known is not None else None
        if error := _refusal_to_open(request, holder):
            return Step(replies=[Reply(ticket, error)])
        owner = self._owner(request.owner)
        session = 1 + max(holder.session if holder else 0, self._forgotten.session)
        owner.holder = _Holder(request.epoch, session, request.made)
        record = (_key(OWNER, request.owner), msgspec.msgpack.encode(owner.holder))
        return Step([record], [Reply(ticket, Kept(owner.holder.session, list(owner.records.items())))])

    def write(
        self, request: KeeperWrite, ticket: object, deleted: Container[TopicId], now_ms: Millis, wall_ms: Millis
    ) -> Step:
        owner = self._owners.get(request.owner)
        if owner is None or (error := _refusal_to_write(request, owner.holder)):
            refusal = error if owner is not None else _forgotten(request.owner)
            return Step(replies=[Reply(ticket, refusal)])
        for key, value in request.records:
            owner.put(key, value)
        records: list[Record] = [(_key(KEPT, request.owner, key), value) for key, value in request.records]
        return Step(records, [Reply(ticket, Nothing())])

    def forget(
        self, request: KeeperForget, ticket: object, deleted: Container[TopicId], now_ms: Millis, wall_ms: Millis
    ) -> Step:
        gone = [name for name, owner in self._owners.items() if _is_meant(request, name, owner.holder)]
        return Step(self._drop(gone), [Reply(ticket, Forgotten(len(gone)))])

    def pending(
        self, request: KeeperPending, ticket: object, deleted: Container[TopicId], now_ms: Millis, wall_ms: Millis
    ) -> Step:
        begins = tuple(request.begins)
        found = [name for name, owner in self._owners.items() if any(key.startswith(begins) for key in owner.records)]
        return Step(replies=[Reply(ticket, Owners(found))])

    # --- news

    def topic_deleted(self, topic_id: TopicId, deleted: Container[TopicId], now_ms: Millis, wall_ms: Millis) -> Step:
        return Step(records=self._drop_topic(topic_id))

    def _drop_topic(self, topic_id: TopicId) -> list[Record]:
        return self._drop(list(self._of_topic.get(topic_id, ())))

    def _drop(self, names: Sequence[str]) -> list[Record]:
        records: list[Record] = []
        session = self._forgotten.session
        for name in names:
            owner = self._remove(name)
            session = max(session, owner.holder.session if owner.holder else 0)
            records += ((_key(KEPT, name, key), None) for key in owner.records)
            records.append((_key(OWNER, name), None))
        if session > self._forgotten.session:
            self._forgotten = _Forgotten(session)
            records.append((_key(FORGOTTEN), msgspec.msgpack.encode(self._forgotten)))
        return records


def _key(*parts: object) -> bytes:
    return msgspec.msgpack.encode(parts)


def _decode(value: bytes, shape: type[S]) -> S:
    try:
        return msgspec.msgpack.decode(value, type=shape)
    except FOREIGN as error:
        raise RecordUnreadable(f"the state of an owner can't be read ({error}): is it of a newer Runnel?") from None


def _parts_of(key: bytes) -> tuple[int, str, bytes]:
    """The kind of a record, its owner and the owner's own key; of a kind of newer brokers, the kind alone."""
    try:
        match _read_key(key):
            case [1, str(owner)]:
                owner_partition(owner)
                return OWNER, owner, b""
            case [2, str(owner), bytes(inner)]:
                owner_partition(owner)
                return KEPT, owner, inner
            case [int(kind), *_] if kind not in (OWNER, KEPT):
                return kind, "", b""
    except FOREIGN as error:
        raise RecordUnreadable(f"the key {key[:64].hex()} can't be read: {error}") from None
    except InvalidRequest as error:
        raise RecordUnreadable(str(error)) from None
    raise RecordUnreadable(f"the key {key[:64].hex()} is none of the state of queues")


def _is_meant(request: KeeperForget, name: str, holder: _Holder | None) -> bool:
    queue, topic_id = owner_parts(name)
    if queue != request.queue or request.topic_id not in (None, topic_id):
        return False
    return holder is None or holder.made <= request.made  # rule 6


def _refusal_to_open(request: KeeperOpen, holder: _Holder | None) -> RunnelError | None:
    try:
        owner_partition(request.owner)
    except InvalidRequest as error:
        return as_value(error)
    if holder is None:
        return _forgotten(request.owner) if request.session else None
    if request.epoch < holder.epoch or request.session > holder.session:
        return _fenced(request.owner, request.epoch, holder)
    return None


def _refusal_to_write(request: KeeperWrite, holder: _Holder | None) -> RunnelError | None:
    if holder is None:
        return _forgotten(request.owner)
    if request.epoch != holder.epoch:
        return _fenced(request.owner, request.epoch, holder)
    if request.session != holder.session:
        return NotCoordinator(f"{request.owner} was opened again since: open it, then write")
    return None


def _fenced(owner: str, epoch: int, holder: _Holder) -> RunnelError:
    return FencedEpoch(f"{owner} is kept in epoch {holder.epoch} now, not in {epoch}: find the partition's leader")


def _forgotten(owner: str) -> RunnelError:
    return FencedEpoch(f"{owner} is not kept any more: its queue was deleted")
