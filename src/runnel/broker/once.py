"""Append once by name: a message is not appended again if one of its name lies in the partition already.

Rule 1: the partition's leader decides, in its leader epoch (`once_line`); every other broker asks it.
Rule 2: each message is answered with the place of the first one of its name, when that is committed.
Rule 3: so everything may be sent again: after silence, after an error, to the next leader. It is, until the time is up.
Rule 4: messages for one partition that is led elsewhere wait while a call is under way, and go with the next one.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from runnel.broker.calls import Calls, failure_of
from runnel.broker.elsewhere import PAUSE_MS, is_elsewhere
from runnel.broker.once_line import Line, check
from runnel.broker.once_names import Share
from runnel.broker.once_outbox import Outbox, Result
from runnel.broker.partitions import Partitions
from runnel.broker.recompression import Recompression
from runnel.client.outcome import error_of_failure
from runnel.cluster.image import Image
from runnel.model.errors import NotLeader, RequestTimedOut, RetriableError, RunnelError, UnknownTopic, as_value
from runnel.model.ids import BrokerId, Offset, PartitionKey, TopicId
from runnel.model.limits import KIB, MIB
from runnel.model.once import APPEND_ONCE, ONCE_FLOOR, AppendedOnce, AppendOnce, AskFloor, Floor, OnceMessage, Placed
from runnel.model.seams import Clock, Rng
from runnel.replica.partition import Partition

__all__ = ["Once", "OnceMessage", "Placed"]

NAMES_MAX: Final = 100_000  # in memory with their places, of all partitions: about 30 MB
PAGE_BYTES_MAX: Final = 32 * MIB  # for eight million more, of which less is known
SHARE_MIN, PAGE_BYTES_MIN = 1_000, 32 * KIB  # of one partition, however many there are
TIMEOUT_MS: Final = 30_000


class Once:
    """The verb, on any broker."""

    def __init__(
        self, me: BrokerId, partitions: Partitions, calls: Calls, image: Callable[[], Image],
        recompression: Recompression, clock: Clock, rng: Rng,
    ) -> None:  # fmt: skip
        self._me = me
        self._partitions = partitions
        self._calls = calls
        self._image = image
        self._recompression = recompression
        self._clock = clock
        self._rng = rng
        self._lines: dict[PartitionKey, Line] = {}
        self._outboxes: dict[PartitionKey, Outbox] = {}
        calls.serve(APPEND_ONCE, self._append_here)
        calls.serve(ONCE_FLOOR, self._floor_here)

    async def append(
        self, topic: str | TopicId, partition: int, messages: Sequence[OnceMessage], *, timeout_ms: int = TIMEOUT_MS
    ) -> list[Placed]:
        """Where each message lies, when it is committed; raises if one could not be appended: send all again then."""
        placed: list[Placed] = []
        for result in await self.append_each(topic, partition, messages, timeout_ms=timeout_ms):
            if isinstance(result, RunnelError):
                raise result
            placed.append(result)
        return placed

    async def append_each(
        self, topic: str | TopicId, partition: int, messages: Sequence[OnceMessage], *, timeout_ms: int = TIMEOUT_MS,
        on_retry: Callable[[], None] = lambda: None,
    ) -> list[Result]:  # fmt: skip
        """The same, with an error for each message that could not be appended.

        A retry means that an earlier attempt may have been carried out, whatever the last one says.
        """
        key = self._key(topic, partition)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        results: dict[int, Result] = {}
        while True:
            due = [n for n in range(len(messages)) if n not in results]
            left_ms = max(1, int((end - loop.time()) * 1000))
            tried = await self._try(key, [messages[n] for n in due], left_ms)
            again = {
                n for n, result in zip(due, tried, strict=True) if is_elsewhere(result, self._image(), key.topic_id)
            }
            if again:
                on_retry()
                if not await self._pause(end):
                    again = set()
            results |= {n: result for n, result in zip(due, tried, strict=True) if n not in again}
            if len(results) == len(messages):
                return [results[n] for n in range(len(messages))]

    async def floor(self, topic: str | TopicId, partition: int, *, timeout_ms: int = TIMEOUT_MS) -> Offset:
        """An offset below which nothing will ever be appended again: what is sent from now on lies at or above."""
        key = self._key(topic, partition)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            try:
                return await self._try_floor(key, max(1, int((end - loop.time()) * 1000)))
            except RetriableError as error:
                if not is_elsewhere(error, self._image(), key.topic_id) or not await self._pause(end):
                    raise

    def _key(self, topic: str | TopicId, number: int) -> PartitionKey:
        image = self._image()
        found = image.topic_named(topic) if isinstance(topic, str) else image.topic_with_id(topic)
        if not 0 <= number < len(found.partitions):
            raise UnknownTopic(f"topic {found.name!r} has partitions 0 to {len(found.partitions) - 1}, not {number}")
        return PartitionKey(found.id, number)

    async def _pause(self, end: float) -> bool:
        """Wait a little, if there is time left."""
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if asyncio.get_running_loop().time() + pause_s >= end:
            return False
        await asyncio.sleep(pause_s)
        return True

    # --- here

    async def _try(self, key: PartitionKey, messages: list[OnceMessage], timeout_ms: int) -> list[Result]:
        try:
            partition = self._partitions.find_by_id(*key)
        except NotLeader:
            return await self._elsewhere(key, messages, timeout_ms)
        except RetriableError as error:
            return [as_value(error)] * len(messages)
        return await self._here(partition, messages, timeout_ms)

    async def _here(self, partition: Partition, messages: Sequence[OnceMessage], timeout_ms: int) -> list[Result]:
        line = self.line(partition)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        begun = [_begin(line, message) for message in messages]
        if waiting := [one for one in begun if not isinstance(one, RunnelError)]:
            await asyncio.wait(waiting, timeout=timeout_ms / 1000)
        return await _committed(line, [_result(one) for one in begun], max(end - loop.time(), 0))

    def line(self, partition: Partition) -> Line:
        """Those who append to a partition that is led here, in its present epoch."""
        line = self._lines.get(partition.key)
        if line is None or line.partition is not partition or not line.stands:
            self._lines = {key: line for key, line in self._lines.items() if line.stands}
            line = self._lines[partition.key] = Line(partition, self._clock, self._share, self._recompression)
            for other in self._lines.values():
                other.trim()
        return line

    def _share(self) -> Share:
        """How many names one partition may have in memory."""
        lines = max(1, len(self._lines))
        return Share(max(SHARE_MIN, NAMES_MAX // lines), max(PAGE_BYTES_MIN, PAGE_BYTES_MAX // lines))

    # --- elsewhere

    async def _elsewhere(self, key: PartitionKey, messages: list[OnceMessage], timeout_ms: int) -> list[Result]:
        outbox = self._outboxes.get(key)
        if outbox is None:

            async def send(load: list[OnceMessage], within_ms: int) -> list[Result]:
                return await self._send(key, load, within_ms)

            outbox = self._outboxes[key] = Outbox(send, lambda: self._forget(key))
        answer = outbox.put(messages, timeout_ms)
        try:
            await asyncio.wait([answer], timeout=timeout_ms / 1000)
            if answer.done():
                return answer.result()
            error: RunnelError = RequestTimedOut(f"{key} did not answer within {timeout_ms} ms: send again")
        except RunnelError as problem:
            error = as_value(problem)
        finally:
            answer.cancel()  # also where the asker was cancelled: nobody reads it any more
        return [as_value(error)] * len(messages)

    def _forget(self, key: PartitionKey) -> None:
        self._outboxes.pop(key, None)

    async def _send(self, key: PartitionKey, messages: list[OnceMessage], timeout_ms: int) -> list[Result]:
        request = AppendOnce(key.topic_id, key.number, messages, timeout_ms)
        answer = await self._calls.ask(self._leader(key), APPEND_ONCE, request, timeout_ms=timeout_ms)
        pairs = zip(answer.placed, answer.failures, strict=True)
        return [placed or error_of_failure(failure) or RunnelError("no answer") for placed, failure in pairs]

    def _leader(self, key: PartitionKey) -> BrokerId:
        leader = self._image().topic_with_id(key.topic_id).partitions[key.number].leader
        if leader == self._me:
            raise NotLeader(f"{key} is led here now: try again")
        return leader

    async def _try_floor(self, key: PartitionKey, timeout_ms: int) -> Offset:
        try:
            return self._partitions.find_readable_by_id(*key).high_watermark
        except NotLeader:
            request = AskFloor(key.topic_id, key.number)
            return Offset((await self._calls.ask(self._leader(key), ONCE_FLOOR, request, timeout_ms=timeout_ms)).offset)

    # --- asked by others

    async def _append_here(self, request: AppendOnce) -> AppendedOnce:
        partition = self._partitions.find_by_id(TopicId(request.topic_id), request.partition)
        results = await self._here(partition, request.messages, request.timeout_ms)
        return AppendedOnce(
            [result if isinstance(result, Placed) else None for result in results],
            [failure_of(result) if isinstance(result, RunnelError) else None for result in results],
        )

    async def _floor_here(self, request: AskFloor) -> Floor:
        return Floor(self._partitions.find_by_id(TopicId(request.topic_id), request.partition).high_watermark)


def _begin(line: Line, message: OnceMessage) -> "asyncio.Future[Placed] | RunnelError":
    try:
        check(message, line.partition)
    except RunnelError as error:
        return as_value(error)
    return line.add(message)


def _result(begun: "asyncio.Future[Placed] | RunnelError") -> Result:
    if isinstance(begun, RunnelError):
        return begun
    if not begun.done():
        begun.cancel()  # nobody waits for it any more; the message itself goes on
        return RequestTimedOut("the message was not appended in time: send it again with the same id")
    error = begun.exception()
    if error is not None and not isinstance(error, RunnelError):
        raise error
    return error or begun.result()


async def _committed(line: Line, results: list[Result], timeout_s: float) -> list[Result]:
    """The same when all that has a place is committed; of what is not, why nobody knows."""
    end = max((result.offset + 1 for result in results if isinstance(result, Placed)), default=0)
    partition = line.partition
    try:
        waiting = partition.committed(Offset(end), line.epoch, timeout_s)
        if waiting is not None:
            await waiting
    except RunnelError as error:
        reached, unsure = partition.high_watermark if line.stands else 0, as_value(error)
        return [unsure if isinstance(one, Placed) and one.offset >= reached else one for one in results]
    return results
