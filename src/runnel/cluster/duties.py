"""A broker's place in the cluster: it registers, follows, claims the controller's place, and does what that asks for.

Rule 1: a broker follows what others change from its registration on: it reads what /changes names, learns who is alive
        from /brokers, and claims the controller's place when that is free.
Rule 2: whenever who is alive, or who decides, has changed, the controller looks at everything, as if it saw it for the
        first time: so it also does what its predecessor left undone.
Rule 3: a broker that stops is not urgent. Its partitions are handed over in portions; after each the controller rests
        as long as that took, for others have to follow it, and sees what else has happened. With thousands of
        partitions clients would wait for a second otherwise, until all brokers have followed all of it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from runnel.cluster import elections, membership, nodes
from runnel.cluster.decision import Decision
from runnel.cluster.following import follow
from runnel.cluster.image import Broker, BrokerState, Controller, Delta, Image
from runnel.cluster.ledger import TRIES_MAX, Ledger
from runnel.cluster.loading import must_get
from runnel.cluster.membership import Identity, Past
from runnel.cluster.store import Conflict, OutcomeUnknown, StoreUnavailable
from runnel.model.errors import NotController, RequestTimedOut
from runnel.model.ids import BrokerId, Epoch, PartitionKey
from runnel.model.topic_config import TopicConfig

WATCHED: Final = (nodes.CHANGES_PATH, nodes.BROKERS_PATH, nodes.CONTROLLER_PATH)

HANDED_OVER_MAX: Final = 500  # partitions at once

logger = logging.getLogger("runnel.metadata")


class Duties:
    """What a broker does for its place, and as controller for the cluster."""

    def __init__(self, ledger: Ledger, base: TopicConfig) -> None:
        self._ledger = ledger
        self._base = base
        self._loop = asyncio.get_running_loop()
        self._follower: asyncio.Task[None] | None = None
        self._settled: tuple[Mapping[BrokerId, Broker], Epoch] | None = None  # for whom, and in whose time, all is done

    @property
    def follower(self) -> "asyncio.Task[None]":
        assert self._follower is not None, "register first"
        return self._follower

    async def session_lost(self) -> None:
        """Return once the session is over, or can't be followed any more; raises what made that impossible."""
        lost = asyncio.ensure_future(self._ledger.store.session_lost())
        ends: set[asyncio.Future[None]] = {lost} if self._follower is None else {lost, self._follower}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._follower is not None and self._follower.done():
                self._follower.result()
        except StoreUnavailable as error:
            logger.error("the metadata can't be followed any more: %s", error)
        finally:
            lost.cancel()

    async def stop(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    # --- a life

    async def register(self, broker: Broker, identity: Identity) -> Broker:
        ledger = self._ledger
        async with ledger.turn:
            ledger.registered = registered = await self._announce(broker, identity)
        await self._look()
        self._follower = asyncio.get_running_loop().create_task(follow(ledger.store, WATCHED, self._look))
        return registered

    async def _announce(self, broker: Broker, identity: Identity) -> Broker:
        ledger = self._ledger
        paths = nodes.broker_epoch_path(broker.id), nodes.directory_path(broker.id), nodes.broker_path(broker.id)
        for _ in range(TRIES_MAX):
            past = Past(*[await ledger.store.get(path) for path in paths])
            registered, ops = membership.register(broker, identity, past)
            if await ledger.attempt(ops, Delta(brokers={broker.id: registered})):
                return registered
        raise RequestTimedOut(f"broker {broker.id} could not be registered: the metadata kept changing; try again")

    async def declare(self, state: BrokerState | None, damaged: Sequence[PartitionKey] = ()) -> None:
        """Write how far this broker is (None: as far as before), and which of its copies are lost."""

        def decide(image: Image) -> Decision[Broker]:
            mine = self._ledger.mine
            declared = membership.declare(mine, state, damaged)
            return Decision(Delta() if declared is mine else Delta(brokers={mine.id: declared}))

        await self._ledger.change(decide, for_itself=True)

    # --- following

    async def _look(self) -> None:
        """Something changed: learn it, and do what is now to be done."""
        ledger = self._ledger
        try:
            async with ledger.turn:
                await ledger.catch_up()
                ledger.check_place()
                await self._claim()
            await self._do()
        except (Conflict, NotController, OutcomeUnknown, RequestTimedOut) as error:
            logger.info("others changed the metadata at the same time (%s): looking again", error)

    async def _claim(self) -> None:
        """Become controller unless somebody is. Who does not serve yet leaves it to those who do: they can be asked."""
        ledger = self._ledger
        assert ledger.registered is not None
        me, session = ledger.registered.id, ledger.store.session
        while membership.is_free(present := await ledger.store.get(nodes.CONTROLLER_PATH), me, session):
            if present is None and self._others_can():
                return
            last = await must_get(ledger.store, nodes.CONTROLLER_EPOCH_PATH)
            claim = Controller(me, Epoch(last.version + 1))
            if await ledger.attempt(membership.claim(claim, present), Delta(controller=claim)):
                logger.info("this broker is controller now, in epoch %d", claim.epoch)
        if present is not None and present.session == session:
            # Ours, also where the store could not say so at once.
            ledger.controller_epoch = ledger.image.controller.epoch

    def _others_can(self) -> bool:
        serving = {broker.id for broker in self._ledger.image.brokers.values() if broker.serving}
        return bool(serving) and self._ledger.mine.id not in serving

    # --- as controller

    async def _do(self) -> None:
        """Rule 2."""
        ledger = self._ledger
        while ledger.is_controller:
            image = ledger.image
            if self._settled is not None and self._settled == (image.brokers, image.controller.epoch):
                return
            waiting = elections.waiting(image)
            began = self._loop.time()
            if await ledger.change(partial(elections.settle, base=self._base, handed_over_max=HANDED_OVER_MAX)):
                if not elections.anyone_stops(image):
                    continue
                await asyncio.sleep(self._loop.time() - began)
                return  # that was a change: it lets us look again
            if waiting is not None:
                await ledger.change(partial(elections.admit, broker=waiting, base=self._base))
                continue
            if ledger.image.brokers is image.brokers:
                self._settled = image.brokers, image.controller.epoch
