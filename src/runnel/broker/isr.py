"""Who is in sync: the leaders here ask the controller for the ISRs that their partitions should have.

Rule 1: what became of a change, only the image says. Until it does, the same is asked again: the epochs in it see to it
        that it is done once at most.
Rule 2: one refusal alone is final: a member that does not serve in the life that was seen never will. Any other may
        come from a change that was done before, or from a broker that is not the controller any more.
Rule 3: all that is due goes in one request, one request at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from runnel.broker.partitions import Partitions
from runnel.broker.standing import stand
from runnel.broker.turns import by_turns
from runnel.cluster.image import Image
from runnel.cluster.image import Partition as PartitionImage
from runnel.cluster.isr_changes import IsrChange
from runnel.model.errors import IneligibleReplica, RunnelError
from runnel.model.ids import NO_EPOCH, BrokerId, Epoch
from runnel.model.seams import Clock
from runnel.replica.partition import Partition
from runnel.replica.progress import Proposal

AGAIN_S: Final = 0.2  # before what has no outcome yet is asked again
BATCH_MAX: Final = 1_000  # partitions in one request

Ask: TypeAlias = Callable[[Sequence[IsrChange]], Awaitable[list[PartitionImage | RunnelError]]]

logger = logging.getLogger("runnel.isr")


class InSync:
    """Keeps the ISRs of the partitions that this broker leads."""

    def __init__(
        self, me: BrokerId, partitions: Partitions, image: Callable[[], Image], ask: Ask, clock: Clock, *,
        lag_ms: int, on_look: Callable[[], Awaitable[None]], on_fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._me = me
        self._partitions = partitions
        self._image = image
        self._ask = ask
        self._clock = clock
        self._lag_ms = lag_ms
        self._on_fatal = on_fatal
        self._on_look = on_look  # before lag is judged: learn who was heard of
        self._due: dict[Partition, None] = {}
        self._open: dict[Partition, Proposal] = {}  # asked for, and the image does not show it yet
        self._awake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._lives: tuple[Mapping[BrokerId, object], dict[BrokerId, Epoch]] = ({}, {})

    def start(self) -> None:
        self._tasks = [stand(self._run(), self._on_fatal), stand(self._look(), self._on_fatal)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def notice(self, partition: Partition, follower: BrokerId) -> None:
        """A follower asked a leader here for more: it may be in sync by now."""
        progress = partition.progress
        if follower not in progress.isr and progress.may_join(follower, self._serving()):
            self._wake(partition)

    def resign(self, partition: Partition) -> None:
        """What a leader here has can't be trusted: let another lead, if one can."""
        if partition.is_leader and (proposal := partition.progress.resign()) is not None:
            logger.error("%s is damaged here: this broker asks another to lead", partition.name)
            self._open[partition] = proposal
            self._wake(partition)

    def _wake(self, partition: Partition) -> None:
        self._due[partition] = None
        self._awake.set()

    def _serving(self) -> dict[BrokerId, Epoch]:
        brokers = self._image().brokers
        if self._lives[0] is not brokers:
            self._lives = brokers, {broker.id: broker.epoch for broker in brokers.values() if broker.serving}
        return self._lives[1]

    # --- what is due

    async def _look(self) -> None:
        """Who did not come along for too long leaves."""
        while True:
            await asyncio.sleep(self._lag_ms / 2000)
            await self._on_look()
            async for partition in by_turns(self._partitions):
                if partition.is_leader:
                    self._due[partition] = None
                    if partition.log.is_damaged:
                        self.resign(partition)  # somebody else may be in sync by now
            self._awake.set()
            await self._give_up_failed()

    async def _give_up_failed(self) -> None:
        """Let others lead what this broker should lead, and can't even open, or read any more."""
        me, topics = self._me, self._image().topics
        failed = [key for key in self._partitions.failed if key.topic_id in topics]  # it may be deleted by now
        places = [(key, topics[key.topic_id].partitions[key.number]) for key in failed]
        changes = [
            IsrChange(key, each.leader_epoch, each.epoch, tuple((other, NO_EPOCH) for other in each.isr if other != me))
            for key, each in places
            if each.leader == me and len(each.isr) > 1
        ]
        try:
            if changes:
                await self._ask(changes)
        except RunnelError as error:
            logger.info("%d partitions that can't be opened could not be given up yet: %s", len(changes), error)

    async def _run(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self._propose()
            while self._still_open():
                asked = list(self._open.items())
                for start in range(0, len(asked), BATCH_MAX):
                    await self._ask_for(asked[start : start + BATCH_MAX])
                await self._pause()

    async def _propose(self) -> None:
        due, self._due = self._due, {}
        now_ms = self._clock.monotonic_ms()
        async for partition in by_turns(due):
            serving = self._serving()
            if partition.is_leader and (proposal := partition.progress.propose(serving, now_ms, self._lag_ms)):
                self._open[partition] = proposal

    def _still_open(self) -> bool:
        """Forget what the image has decided; whether anything is left."""
        for partition, proposal in list(self._open.items()):
            if not partition.is_leader or partition.progress.proposed is not proposal:
                del self._open[partition]
        return bool(self._open)

    async def _pause(self) -> None:
        """Until something is due, or it is time to ask again for what has no outcome."""
        if not self._still_open():
            return
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._awake.wait()
        except TimeoutError:
            pass
        self._awake.clear()
        await self._propose()

    # --- asking

    async def _ask_for(self, asked: Sequence[tuple[Partition, Proposal]]) -> None:
        changes = [IsrChange(partition.key, *proposal) for partition, proposal in asked]
        try:
            results = await self._ask(changes)
        except RunnelError as error:
            logger.info("the controller could not be asked about %d ISRs, trying again: %s", len(changes), error)
            return
        for (partition, proposal), result in zip(asked, results, strict=True):
            if isinstance(result, IneligibleReplica):
                logger.info("%s: %s can't be in sync: %s", partition.name, sorted(proposal.members), result)
                partition.refused(proposal)
