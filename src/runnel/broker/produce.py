"""Produce: check each batch, append it, and answer when its acknowledgement level is reached.

Rule 1: every append of a request has taken its place in the log before the next request may pass, so requests keep
        their order.
Rule 2: one bad batch costs its own partition an error, and the others nothing.
Rule 3: before the first batch of a transaction in a partition its coordinator is asked (`admission`). Of a topic that
        delays messages or finds duplicates, records are taken out first, and where a topic names a codec, batches of
        another are compressed anew (`sifting`). The keys of a large batch for a compacted topic are looked for off the
        loop. No other batch waits for anybody before it is appended.
Rule 4: a batch that is refused for some of its records names them (KIP-467). Good batches are not searched for that.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, TypeAlias

from runnel.broker.admission import Claim, Closed, Gate, admit, begins
from runnel.broker.sifting import Sifted, Sifting
from runnel.broker.turns import may_be_large, off_loop
from runnel.log.compaction import keyless
from runnel.log.log import Appended
from runnel.model.errors import (
    BatchTooLarge,
    ConcurrentTransactions,
    InvalidAcks,
    InvalidRecord,
    InvalidTimestamp,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    RunnelError,
    StorageFailed,
    as_value,
)
from runnel.model.ids import NO_EPOCH, Epoch, Offset
from runnel.model.limits import FRAME_BYTES_MAX
from runnel.model.seams import Clock
from runnel.model.topic_config import TimestampType, TopicConfig
from runnel.record.batch import HEADER_BYTES, TRANSACTIONAL, BatchHeader, check_produced, read_header
from runnel.record.records import spans
from runnel.replica.ending import Guard
from runnel.replica.partition import Partition

ACKS_ALL = -1
NO_TIMESTAMP = -1
SIFTED_BYTES_MAX = FRAME_BYTES_MAX  # of all batches of one request: a client could have sent them so large
LARGE_RECORDS = 2_000  # in one batch: to look for their keys takes a few milliseconds
Keyless: TypeAlias = Sequence[int]  # the places of records without a key


class Append(NamedTuple):
    """One batch for one partition, or why there is no such partition."""

    partition: Partition | RunnelError
    batch: memoryview | None


class Produced(NamedTuple):
    """Where a batch came to lie."""

    base_offset: Offset
    append_time_ms: int
    start_offset: Offset


class Producing:
    """The verb."""

    def __init__(self, clock: Clock, gate: Gate | None = None, sifting: Sifting | None = None) -> None:
        self._clock = clock
        self._gate = gate or Closed()
        self._sifting = sifting

    async def produce(
        self, appends: Sequence[Append], acks: int, timeout_ms: int, let_pass: Callable[[], None],
        transactional_id: str | None = None, adds: bool = False, own: bool = False,
    ) -> list[Produced | RunnelError]:  # fmt: skip
        """Append batches; each result is a place in the log or an error.

        `adds`: the partitions that are written to are to be added to the transaction.
        `own`: a coordinator writes its own topic.
        """
        inside = self._sifting is not None and _look_inside(appends)
        large = _large_compacted(appends)
        if not inside and not large and transactional_id is None:  # the common case
            begun = [(self._begin(append, acks, own=own), _epoch_of(append)) for append in appends]
        else:
            claim = None if transactional_id is None else Claim(transactional_id, adds, timeout_ms)
            begun = await self._prepare_and_begin(appends, acks, timeout_ms, claim, large, own=own)
        let_pass()
        results: list[Produced | RunnelError] = []
        for append, (result, epoch) in zip(appends, begun, strict=True):
            if isinstance(result, RunnelError):
                results.append(await self._blamed(append, result))
            elif acks != ACKS_ALL and isinstance(result, Appended):
                results.append(_produced(append.partition, result))  # nothing to wait for: the common case
            else:
                results.append(await _finish(append, result, epoch, acks, max(timeout_ms, 0) / 1000))
        return results

    async def _prepare_and_begin(
        self, appends: Sequence[Append], acks: int, timeout_ms: int, claim: Claim | None,
        large: Mapping[int, tuple[Partition, memoryview]], *, own: bool,
    ) -> "list[tuple[Appended | asyncio.Future[Appended] | RunnelError, Epoch]]":  # fmt: skip
        """Rule 3."""
        sifted: dict[int, Sifted | RunnelError] = {}
        sifting = self._sifting
        async with nullcontext() if sifting is None else sifting.room(appends):
            try:
                if sifting is not None:
                    await self._sift(sifting, appends, timeout_ms, sifted)
                keys = await _check_keys(large, sifted) if large else {}
                guards = await self._admitted(appends, claim) if claim is not None else {}
            except BaseException:
                _give_up(sifted)
                raise
            return [
                (self._begin(append, acks, guards.get(n), sifted.get(n), keys.get(n), own=own), _epoch_of(append))
                for n, append in enumerate(appends)
            ]

    async def _admitted(self, appends: Sequence[Append], claim: Claim) -> dict[int, Guard | RunnelError]:
        """Those that begin a transaction in their partition, each with its guard or what its coordinator said."""
        first: dict[int, tuple[Partition, BatchHeader]] = {}
        for number, (partition, batch) in enumerate(appends):
            if isinstance(partition, Partition) and batch is not None and len(batch) >= HEADER_BYTES:
                header = read_header(batch)
                if begins(partition, header):
                    first[number] = partition, header
        return await admit(self._gate, claim, first) if first else {}

    async def _sift(
        self, sifting: Sifting, appends: Sequence[Append], timeout_ms: int, sifted: dict[int, Sifted | RunnelError]
    ) -> None:
        """Learn what is left of batches out of which records were taken, or why that could not be done.

        All requests go through partitions in the same order: one that has claimed names may wait for another's.
        """
        places = {partition.key: n for n, (partition, _) in enumerate(appends) if isinstance(partition, Partition)}
        room = SIFTED_BYTES_MAX
        for _, number in sorted(places.items()):
            partition, batch = appends[number]
            if isinstance(partition, Partition) and batch is not None and partition.looks_inside:
                try:
                    if (found := await sifting.sift(partition, batch, timeout_ms)) is not None:
                        room -= found.header.size
                        sifted[number] = _fitting(found, room)
                except RunnelError as error:
                    sifted[number] = as_value(error)

    def _begin(
        self, append: Append, acks: int, guard: Guard | RunnelError | None = None,
        sifted: Sifted | RunnelError | None = None, keys: Keyless | RunnelError | None = None, *, own: bool = False,
    ) -> "Appended | asyncio.Future[Appended] | RunnelError":  # fmt: skip
        partition, batch = append
        if isinstance(partition, RunnelError):
            return partition
        if isinstance(sifted, RunnelError):
            return sifted
        if sifted is not None:
            begun = self._append(partition, sifted.batch, sifted.header, acks, guard, keys, own)
            sifted.follow(begun)
            return begun
        try:
            if batch is None:
                raise InvalidRecord(
                    f"a request for {partition.name} carried no batch: send one with at least one record"
                )
            header = check_produced(batch)
        except RunnelError as error:
            return as_value(error)
        return self._append(partition, batch, header, acks, guard, keys, own)

    def _append(
        self, partition: Partition, batch: memoryview, header: BatchHeader, acks: int,
        guard: Guard | RunnelError | None, keys: Keyless | RunnelError | None, own: bool,
    ) -> "Appended | asyncio.Future[Appended] | RunnelError":  # fmt: skip
        try:
            partition.must_lead()
            self._check(partition, batch, header, acks, keys)
            if partition.refusals and partition.log.producers.get(header.producer_id) is None:
                partition.refusals.check(header)
            if isinstance(guard, RunnelError):
                raise guard
            begun = partition.append(batch, header, guard, own=own)
        except RunnelError as error:
            return _refused(partition, header, error)
        if partition.refusals:
            partition.refusals.taken(header, in_line=not isinstance(begun, Appended))
        return begun

    def _check(
        self, partition: Partition, batch: memoryview, header: BatchHeader, acks: int,
        keys: Keyless | RunnelError | None,
    ) -> None:  # fmt: skip
        """The rules of the topic, beyond those of the format; `keys`: what is known of them already."""
        config = partition.config
        if header.size > config.max_message_bytes:
            raise BatchTooLarge(
                f"a batch of {header.size} bytes for {partition.name} is above max.message.bytes,"
                f" {config.max_message_bytes}: send smaller batches, or raise the topic's setting"
            )
        few = acks == ACKS_ALL and not partition.progress.enough
        if few and not partition.has(header):  # what is in the log already can't be refused any more
            partition.must_have_enough()
        if partition.quota is not None and not partition.has(header):
            partition.quota(header.count)
        if acks not in (ACKS_ALL, 0, 1):
            raise InvalidAcks(f"acks={acks} is not known: use 0, 1 or -1 (all)")
        if header.attributes & TRANSACTIONAL and header.producer_id < 0:
            raise InvalidRecord(f"{partition.name}: a batch of a transaction has a producer id, this one has none")
        if config.message_timestamp_type is TimestampType.CREATE:
            self._check_timestamp(partition, header, config)
        if not config.compacted:
            return
        if isinstance(keys, RunnelError):
            raise keys
        if missing := keyless(batch) if keys is None else keys:
            reason = f"{partition.name} is compacted: every record needs a key"
            raise InvalidRecord(reason, dict.fromkeys(missing, reason))

    def _check_timestamp(self, partition: Partition, header: BatchHeader, config: TopicConfig) -> None:
        newest, oldest = header.max_timestamp, header.base_timestamp
        if newest == NO_TIMESTAMP:
            return
        now = self._clock.wall_ms()
        if (
            newest - now > config.message_timestamp_after_max_ms
            or now - oldest > config.message_timestamp_before_max_ms
        ):
            raise InvalidTimestamp(
                f"{partition.name}: timestamps {oldest} to {newest} are too far from the broker's clock, {now}:"
                " see message.timestamp.before.max.ms and message.timestamp.after.max.ms"
            )

    async def _blamed(self, append: Append, error: RunnelError) -> RunnelError:
        """The error, which names the records that have a wrong timestamp, if that is what is wrong."""
        partition, batch = append
        if not isinstance(error, InvalidTimestamp) or not isinstance(partition, Partition) or batch is None:
            return error
        find = partial(_out_of_time, batch, partition.config, self._clock.wall_ms())
        try:
            large = may_be_large(read_header(batch), LARGE_RECORDS)
            found = await partition.log.offload(find) if large else find()
        except RunnelError:
            return error  # nobody can read them, or the log is closed: the batch as a whole is to blame
        return InvalidTimestamp(str(error), {place: f"timestamp {time} is too far off" for place, time in found})


def _out_of_time(batch: memoryview, config: TopicConfig, now_ms: int) -> list[tuple[int, int]]:
    """The places of the records with timestamps that a topic does not take, each with its timestamp."""
    header, _, found = spans(batch)
    oldest, newest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    return [
        (span.offset - header.base_offset, span.timestamp)
        for span in found
        if span.timestamp != NO_TIMESTAMP and not oldest <= span.timestamp <= newest
    ]


def _refused(partition: Partition, header: BatchHeader, error: RunnelError) -> RunnelError:
    """What a producer is told; whoever was refused for now leaves a gap behind it, which is no error of its own."""
    as_value(error)
    if isinstance(error, OutOfOrderSequence):
        if (missing := partition.missing_under_new_leader(header)) is not None:
            partition.refusals.suppose(header, missing, NotLeader(f"{error}; it may be on its way: send again"))
        return partition.refusals.instead_of(error, header)
    if isinstance(error, NotEnoughReplicas | NotLeader | StorageFailed | ConcurrentTransactions):
        partition.refusals.note(header, error)
    return error


def _fitting(found: Sifted, room: int) -> Sifted:
    """The rest of a batch, if there is room for it beside the others of its request."""
    if room >= 0:
        return found
    found.give_up()
    raise BatchTooLarge(
        f"the batches of this request have more than {SIFTED_BYTES_MAX} bytes when they are compressed as their topics"
        " say: send fewer, or smaller ones, in one request"
    )


def _look_inside(appends: Sequence[Append]) -> bool:
    for partition, _ in appends:  # noqa: SIM110  # a generator would cost more than the question
        if isinstance(partition, Partition) and partition.looks_inside:
            return True
    return False


def _large_compacted(appends: Sequence[Append]) -> dict[int, tuple[Partition, memoryview]]:
    """The batches whose keys are not looked through on the loop."""
    large = {}
    for number, (partition, batch) in enumerate(appends):
        if not isinstance(partition, Partition) or not partition.config.compacted or batch is None:
            continue
        try:
            header = check_produced(batch)
        except RunnelError:
            continue  # it is refused when its turn comes
        if header.size <= partition.config.max_message_bytes and may_be_large(header, LARGE_RECORDS):
            large[number] = partition, batch
    return large


async def _check_keys(
    large: Mapping[int, tuple[Partition, memoryview]], sifted: Mapping[int, Sifted | RunnelError]
) -> dict[int, Keyless | RunnelError]:
    """The records of these without a key, or why nobody can say; of those that were sifted, of what is left."""
    keys: dict[int, Keyless | RunnelError] = {}
    for number, (partition, batch) in large.items():
        found = sifted.get(number)
        try:
            left = found.batch if isinstance(found, Sifted) else batch
            keys[number] = await off_loop(partition, [read_header(left)], partial(keyless, left))
        except RunnelError as error:
            keys[number] = as_value(error)
    return keys


def _give_up(sifted: Mapping[int, Sifted | RunnelError]) -> None:
    """Nothing of these is appended: whoever waits for their names need not."""
    for one in sifted.values():
        if isinstance(one, Sifted):
            one.give_up()


def _epoch_of(append: Append) -> Epoch:
    return append.partition.leader_epoch if isinstance(append.partition, Partition) else NO_EPOCH


async def _finish(
    append: Append, begun: "Appended | asyncio.Future[Appended]", leader_epoch: Epoch, acks: int, timeout_s: float
) -> Produced | RunnelError:
    """Wait until the append is written, and for acks=all until it is committed."""
    partition, batch = append
    assert isinstance(partition, Partition)
    assert batch is not None
    try:
        appended = begun if isinstance(begun, Appended) else await begun
    except RunnelError as error:
        return _refused(partition, read_header(batch), error)
    if partition.refusals:
        partition.refusals.taken(read_header(batch))
    try:
        if acks == ACKS_ALL:
            waiting = partition.committed(Offset(appended.last_offset + 1), leader_epoch, timeout_s)
            if waiting is not None:
                await waiting
    except RunnelError as error:
        return _refused(partition, read_header(batch), error)
    return _produced(partition, appended)


def _produced(partition: Partition | RunnelError, appended: Appended) -> Produced:
    assert isinstance(partition, Partition)
    return Produced(appended.base_offset, appended.append_time_ms, partition.log.start_offset)
