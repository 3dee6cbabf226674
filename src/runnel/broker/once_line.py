"""The line of messages that are to be appended once to one partition, in one leader epoch.

Rule 1: what arrives in one turn of the loop is appended as one batch, in its order: all wait if one needs a look into
        the log, and where one can't be appended, nobody behind it is.
Rule 2: a name is claimed from when its message came until its place in the log is known. Whoever comes with the same
        name meanwhile gets that place, or that error: so of two at the same time one is appended.
Rule 3: a message is appended only when it is known that none of its name lies at or above its floor: by the names in
        memory, or else by a look into the log (`once_names`).
Rule 4: whoever appends batches of a producer (broker/sifting.py) claims the names in them, and appends the rest.
Rule 5: where the topic names a codec, batches are compressed before they are appended, off the loop (`recompression`).
Rule 6: names that did not get into the log are forgotten; those of which nobody knows whether they are committed are
        not: they are in the log, and who asks again waits for that one.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from runnel.broker.loads import loads
from runnel.broker.once_names import KnownNames, Share, lowest
from runnel.broker.recompression import Recompression, target_of
from runnel.log.log import Appended
from runnel.model.errors import BatchTooLarge, InvalidRecord, InvalidRequest, NotLeader, RunnelError, as_value
from runnel.model.headers import MESSAGE_ID
from runnel.model.ids import Epoch
from runnel.model.limits import MIB
from runnel.model.once import WINDOW, OnceMessage, Placed
from runnel.model.seams import Clock
from runnel.record.batch import HEADER_BYTES, read_header
from runnel.record.records import Record, encode
from runnel.replica.names import Place
from runnel.replica.partition import Partition

BATCH_BYTES: Final = MIB  # several messages become one batch up to this; one message may be larger
RECORD_BYTES: Final = 32  # what a record needs beside its bytes, at most
ID_BYTES_MAX: Final = 1_024  # of a name, in memory too
I64_END: Final = 1 << 63

logger = logging.getLogger("runnel.once")


class _Waiting(NamedTuple):
    message: OnceMessage
    future: "asyncio.Future[Placed]"


class Line:
    """Those who wait, and the names that are known."""

    def __init__(
        self, partition: Partition, clock: Clock, share: Callable[[], Share], recompression: Recompression
    ) -> None:
        self.partition = partition
        self._recompression = recompression
        self.epoch: Epoch = partition.leader_epoch
        self.known = KnownNames(partition, clock, share)
        self._new: list[_Waiting] = []
        self._claims: dict[str, asyncio.Future[Placed]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stands(self) -> bool:
        """Whether its leader epoch goes on."""
        return self.partition.is_leader and self.partition.leader_epoch == self.epoch

    def add(self, message: OnceMessage) -> "asyncio.Future[Placed]":
        """A message's place in the log, when it has one; it is not committed then."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Placed] = loop.create_future()
        future.add_done_callback(_ignore)
        if not self._new:
            loop.call_soon(self._flush)
        self._new.append(_Waiting(message, future))
        return future

    def trim(self) -> None:
        """Forget what is beyond this partition's share of memory, or older than any window."""
        self.known.trim()

    # --- batches of others

    async def claim(self, names: Mapping[int, str]) -> "Claims":
        """Claim the names of records (by their place in a batch) that is about to be appended, and find duplicates."""
        seen = await self.known.look_for(names.values())
        while others := {claim for name in names.values() if (claim := self._claims.get(name)) is not None}:
            await asyncio.wait(others)
        claims = Claims(self)
        loop = asyncio.get_running_loop()
        for number, name in names.items():
            if name in self._claims or name in seen or self.known.names.find(name, WINDOW) is not None:
                claims.duplicates.add(number)
            else:
                self._claims[name] = loop.create_future()
                claims.fresh[number] = name
        return claims

    def keep(self, name: str, place: Place) -> None:
        """A name that was claimed lies there now."""
        self.known.names.note(name, place)
        _tell(self._claims.pop(name), Placed(*place, False))

    def give_up(self, name: str) -> None:
        """A name that was claimed did not get into the log."""
        self._claims.pop(name).cancel()

    # --- one turn

    def _flush(self) -> None:
        new, self._new = self._new, []
        self.trim()
        claimed: list[_Waiting] = []
        for waiting in new:
            message, future = waiting
            if (claim := self._claims.get(message.id)) is not None:
                _follow(claim, future)
                continue
            if (place := self.known.names.find(message.id, lowest(message))) is not None:
                _tell(future, Placed(place.offset, place.timestamp_ms, True))
                continue
            self._claims[message.id] = future
            claimed.append(waiting)
        if all(self.known.knows(waiting.message) for waiting in claimed):
            self._append(claimed)
        else:
            self._go_on(self._look_up(claimed))

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """In a task: the turn does not wait for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(self, unknown: list[_Waiting]) -> None:
        """Find out about names that memory may not have; what is not in the log is appended."""
        try:
            hits = await self.known.look_up([waiting.message for waiting in unknown])
        except RunnelError as error:
            self._fail(unknown, error)
            return
        except BaseException:
            self._fail(unknown, _ended(self.partition))
            raise
        fresh = []
        for waiting in unknown:
            one = hits.get(waiting.message.id)
            if one is not None and one.offset >= lowest(waiting.message):
                self._settle(waiting, Placed(one.offset, one.timestamp_ms, True))
            else:
                fresh.append(waiting)
        self._append(fresh)

    # --- appending

    def _append(self, fresh: list[_Waiting]) -> None:
        """Append messages of which none is in the log, as few batches."""
        parts = list(loads(self._admitted(fresh), lambda waiting: _size(waiting.message), BATCH_BYTES))
        if target_of(self.partition.config) is None:
            self._append_all([(part, _encoded(part)) for part in parts])
        else:
            self._go_on(self._compress(parts))

    async def _compress(self, parts: list[list[_Waiting]]) -> None:
        """Rule 5."""
        everybody = [waiting for part in parts for waiting in part]
        try:
            batches = [await self._packed(_encoded(part)) for part in parts]
        except RunnelError as error:
            self._fail(everybody, error)
        except BaseException:
            self._fail(everybody, _ended(self.partition))
            raise
        else:
            self._append_all(list(zip(parts, batches, strict=True)))

    async def _packed(self, batch: memoryview) -> memoryview:
        try:
            return await self._recompression.pack(self.partition, batch, read_header(batch)) or batch
        except BatchTooLarge:
            return batch  # by being compressed: these messages were accepted long ago

    def _append_all(self, batches: list[tuple[list[_Waiting], memoryview]]) -> None:
        failure: RunnelError | None = None
        for part, batch in batches:
            try:
                if failure is None:
                    self._begin(part, batch)
            except RunnelError as error:
                failure = as_value(error)
            if failure is not None:
                self._fail(part, failure)

    def _admitted(self, fresh: list[_Waiting]) -> list[_Waiting]:
        """As many as there is room for; the others are refused."""
        quota = self.partition.quota
        if quota is None:
            return fresh
        admitted: list[_Waiting] = []
        for waiting in fresh:
            try:
                quota(1, len(admitted))
                admitted.append(waiting)
            except RunnelError as error:
                self._fail([waiting], error)
        return admitted

    def _begin(self, part: list[_Waiting], batch: memoryview) -> None:
        if not self.stands:
            raise NotLeader(f"{self.partition.name} is not led here in epoch {self.epoch} any more: send again")
        self.partition.must_have_enough()
        if self.partition.quota is not None:
            self.partition.quota(len(part))
        begun = self.partition.append(batch, read_header(batch))
        if isinstance(begun, Appended):
            self._appended(part, begun)
        else:
            begun.add_done_callback(lambda done: self._written(part, done))

    def _written(self, part: list[_Waiting], done: "asyncio.Future[Appended]") -> None:
        if done.cancelled():
            self._fail(part, NotLeader(f"{self.partition.name}: the append was ended: send again"))
        elif (error := done.exception()) is not None:
            self._fail(part, error)
        else:
            self._appended(part, done.result())

    def _appended(self, part: list[_Waiting], appended: Appended) -> None:
        for offset, waiting in enumerate(part, appended.base_offset):
            stamp = appended.append_time_ms if appended.append_time_ms >= 0 else waiting.message.timestamp_ms
            self.known.names.note(waiting.message.id, Place(offset, stamp))
            self._settle(waiting, Placed(offset, stamp, False))

    def _settle(self, waiting: _Waiting, placed: Placed) -> None:
        del self._claims[waiting.message.id]
        _tell(waiting.future, placed)

    def _fail(self, part: list[_Waiting], error: BaseException) -> None:
        for waiting in part:
            del self._claims[waiting.message.id]
            if not waiting.future.done():
                waiting.future.set_exception(as_value(error))


def _encoded(part: list[_Waiting]) -> memoryview:
    return memoryview(bytearray(encode([_record(n, waiting.message) for n, waiting in enumerate(part)])))


def _ended(partition: Partition) -> NotLeader:
    return NotLeader(f"{partition.name}: the broker stopped before these messages were appended: send again")


class Claims:
    """The names of one batch, from before it is appended until it is, or is not."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.duplicates: set[int] = set()
        self.fresh: dict[int, str] = {}

    def follow(self, begun: "Appended | asyncio.Future[Appended] | RunnelError", times: Mapping[int, int]) -> None:
        """Keep the names when the batch is written; `times` are those of its records."""
        if isinstance(begun, RunnelError):
            self.give_up()
        elif isinstance(begun, Appended):
            self._keep(begun, times)
        else:
            begun.add_done_callback(lambda done: self._written(done, times))

    def give_up(self) -> None:
        """The batch is not appended."""
        fresh, self.fresh = self.fresh, {}
        for name in fresh.values():
            self._line.give_up(name)

    def _written(self, done: "asyncio.Future[Appended]", times: Mapping[int, int]) -> None:
        if done.cancelled() or done.exception() is not None:
            self.give_up()
        else:
            self._keep(done.result(), times)

    def _keep(self, appended: Appended, times: Mapping[int, int]) -> None:
        fresh, self.fresh = self.fresh, {}
        for number, name in fresh.items():
            stamp = appended.append_time_ms if appended.append_time_ms >= 0 else times[number]
            self._line.keep(name, Place(appended.base_offset + number, stamp))


def check(message: OnceMessage, partition: Partition) -> None:
    """Raise unless the topic takes such a message; what it accepted once is not checked again."""
    partition.must_be_open_to_clients()
    if not 0 < len(message.id.encode()) <= ID_BYTES_MAX:
        raise InvalidRequest(f"a message id has 1 to {ID_BYTES_MAX} bytes, this one has {len(message.id.encode())}")
    if not -I64_END <= message.timestamp_ms < I64_END:
        raise InvalidRequest(f"no message can be of the time {message.timestamp_ms}: it does not fit into 64 bits")
    if message.accepted:
        return
    size = HEADER_BYTES + _size(message)
    if size > partition.config.max_message_bytes:
        raise BatchTooLarge(
            f"a message of {size} bytes for {partition.name} is above max.message.bytes,"
            f" {partition.config.max_message_bytes}: send a smaller one, or raise the topic's setting"
        )
    if partition.config.compacted and message.key is None:
        raise InvalidRecord(f"{partition.name} is compacted: every message needs a key")


def _tell(future: "asyncio.Future[Placed]", placed: Placed) -> None:
    if not future.done():
        future.set_result(placed)


def _ignore(future: "asyncio.Future[Placed]") -> None:
    """Whoever waited for it may have gone: what became of it is no error of anybody then."""
    if not future.cancelled():
        future.exception()


def _follow(claim: "asyncio.Future[Placed]", future: "asyncio.Future[Placed]") -> None:
    """Have one that came later learn what the first one does."""

    def copy(first: "asyncio.Future[Placed]") -> None:
        if future.done():
            return
        if first.cancelled():
            future.set_exception(NotLeader("the first one of this name was given up: send again"))
        elif (error := first.exception()) is not None:
            future.set_exception(as_value(error))
        else:
            place = first.result()
            future.set_result(Placed(place.offset, place.timestamp_ms, True))

    claim.add_done_callback(copy)


def _record(number: int, message: OnceMessage) -> Record:
    name = message.id.encode()
    headers = tuple(message.headers)
    if not headers or headers[-1] != (MESSAGE_ID, name):
        headers = (*headers, (MESSAGE_ID, name))
    return Record(number, message.timestamp_ms, message.key, message.value, headers)


def _size(message: OnceMessage) -> int:
    size = RECORD_BYTES + len(message.key or b"") + len(message.value or b"") + len(message.id) + len(MESSAGE_ID)
    return size + sum(len(name) + len(value or b"") + 8 for name, value in message.headers)
