"""What an earlier leader left half done: found with the keepers when this broker begins to lead, and gone on with.

Queues are opened when they are used. But a dead letter that is on its way, and a re-drive that is under way, wait for
nobody's use: whoever begins to lead their partition looks for them. It looks once, however much it begins to lead.
"""

import asyncio
import logging

from runnel.broker.deliveries import Deliveries
from runnel.broker.drive import OWNER
from runnel.broker.internal import QUEUES
from runnel.broker.keepers import Keepers
from runnel.broker.redrive import Redrives
from runnel.cluster.image import Change, Image
from runnel.model.errors import RunnelError
from runnel.model.ids import BrokerId
from runnel.queues.keeper import owner_partition
from runnel.queues.records import LEAVING_BEGINS
from runnel.queues.redrive import RUNNING_KEY

PAUSE_S, PAUSE_S_MAX = 0.2, 10.0  # before it is looked (again)

logger = logging.getLogger("runnel.queues")


class Resuming:
    """Looks, and opens what is to go on."""

    def __init__(self, me: BrokerId, keepers: Keepers, deliveries: Deliveries, redrives: Redrives) -> None:
        self._me = me
        self._keepers = keepers
        self._deliveries = deliveries
        self._redrives = redrives
        self._wanted = False
        self._looker: asyncio.Task[None] | None = None

    def start(self, image: Image) -> None:
        self._want(image)

    def follow(self, change: Change) -> None:
        if self._begins(change):
            self._want(change.after)

    def close(self) -> None:
        if self._looker is not None:
            self._looker.cancel()

    def _begins(self, change: Change) -> bool:
        """Whether this broker leads something from now on that had another leader, or itself in an earlier epoch."""
        for topic_id, topic in change.delta.topics.items():
            before = change.before.topics.get(topic_id)
            for number, one in enumerate(topic.partitions if topic is not None and before is not None else ()):
                assert before is not None
                known = before.partitions[number] if number < len(before.partitions) else None
                if one.leader == self._me and known is not None and known.leader_epoch != one.leader_epoch:
                    return True
        return False

    def _want(self, image: Image) -> None:
        if QUEUES not in image.names:
            return  # no queue was ever used
        self._wanted = True
        if self._looker is None:
            self._looker = asyncio.get_running_loop().create_task(self._look())
            self._looker.add_done_callback(self._looked)

    async def _look(self) -> None:
        pause_s = PAUSE_S
        while self._wanted:
            await asyncio.sleep(pause_s)  # whoever begins to lead one thing mostly begins to lead more
            self._wanted = False
            try:
                owners = await self._keepers.pending([LEAVING_BEGINS, RUNNING_KEY])
            except RunnelError as error:
                logger.warning("what queues left half done can't be looked up, trying again: %s", error)
                self._wanted = True
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                continue
            for owner in owners:
                self._resume(owner)

    def _resume(self, owner: str) -> None:
        queue, key = owner_partition(owner)
        try:
            if queue.endswith(OWNER):
                self._redrives.resume(queue.removesuffix(OWNER), key)
            else:
                self._deliveries.find(queue, key)
        except RunnelError:
            return  # it is led elsewhere

    def _looked(self, looker: "asyncio.Task[None]") -> None:
        self._looker = None
        if not looker.cancelled() and (error := looker.exception()):
            logger.error("what queues left half done could not be looked up", exc_info=error)
