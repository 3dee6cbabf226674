"""The transactions of one producer: asking the coordinator for what `transaction` decided.

Rule 1: nothing is sent to a partition before the coordinator knows of it (classic), or without saying which
        transaction it belongs to (modern).
Rule 2: what may be asked again is asked again, with growing pauses, for as long as a call may block.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from runnel.client.cluster import Cluster
from runnel.client.errors import BrokerUnreachable, Closed, OutcomeUnknown
from runnel.client.identity import Spawn
from runnel.client.line import Identity, Line
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed
from runnel.client.transaction import State, Transaction
from runnel.client.transaction_calls import MODERN, Caller, Seat
from runnel.model.errors import (
    InvalidProducerMapping,
    InvalidTransactionState,
    RebalanceInProgress,
    RequestTimedOut,
    RetriableError,
    RunnelError,
    StaleMemberEpoch,
)
from runnel.wire.kafka.apis import Api

T = TypeVar("T")

CONCURRENT_PAUSE_MS = 5  # the first pause while the transaction before is still being ended: mostly enough


class Transactions:
    """Used by a producer that has a transactional id. `wake` is called when more can be sent, or nothing any more."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int,
        block_ms: int,
        wake: Callable[[], None],
        classic: bool = False,
    ) -> None:
        self.cluster = cluster
        self.now = Transaction(transactional_id, timeout_ms)
        self._caller = Caller(cluster, transactional_id)
        self._block_ms = block_ms
        self._classic = classic
        self._wake = wake
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    # --- beginning
    async def identify(self) -> None:
        """Fence whoever used the id before (what it left open is aborted), unless that was done."""
        if self.now.state is State.NEW:
            self.now.identified(await self._init())

    async def begin(self) -> None:
        async with self._beginning:
            self.now.check_can_begin()
            await self.identify()
            self.now.opened(modern=not self._classic and await self._persist(self._caller.speaks_modern))

    async def _init(self) -> Identity:
        now = self.now
        try:
            return await self._persist(lambda: self._caller.init(now.timeout_ms, now.identity))
        except RetriableError:
            raise
        except RunnelError as error:
            if now.state is State.NEW:
                raise  # nobody is fenced who was not there yet: a wrong timeout, a lack of rights
            raise now.fail(error, coordinator=True) from error

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await self.cluster.persist(attempt, timeout_ms=self._block_ms, pause_ms=CONCURRENT_PAUSE_MS)

    # --- what the sender asks
    @property
    def transactional_id(self) -> str:
        return self.now.id

    @property
    def doom(self) -> RunnelError | None:
        """Why nothing more of the transaction is to be sent."""
        return self.now.doom

    @property
    def produce_version_max(self) -> int | None:
        return None if self.now.modern else MODERN[Api.PRODUCE] - 1

    def admits(self, line: Line, spawn: Spawn) -> bool:
        """Whether a line may send now; if not, `wake` is called when it may."""
        now = self.now
        if now.doom is not None:
            return False
        if line.identity != now.identity:
            line.adopt(now.identity)
        now.started = True
        if now.modern or line.where in now.partitions:
            return True
        self._to_add.add(line.where)
        if self._adding is None:
            self._adding = spawn(self._add())
        return False

    async def _add(self) -> None:
        """Name partitions to the coordinator: all that were asked for meanwhile at once."""
        try:
            while self._to_add and self.now.doom is None:
                wanted, self._to_add = self._to_add, set()
                await self._persist(partial(self._caller.add_partitions, self.now.identity, wanted))
                self.now.partitions |= wanted
                self._wake()
        except RunnelError as error:
            self.fail(error, coordinator=True)
        finally:
            self._adding = None

    def fail(self, error: RunnelError, *, coordinator: bool = False) -> RunnelError:
        """A part of the transaction failed; what to raise for it."""
        if self.now.doom is not error:
            error = self.now.fail(error, coordinator=coordinator)
        self._wake()
        return error

    # --- offsets
    async def send_offsets(self, offsets: Mapping[TopicPartition, int | Committed], seat: Seat) -> None:
        """Let a group's offsets be committed with the transaction, and only with it."""
        now = self.now
        now.check_open()
        values = {w: at if isinstance(at, Committed) else Committed(at) for w, at in offsets.items()}
        if not values:
            return
        now.started = True
        try:
            if not now.modern and seat.group not in now.groups:
                await self._persist(lambda: self._caller.add_group(now.identity, seat.group))
                now.groups.add(seat.group)
            await self._persist(lambda: self._commit_offsets(seat, values))
        except RunnelError as error:
            raise self.fail(error, coordinator=True) from error
        except asyncio.CancelledError:  # nobody knows whether they are in
            self.fail(Closed(f"sending the offsets of group {seat.group!r} was cancelled"))
            raise

    async def _commit_offsets(self, seat: Seat, offsets: Mapping[TopicPartition, Committed]) -> None:
        """A member that lost its seat has to abort: trying again as the same member can't help."""
        try:
            await self._caller.commit_offsets(self.now.identity, seat, offsets, modern=self.now.modern)
        except RebalanceInProgress as error:
            raise StaleMemberEpoch(str(error)) from error

    # --- ending
    async def commit(self) -> None:
        """Commit what was sent, all of which was acknowledged."""
        now = self.now
        now.committing()
        identity = now.identity
        if now.must_end:
            try:
                identity = await self._persist(self._ask_commit)
            except RetriableError as error:
                raise OutcomeUnknown(
                    f"nobody knows yet whether the transaction of {now.id!r} was committed: {error}. Commit it again, "
                    "or make a new producer and read what was committed"
                ) from error
            except RunnelError as error:
                raise self.fail(error, coordinator=True) from error
        now.ended(identity)

    async def _ask_commit(self) -> Identity:
        try:
            return await self._caller.end(self.now.identity, commit=True, modern=self.now.modern)
        except (BrokerUnreachable, RequestTimedOut):
            self.now.doubtful = True
            raise

    async def abort(self) -> None:
        """Give up what was sent; nothing of it is in flight any more."""
        now = self.now
        now.aborting()
        await self._stop_adding()
        if now.must_end:
            now.identity = await self._ask_abort()
            now.started = False
        if now.renew:
            now.identity = await self._init()
            now.renew = False
        now.ended(now.identity)

    async def _ask_abort(self) -> Identity:
        now = self.now
        try:
            return await self._persist(lambda: self._caller.end(now.identity, commit=False, modern=now.modern))
        except RetriableError:
            raise
        except InvalidProducerMapping:
            now.renew = True  # it forgot us, and with us the transaction
            return now.identity
        except InvalidTransactionState as error:
            if now.modern or now.partitions or now.groups:
                raise self.fail(error, coordinator=True) from error
            now.renew = True  # nothing was ever added: there is no transaction, and must not be one later
            return now.identity
        except RunnelError as error:
            raise self.fail(error, coordinator=True) from error

    async def _stop_adding(self) -> None:
        """What is still to be added is not needed any more; a request under way may arrive late: hence a new epoch."""
        self._to_add.clear()
        if self._adding is not None:
            self.now.renew = True
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)
            self._adding = None
