"""How a queue goes: its definition first, then all that it kept, then the note that this has to be done.

Rule 1: whoever is the controller brings to an end what it, or one before it, began. What is done twice does no harm.
Rule 2: what a deleted queue kept is forgotten when it is not defined any more: nobody keeps anything new for it then.
Rule 3: the name is free for another queue when nothing of the old one is left (cluster/group_rules.py).
Rule 4: topics go by their id: one that was made under the same name meanwhile is another one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from runnel.broker.calls import Calls
from runnel.broker.internal import GROUPS
from runnel.broker.keepers import Keepers
from runnel.cluster.config_rules import ConfigChange
from runnel.cluster.controller import Resource
from runnel.cluster.group_rules import GroupResource, Purpose, deleting_of
from runnel.cluster.image import GROUP, Change, Image, Topic
from runnel.model.calls import NamedQueue, Nothing, Verb
from runnel.model.errors import RunnelError, UnknownTopicId
from runnel.model.ids import BrokerId, TopicId

SHARE_END: Final = Verb("share.end", NamedQueue, Nothing)  # for the coordinator of the group of that name
PAUSE_S, PAUSE_S_MAX = 0.5, 10.0  # before it is gone on with (again): who began does it at once

logger = logging.getLogger("runnel.queues")


class Deleting(Protocol):
    """The verbs that delete topics and change settings; they work on the controller alone."""

    async def delete(self, topics: Sequence[str | TopicId]) -> list[Topic | RunnelError]: ...

    async def alter_configs(
        self,
        resources: Sequence[tuple[Resource, Sequence[ConfigChange]]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[RunnelError | None]: ...


class QueueDeletion:
    """Deletes queues. `followed` waits until brokers have done what the image says, `coordinator` keeps a group."""

    def __init__(
        self, admin: Deleting, keepers: Keepers, calls: Calls, newest: Callable[[], Image], is_ours: Callable[[], bool],
        followed: Callable[[], Awaitable[None]], coordinator: Callable[[str], BrokerId],
    ) -> None:  # fmt: skip
        self._admin = admin
        self._keepers = keepers
        self._calls = calls
        self._newest = newest
        self._is_ours = is_ours
        self._followed = followed
        self._coordinator = coordinator
        self._left: dict[str, None] = {}  # queues of which there is a note
        self._worker: asyncio.Task[None] | None = None

    # --- following the image

    def start(self, image: Image) -> None:
        self._learn(image, image.configs)

    def follow(self, change: Change) -> None:
        self._learn(change.after, change.delta.configs)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()

    def _learn(self, image: Image, keys: Iterable[str]) -> None:
        for queue in (key.removeprefix(GROUP) for key in keys if key.startswith(GROUP)):
            if deleting_of(image.group_notes(queue)) is not None:
                self._left[queue] = None
            else:
                self._left.pop(queue, None)
        if self._left and self._is_ours() and self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._go_on())
            self._worker.add_done_callback(self._ended)

    async def _go_on(self) -> None:
        pause_s = PAUSE_S
        while self._left and self._is_ours():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            for queue in list(self._left):
                try:
                    await self.finish(queue)
                except RunnelError as error:
                    logger.warning("queue %r is not deleted yet, trying again: %s", queue, error)

    def _ended(self, worker: "asyncio.Task[None]") -> None:
        self._worker = None
        if not worker.cancelled() and (error := worker.exception()):
            logger.error("queues that were being deleted are not", exc_info=error)

    # --- on the controller

    async def begin(self, queue: str, topics: Sequence[TopicId]) -> None:
        """From now on there is no such queue."""
        await self._configure(GroupResource(queue, Purpose.DELETE, tuple(topics)))

    async def finish(self, queue: str) -> None:
        """Do what is left to do of a queue that is being deleted; nothing, if nothing is."""
        noted = deleting_of(self._newest().group_notes(queue))
        if noted is None:
            return
        await self._followed()
        await self._keepers.forget(queue, made=noted.made)
        if GROUPS in self._newest().names:
            await self._keepers.patiently(lambda: self._end_group(queue))
        for deleted in await self._admin.delete(noted.topics):
            if isinstance(deleted, RunnelError) and not isinstance(deleted, UnknownTopicId):
                raise deleted
        await self._configure(GroupResource(queue, Purpose.DELETED))

    async def _end_group(self, queue: str) -> None:
        await self._calls.ask(self._coordinator(queue), SHARE_END, NamedQueue(queue))

    async def _configure(self, resource: GroupResource) -> None:
        [error] = await self._admin.alter_configs([(resource, ())], incremental=True)
        if error is not None:
            raise error
