"""Share fetches and acknowledgements, at the leaders of partitions: queues as share groups see them (KIP-932).

Rule 1: batches are sent as they lie in the log; the spans of offsets that were leased say which messages are meant.
Rule 2: a lease is kept before its messages leave. If the client has gone by then, the lease is ended at once.
Rule 3: an error in one partition costs the others nothing.
Rule 4: what is bounded by the request (messages, bytes, time) is so over all its partitions; only the first batch may
        be larger than asked, and whole batches may be leased where that saves sending them again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from runnel.broker.bells import Sleeper
from runnel.broker.deliveries import Deliveries
from runnel.broker.fetch import WAIT_MS_MAX, Waits
from runnel.broker.hauls import Want
from runnel.broker.outlet import Outlet
from runnel.model.errors import RunnelError, as_value
from runnel.model.ids import PartitionKey
from runnel.model.limits import MIB
from runnel.model.queue_config import QueueConfig
from runnel.queues.values import Extend, Granted, Settle, Settled, Verdict

PARTITION_BYTES_MAX: Final = MIB  # from one partition at a time, so that others have their turn
MESSAGES_MAX: Final = 10_000  # in one answer


class Limits(NamedTuple):
    """What one request may get, over all its partitions."""

    messages_max: int
    bytes_max: int
    wait_ms: int
    whole_batches: bool = False


class Share(NamedTuple):
    """What one partition gave."""

    records: bytes | memoryview = b""
    grants: Sequence[Granted] = ()
    error: RunnelError | None = None


class Sharing:
    """The verbs of members, for partitions that are led here."""

    def __init__(self, deliveries: Deliveries, settings: Callable[[str], QueueConfig]) -> None:
        self._deliveries = deliveries
        self._settings = settings
        self._all = Waits()

    def close(self) -> None:
        """Answer all who wait, at once."""
        self._all.end()

    def lock_ms(self, group_id: str) -> int:
        """For how long messages are leased to members of a group."""
        return self._settings(group_id).lease_ms

    # --- settling

    async def settle(
        self, group_id: str, key: PartitionKey, owner: str, settled: Sequence[Verdict], renewed: Sequence[Verdict]
    ) -> RunnelError | None:
        """Keep what a member says of its messages; the error, if one of them was not leased to it (any more)."""
        refused: list[RunnelError] = []
        try:
            outlet = self._deliveries.find(group_id, key)
            if settled:
                refused += _refusals(await outlet.ask("settle", Settle(settled, owner)))
            if renewed:
                refused += _refusals(await outlet.ask("extend", Extend(renewed, owner=owner)))
        except RunnelError as error:
            return as_value(error)
        return refused[0] if refused else None

    def release(self, group_id: str, keys: Iterable[PartitionKey], owner: str, *, closed: bool) -> None:
        """A session is over: whatever it holds is free for others.

        `closed`: by its member, in order. What that has left it never worked on: clients fetch ahead. It is not counted
        as a delivery, or some restarts of an application would make dead letters of messages that nobody tried.
        """
        outlets = self._deliveries.of(group_id)
        for key in keys:
            if (outlet := outlets.get(key)) is not None:
                outlet.gone(owner, untouched=closed)

    # --- fetching

    async def fetch(
        self, group_id: str, keys: Sequence[PartitionKey], owner: str, limits: Limits, waits: Waits
    ) -> dict[PartitionKey, Share]:
        """What there is of some partitions; waits until there is something, but not longer than asked, nor `waits`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(limits.wait_ms, 0), WAIT_MS_MAX) / 1000
        while True:
            outlets, shares = self._outlets(group_id, keys)
            with self._listening(outlets, waits) as sleeper:
                shares |= await self._take_all(outlets, owner, limits, waits)
                left_s = deadline - loop.time()
                if not shares and outlets and left_s > 0 and not self._over(waits):
                    await sleeper.sleep(left_s)
                    if not self._over(waits):
                        sleeper.woken = False  # it looks again now
                        continue
                return shares

    def _over(self, waits: Waits) -> bool:
        """Whether nobody is there to be answered any more, or everybody has to be now."""
        return self._all.over or waits.over

    def _outlets(
        self, group_id: str, keys: Sequence[PartitionKey]
    ) -> tuple[dict[PartitionKey, Outlet], dict[PartitionKey, Share]]:
        """Those that are here, and why the others are not."""
        outlets: dict[PartitionKey, Outlet] = {}
        failed: dict[PartitionKey, Share] = {}
        for key in keys:
            try:
                outlets[key] = self._deliveries.find(group_id, key)
            except RunnelError as error:
                failed[key] = Share(error=as_value(error))
        return outlets, failed

    @contextmanager
    def _listening(self, outlets: dict[PartitionKey, Outlet], waits: Waits) -> Iterator[Sleeper]:
        """Somebody whom the bells of some outlets wake; what it does not need, it passes on."""
        bells, sleeper = self._deliveries.bells, Sleeper()
        for those in (self._all, waits):
            those.begin(sleeper)
        for outlet in outlets.values():
            bells.add(outlet.bell, sleeper)
        try:
            yield sleeper
        finally:
            for those in (self._all, waits):
                those.done(sleeper)
            for outlet in outlets.values():
                bells.remove(outlet.bell, sleeper)
                if sleeper.woken:
                    bells.ring(outlet.bell)

    async def _take_all(
        self, outlets: dict[PartitionKey, Outlet], owner: str, limits: Limits, waits: Waits
    ) -> dict[PartitionKey, Share]:
        shares: dict[PartitionKey, Share] = {}
        messages, size = min(limits.messages_max, MESSAGES_MAX), limits.bytes_max
        for key, outlet in sorted(outlets.items(), key=lambda each: not each[1].shard.loaded):
            if messages <= 0 or (shares and (size <= 0 or not outlet.shard.loaded)):
                break  # what is being read keeps nobody waiting who has got something
            want = Want(owner, messages, min(size, PARTITION_BYTES_MAX), whole_batches=limits.whole_batches, bound=True)
            share = await self._take(outlet, want)
            if waits.over:
                outlet.gone(owner, untouched=True)  # rule 2: they have not left
                break
            if share.grants or share.error:
                shares[key] = share
                messages -= sum(grant.last - grant.first + 1 for grant in share.grants)
                size -= len(share.records)
        return shares

    async def _take(self, outlet: Outlet, want: Want) -> Share:
        try:
            records, grants, _ = await outlet.lease_batches(want)
        except RunnelError as error:
            return Share(error=as_value(error))
        if grants and outlet.bell in self._deliveries.bells and outlet.has_more():
            self._deliveries.bells.ring(outlet.bell)
        return Share(records, grants)


def _refusals(settled: Settled) -> list[RunnelError]:
    return list(settled.refused.values())
