"""Rows that are delivered later: they can't be part of a transaction, as the schedule keeps what it is given.

Rule 1: exactly once: tasks hand such rows to the driver, which gives them to the schedule when their batch is
        published, and not before. If it dies in between, Spark runs the batch again, and then they are given.
Rule 2: a row has a name that follows from its sink, its batch and what it holds: given twice, it comes once.
Rule 3: so that this holds however late the second time is, the driver keeps first where each partition ended before
        any of the batch's rows could have come: as offsets of a group, with the batch's number. Names count from there.
        It keeps, too, that all of a batch were given: then they are not given again.
Rule 4: as the driver holds them, a task may have `ROWS_MAX` of them, of `BYTES_MAX` bytes; more are refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from runnel.client.calls import call_until_done
from runnel.client.cluster import Cluster
from runnel.client.metadata import Topic, TopicPartition
from runnel.client.offsets import LATEST, Committed, commit, fetch_committed, list_offsets
from runnel.client.outcome import raise_for
from runnel.client.partitioner import partition_of_key
from runnel.model.calls import MESSAGE_SEND, Outgoing, SendTo
from runnel.model.errors import ClientError
from runnel.model.limits import MIB
from runnel.pipelines.connector.writing.packing import Numbers
from runnel.pipelines.connector.writing.row_layout import Layout

ROWS_MAX = 50_000
BYTES_MAX = 16 * MIB
SEND_ROWS_MAX = 500  # in one call
SEND_BYTES_MAX = 1 * MIB
ANYWHERE = -1  # no partition was named
DONE = "done"
OVERHEAD_BYTES = 64

Floors: TypeAlias = dict[TopicPartition, int]


class TooManyLater(ClientError):
    """More rows are to be delivered later than the driver can hold."""


class Waiting(NamedTuple):
    """A row that is delivered later."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    due_ms: int
    asked: tuple[int, int]  # the delay and the time as the row has them: they are the same when it is made again

    @property
    def size(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + OVERHEAD_BYTES


def waiting_rows(layout: Layout, topic: str, rows: pa.RecordBatch, due: Numbers) -> list[Waiting]:
    """Rows as values, with the times when they are due."""
    count = len(rows)

    def each(name: str) -> list[Any]:
        column = layout.column(rows, name)
        return [None] * count if column is None else column.to_pylist()

    def times(name: str) -> list[int]:
        found = layout.times(rows, name, -1)
        return [-1] * count if found is None else found.tolist()

    asked = zip(times("delay"), times("deliverAt"), strict=True)
    columns = zip(each("partition"), each("key"), each("value"), each("headers"), due.tolist(), asked, strict=True)
    return [
        Waiting(topic, ANYWHERE if place is None else place, _bytes(key), _bytes(value), _headers(headers), when, said)
        for place, key, value, headers, when, said in columns
    ]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _headers(found: list[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    """A list of structs has dicts, a map has pairs."""
    pairs = ((h["key"], h["value"]) if isinstance(h, dict) else h for h in found or ())
    return tuple((name, _bytes(value)) for name, value in pairs)


class Held:
    """The rows of a task that are delivered later."""

    def __init__(self) -> None:
        self.rows: list[Waiting] = []
        self._bytes = 0

    def add(self, rows: Iterable[Waiting]) -> None:
        for row in rows:
            self.rows.append(row)
            self._bytes += row.size
            if len(self.rows) > ROWS_MAX or self._bytes > BYTES_MAX:
                raise TooManyLater(
                    f"one task has more than {ROWS_MAX} rows, or {BYTES_MAX >> 20} MB, to be delivered later: write "
                    "smaller batches (maxOffsetsPerTrigger), in more tasks (repartition), or with "
                    "semantics=at-least-once"
                )


# --- giving them to the schedule
class _Named(NamedTuple):
    row: Waiting
    id: str
    digest: int


def named(sink: str, batch: int, rows: Iterable[Waiting]) -> list[_Named]:
    """Rows with their names; of rows that are all alike, each has one of its own."""
    alike: Counter[bytes] = Counter()
    found = []
    for row in rows:
        what = msgspec.msgpack.encode((sink, batch, *row._replace(due_ms=0)))
        alike[what] += 1
        digest = blake2b(what + b"%d" % alike[what], digest_size=16)
        found.append(_Named(row, f"sink-{digest.hexdigest()}", int.from_bytes(digest.digest()[:8], "big")))
    return found


async def give(cluster: Cluster, sink: str, batch: int, rows: Sequence[Waiting], *, again: bool) -> None:
    """Give the rows of a batch that was published to the schedule; `again`: it may be done again, ever so late."""
    topics = sorted({row.topic for row in rows})
    kept = _Kept(cluster, f"runnel-sink-{sink}", batch)
    floors = await (kept.begin(topics) if again else _ends(cluster, topics))
    if floors is None:
        return
    counts = Counter(where.topic for where in floors)
    messages: dict[str, list[Outgoing]] = {topic: [] for topic in topics}
    for one in named(sink, batch, rows):
        messages[one.row.topic].append(_message(one, counts[one.row.topic], floors if again else {}))
    for topic, some in _calls(messages):
        answer = await call_until_done(cluster, MESSAGE_SEND, SendTo(topic, some))
        raise_for(answer.failures)
    if again:
        await kept.end(floors)


def _message(one: _Named, count: int, floors: Floors) -> Outgoing:
    row = one.row
    place = row.partition
    if place == ANYWHERE:
        place = one.digest % count if row.key is None else partition_of_key(row.key, count)
    return Outgoing(
        row.value, row.key, list(row.headers), place,
        deliver_at_ms=row.due_ms, message_id=one.id, floor=floors.get(TopicPartition(row.topic, place), -1),
    )  # fmt: skip


def _calls(messages: Mapping[str, Sequence[Outgoing]]) -> Iterator[tuple[str, list[Outgoing]]]:
    """Messages of one topic, as many as fit into a call."""
    for topic, of_topic in messages.items():
        some: list[Outgoing] = []
        size = 0
        for message in of_topic:
            size += len(message.key or b"") + len(message.value or b"") + OVERHEAD_BYTES
            if some and (size > SEND_BYTES_MAX or len(some) >= SEND_ROWS_MAX):
                yield topic, some
                some, size = [], 0
            some.append(message)
        yield topic, some


async def _ends(cluster: Cluster, topics: Iterable[str]) -> Floors:
    """Where each partition ends now."""
    places = [where for topic in topics for where in (await topic_of(cluster, topic)).places.values()]
    found = await list_offsets(cluster, dict.fromkeys(places, LATEST))
    return {where: found[where].offset for where in places}


class _Kept:
    """What is kept of the batch whose rows are being given: offsets of a group, with a text beside each.

    The ends are looked up before what is kept is read. So if nothing of this batch is kept, nobody can have given any
    of its rows before the ends were seen. Offsets of one commit are kept together, or none is: so as many partitions
    as are kept of a topic, as many it had when its rows were first given, and where a key's row goes does not change.
    """

    def __init__(self, cluster: Cluster, group: str, batch: int) -> None:
        self._cluster = cluster
        self._group = group
        self._begun, self._done = f"batch {batch}", f"batch {batch} {DONE}"

    async def begin(self, topics: Sequence[str]) -> Floors | None:
        """Where names of this batch count from; None: all its rows were given."""
        ends = await _ends(self._cluster, topics)
        stored = await fetch_committed(self._cluster, self._group, ends)
        if any(one.metadata == self._done for one in stored.values()):
            return None
        floors = {where: one.offset for where, one in stored.items() if one.metadata == self._begun}
        known = {where.topic for where in floors}
        fresh = {where: end for where, end in ends.items() if where.topic not in known}
        await self._keep(fresh, self._begun)
        return floors | fresh

    async def end(self, floors: Floors) -> None:
        await self._keep(floors, self._done)

    async def _keep(self, floors: Floors, text: str) -> None:
        await commit(self._cluster, self._group, {where: Committed(at, -1, text) for where, at in floors.items()})


async def topic_of(cluster: Cluster, name: str) -> Topic:
    """The topic, made by the broker if it is set up to."""
    return await cluster.persist(lambda: cluster.topic(name, create=True))
