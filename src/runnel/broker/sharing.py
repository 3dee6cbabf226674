"""Share fetches and acknowledgements, at the leaders of partitions: queues as share groups see them (KIP-932).

Rule 1: batches are sent as they lie in the log; the spans of offsets that were leased say which messages are meant.
Rule 2: a lease is kept before its messages leave. If the connection or the session has ended by then, this lease is
        ended at once, and no other: the member may go on elsewhere.
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

PARTITION_BYTES_MAX: Final = 4 * MIB  # from one partition at a time, so that others have their turn
MESSAGES_MAX: Final = 10_000  # in one answer


class Limits(NamedTuple):
    """What one request may get, over all its partitions."""

    messages_max: int
    bytes_max: int
    wait_ms: int
    whole_batches: bool = False


class ShareFetchAsked(NamedTuple):
    """A fetch: by whom, how much, and what it ends with."""

    group_id: str
    owner: str  # of the leases
    limits: Limits
    ends: Sequence[Waits]

    @property
    def over(self) -> bool:
        """Whether the answer would be of no use any more."""
        return any(waits.over for waits in self.ends)


class Share(NamedTuple):
    """What one partition gave."""

    records: bytes | memoryview = b""
    grants: Sequence[Granted] = ()
    error: RunnelError | None = None


class Sharing:
    """The verbs of members, for partitions that are led here."""

    def __init__(self, deliveries: Deliveries, settings: Callable[[str], QueueConfig], bytes_max: int) -> None:
        self._deliveries = deliveries
        self._settings = settings
        self._bytes_max = bytes_max  # of one answer, whatever is asked for
        self._all = Waits()

    def close(self) -> None:
        """Answer all who wait, at once."""
        self._all.end()

    def lock_ms(self, group_id: str) -> int:
        """For how long messages are leased to members of a group."""
        return self._settings(group_id).lease_ms

    def may_renew(self, group_id: str) -> bool:
        """Whether members of a group may have their leases begin anew."""
        return self._settings(group_id).share_renew_acknowledge_enable

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

    async def fetch(self, asked: ShareFetchAsked, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Share]:
        """Lease messages of some partitions; waits until there are some, but no longer than asked."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(asked.limits.wait_ms, 0), WAIT_MS_MAX) / 1000
        while True:
            outlets, shares = self._outlets(asked.group_id, keys)
            with self._listening(outlets, asked) as sleeper:
                shares |= await self._take_all(outlets, asked)
                left_s = deadline - loop.time()
                if not shares and outlets and left_s > 0 and not self._over(asked):
                    await sleeper.sleep(left_s)
                    if not self._over(asked):
                        sleeper.woken = False  # it looks again now
                        continue
                return shares

    def _over(self, asked: ShareFetchAsked) -> bool:
        """Whether the answer is of no use any more, or everybody has to be answered now."""
        return self._all.over or asked.over

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
    def _listening(self, outlets: dict[PartitionKey, Outlet], asked: ShareFetchAsked) -> Iterator[Sleeper]:
        """Somebody whom the bells of some outlets wake; what it does not need, it passes on."""
        bells, sleeper = self._deliveries.bells, Sleeper()
        for waits in (self._all, *asked.ends):
            waits.begin(sleeper)
        for outlet in outlets.values():
            bells.add(outlet.bell, sleeper)
        try:
            yield sleeper
        finally:
            for waits in (self._all, *asked.ends):
                waits.done(sleeper)
            for outlet in outlets.values():
                bells.remove(outlet.bell, sleeper)
                if sleeper.woken:
                    bells.ring(outlet.bell)

    async def _take_all(self, outlets: dict[PartitionKey, Outlet], asked: ShareFetchAsked) -> dict[PartitionKey, Share]:
        shares: dict[PartitionKey, Share] = {}
        limits = asked.limits
        messages, size = min(limits.messages_max, MESSAGES_MAX), min(limits.bytes_max, self._bytes_max)
        for key, outlet in sorted(outlets.items(), key=lambda each: not each[1].shard.loaded):
            if messages <= 0 or (shares and (size <= 0 or not outlet.shard.loaded)):
                break  # what is being read keeps nobody waiting who has got something
            bytes_max = min(size, PARTITION_BYTES_MAX)
            want = Want(
                asked.owner, messages, bytes_max, whole_batches=limits.whole_batches, bound=True,
                one=not any(share.grants for share in shares.values()),
            )  # fmt: skip
            share = await self._take(outlet, want)
            if share.grants or share.error:
                shares[key] = share
                messages -= sum(grant.last - grant.first + 1 for grant in share.grants)
                size -= len(share.records)
            if asked.over:
                for taken, untold in shares.items():
                    outlets[taken].take_back(asked.owner, untold.grants)  # rule 2: they have not left
                return {}
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
