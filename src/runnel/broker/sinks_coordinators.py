"""What sinks ask the coordinators of transactions, on whatever broker they are; and what those answer.

Any broker answers who holds a transaction, and aborts it by force: that is for people.
"""

from typing import TypeVar

from runnel.broker.calls import Calls
from runnel.broker.transactions import Transactions
from runnel.model.calls import Nothing, Verb
from runnel.model.errors import InvalidTransactionState
from runnel.model.sinks import (
    TXN_FINISH,
    TXN_FORCE_ABORT,
    TXN_HOLD,
    TXN_HOLDER,
    TXN_OPEN,
    Finish,
    Finished,
    Handle,
    Hold,
    Holder,
    NamedTransaction,
    Opened,
    OpenSlot,
)
from runnel.transactions.values import DescribedTransaction, InitProducer

TXN_HOLDER_THERE = Verb("txn.holder.there", NamedTransaction, Holder)
TXN_FORCE_ABORT_THERE = Verb("txn.force-abort.there", NamedTransaction, Nothing)

Q = TypeVar("Q")
A = TypeVar("A")


class Coordinators:
    """The way to those who keep transactional ids."""

    def __init__(self, transactions: Transactions, calls: Calls) -> None:
        self._transactions = transactions
        self._calls = calls
        calls.serve(TXN_OPEN, self._open_here)
        calls.serve(TXN_HOLD, self._hold_here)
        calls.serve(TXN_FINISH, self._finish_here)
        calls.serve(TXN_HOLDER_THERE, self._holder_here)
        calls.serve(TXN_FORCE_ABORT_THERE, self._force_abort_here)
        calls.serve(TXN_HOLDER, lambda asked: self._ask(asked.transactional_id, TXN_HOLDER_THERE, asked))
        calls.serve(TXN_FORCE_ABORT, lambda asked: self._ask(asked.transactional_id, TXN_FORCE_ABORT_THERE, asked))

    # --- as who asks
    async def open(self, request: OpenSlot) -> Opened:
        """A new producer for a transactional id; ConcurrentTransactions while what was open under it is aborted."""
        return await self._ask(request.transactional_id, TXN_OPEN, request)

    async def hold(self, request: Hold) -> None:
        """Keep an open transaction for its sink; raises if it is not open, or that of another."""
        await self._ask(request.handle.transactional_id, TXN_HOLD, request)

    async def finish(self, request: Finish) -> Finished:
        """End a transaction; again, until it is complete."""
        return await self._ask(request.handle.transactional_id, TXN_FINISH, request)

    async def _ask(self, transactional_id: str, verb: Verb[Q, A], request: Q) -> A:
        coordinator = await self._transactions.find_coordinator(transactional_id)
        return await self._calls.ask(coordinator.id, verb, request)

    # --- as the coordinator
    async def _open_here(self, request: OpenSlot) -> Opened:
        timeout_ms = request.timeout_ms or self._transactions.timeout_max_ms
        identity = await self._transactions.init_producer(InitProducer(request.transactional_id, timeout_ms))
        return Opened(Handle(request.transactional_id, *identity), timeout_ms)

    async def _hold_here(self, request: Hold) -> Nothing:
        done: Nothing = await self._transactions.shards.ask(request.handle.transactional_id, "hold", request)
        return done

    async def _finish_here(self, request: Finish) -> Finished:
        done: Finished = await self._transactions.shards.ask(request.handle.transactional_id, "finish", request)
        return done

    async def _holder_here(self, request: NamedTransaction) -> Holder:
        return Holder((await self._transactions.describe(request.transactional_id)).holder)

    async def _force_abort_here(self, request: NamedTransaction) -> Nothing:
        """Against the sink, which may have decided to commit it."""
        found: DescribedTransaction = await self._transactions.describe(request.transactional_id)
        if not found.holder:
            raise InvalidTransactionState(
                f"the transaction of {request.transactional_id!r} is held by no sink: abort it without force"
            )
        handle = Handle(request.transactional_id, *found.producer)
        await self._finish_here(Finish(found.holder, handle, commit=False))
        return Nothing()
