"""Whether this broker leads what it believes to lead: asked of the store, before it says what only the newest may.

A broker learns late that another leads in its place when it can't reach the store just then. What it decides counts for
nothing, by its epoch; but what it says would be old.

Rule 1: whoever is to tell something in an epoch asks the store for the epoch that its partition is in, and for nothing
        else: what was decided besides, and is not done here yet, keeps nobody waiting.
Rule 2: those who ask meanwhile share the next question: each is answered by one that began after it asked. However a
        question ends, and it ends in time, the next one follows.
Rule 3: where the store can't be asked, nothing is confirmed, and the client is to look for the coordinator again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from runnel.cluster.image import Topic
from runnel.model.errors import NotCoordinator, RequestTimedOut, RetriableError, as_value
from runnel.model.ids import Epoch, PartitionKey

TIMEOUT_S: Final = 5.0

Answer: TypeAlias = Topic | RetriableError | None  # the topic as it is, why that can't be told, or that it is gone


class Confirming:
    """Asks about the partitions of one topic, for all who want to know."""

    def __init__(
        self, newest: Callable[[], Awaitable[Topic | None]], on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._newest = newest
        self._on_fatal = on_fatal
        self._asking: asyncio.Task[Answer] | None = None  # the last question that has begun
        self._next: asyncio.Task[Answer] | None = None  # the one that begins when that has ended

    async def confirm(self, key: PartitionKey, epoch: Epoch) -> None:
        """Return if nobody has led this partition in a later epoch before this call."""
        question = self._question()
        await asyncio.wait([question], timeout=TIMEOUT_S)  # not `asyncio.timeout`: who asks may not have a task yet
        answer = question.result() if question.done() else RequestTimedOut("the store did not answer")
        if isinstance(answer, RetriableError):
            raise NotCoordinator(
                f"whether this broker still coordinates the group could not be found out ({answer}):"
                " look for the coordinator again"
            )
        if answer is None or answer.id != key.topic_id or answer.partitions[key.number].leader_epoch > epoch:
            raise NotCoordinator("the group has had another coordinator since: look for the coordinator again")

    def _question(self) -> "asyncio.Task[Answer]":
        """The next one to begin."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask(self._asking))
            self._next.add_done_callback(self._ended)
        return self._next

    async def _ask(self, before: "asyncio.Task[Answer] | None") -> Answer:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._asking, self._next = self._next, None  # who comes from here on comes too late for this answer
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._newest()
        except TimeoutError:
            return RequestTimedOut("the store did not answer")
        except RetriableError as error:
            return as_value(error)

    def _ended(self, question: "asyncio.Task[Answer]") -> None:
        if not question.cancelled() and (error := question.exception()):
            self._on_fatal(error)
