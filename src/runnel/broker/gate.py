"""Whether a transaction may write to a partition: its coordinator is asked, here or on another broker.

Rule 1: every question gets an answer for each partition, or the error that stands for all of them.
Rule 2: questions for one broker that come while one is under way there go together in the next request.
Rule 3: who coordinates may be changing just now, and the transaction before may be ending: it is asked again for a
        short while. The connection of the producer waits for it, so it is short; the producer asks again.
Rule 4: what a coordinator says does not count once a newer one has ended a transaction of the producer: it may not
        know yet that it is over, and say yes to what has ended.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from runnel.broker.peers import Peers
from runnel.broker.transactions import Transactions
from runnel.client.errors import BrokerUnreachable, check, error_of
from runnel.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
    RequestTimedOut,
    RunnelError,
    as_value,
)
from runnel.model.ids import NO_EPOCH, BrokerId, ProducerId
from runnel.model.seams import Rng
from runnel.transactions.values import AddPartitions, Identity, NamedPartition
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

PATIENCE_MS: Final = 1_000
PAUSE_MS: Final = 10
AT_ONCE_MAX: Final = 500  # transactions in one request
TIMEOUT_MS: Final = 10_000  # the coordinator may wait for its replicas; producers ask again
AGAIN: Final = (BrokerUnreachable, NotCoordinator, CoordinatorLoading, CoordinatorNotAvailable)

Topics: TypeAlias = Sequence[m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]
Errors: TypeAlias = dict[NamedPartition, RunnelError | None]

logger = logging.getLogger("runnel.transactions")


class Question(NamedTuple):
    asked: AddPartitions
    answer: "asyncio.Future[Errors]"


class Gate:
    """Asks the coordinators of transactions."""

    def __init__(self, me: BrokerId, transactions: Transactions, peers: Peers, rng: Rng) -> None:
        self._me = me
        self._transactions = transactions
        self._peers = peers
        self._rng = rng
        self._waiting: dict[BrokerId, list[Question]] = {}
        self._senders: dict[BrokerId, asyncio.Task[None]] = {}
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for sender in self._senders.values():
            sender.cancel()

    async def admit(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[NamedPartition], *,
        add: bool, timeout_ms: int, coordinator_epoch: int = NO_EPOCH,
    ) -> Errors:  # fmt: skip
        """For each partition: None if the transaction takes part there, after adding it if asked to, else why not.

        `coordinator_epoch`: of the newest coordinator that whoever asks has heard of (rule 4).
        """
        asked = AddPartitions(
            transactional_id, Identity(ProducerId(producer_id), epoch), tuple(partitions), verify_only=not add
        )
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        end = asyncio.get_running_loop().time() + min(timeout_ms, PATIENCE_MS) / 1000
        while True:
            errors = await self._try(asked, coordinator_epoch)
            if not self._is_passing(errors, add) or not await self._pause(end):
                return errors

    async def _try(self, asked: AddPartitions, coordinator_epoch: int) -> Errors:
        try:
            coordinator = self._coordinator(asked.transactional_id, coordinator_epoch)
            if coordinator == self._me:
                return dict((await self._transactions.add_partitions(asked)).errors)
            return await self._ask(coordinator, asked)
        except RunnelError as error:
            return dict.fromkeys(asked.partitions, as_value(error))

    def _coordinator(self, transactional_id: str, known_epoch: int) -> BrokerId:
        shards = self._transactions.shards
        if shards.epoch_of(transactional_id) < known_epoch:
            raise CoordinatorNotAvailable(f"the coordinator of {transactional_id!r} is over, the next is not known yet")
        return shards.leader_of(transactional_id).id

    def _is_passing(self, errors: Errors, add: bool) -> bool:
        """Rule 3: whether the answer may be another one in a moment."""
        return any(
            isinstance(error, AGAIN) or (add and isinstance(error, ConcurrentTransactions)) for error in errors.values()
        )

    async def _pause(self, end: float) -> bool:
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if self._closed or asyncio.get_running_loop().time() + pause_s >= end:
            return False
        await asyncio.sleep(pause_s)
        return True

    # --- other brokers

    async def _ask(self, coordinator: BrokerId, asked: AddPartitions) -> Errors:
        if self._closed:
            raise _closing()
        answer: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(coordinator, []).append(Question(asked, answer))
        if coordinator not in self._senders:
            sender = asyncio.get_running_loop().create_task(self._send_all(coordinator))
            self._senders[coordinator] = sender
            sender.add_done_callback(_report)
        return await answer

    async def _send_all(self, coordinator: BrokerId) -> None:
        """Put what waits to a coordinator, until nothing does."""
        batch: list[Question] = []
        try:
            while waiting := self._waiting.pop(coordinator, None):
                batch, rest = _split(waiting)
                if rest:
                    self._waiting[coordinator] = rest
                await self._send(coordinator, batch)
        finally:
            del self._senders[coordinator]
            for question in (*batch, *self._waiting.pop(coordinator, ())):
                if not question.answer.done():  # this broker is closing
                    question.answer.set_exception(_closing())

    async def _send(self, coordinator: BrokerId, batch: list[Question]) -> None:
        request = m.AddPartitionsToTxnRequest(transactions=[_transaction(question.asked) for question in batch])
        told: list[Errors]
        try:
            answer = await self._peers.ask(
                coordinator, Api.ADD_PARTITIONS_TO_TXN, request, m.AddPartitionsToTxnResponse,
                timeout_ms=TIMEOUT_MS, lane="gate",
            )  # fmt: skip
            check(answer.error_code, action="ask about transactions", broker=str(coordinator))
            results = {each.transactional_id: each.topic_results for each in answer.results_by_transaction}
            told = [_errors(question.asked, results, coordinator) for question in batch]
        except RunnelError as error:
            told = [dict.fromkeys(question.asked.partitions, as_value(error)) for question in batch]
        for question, errors in zip(batch, told, strict=True):
            if not question.answer.done():  # whoever asked may be gone
                question.answer.set_result(errors)


def _split(waiting: list[Question]) -> tuple[list[Question], list[Question]]:
    """What goes into one request, and what has to wait: a request names each transactional id once."""
    batch: dict[str, Question] = {}
    rest: list[Question] = []
    for question in waiting:
        if question.asked.transactional_id in batch or len(batch) >= AT_ONCE_MAX:
            rest.append(question)
        else:
            batch[question.asked.transactional_id] = question
    return list(batch.values()), rest


def _transaction(asked: AddPartitions) -> m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for name, number in asked.partitions:
        topics.setdefault(name, []).append(number)
    return m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=asked.transactional_id,
        producer_id=asked.producer.producer_id,
        producer_epoch=asked.producer.epoch,
        verify_only=asked.verify_only,
        topics=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in topics.items()
        ],
    )


def _errors(asked: AddPartitions, results: Mapping[str, Topics], coordinator: BrokerId) -> Errors:
    codes = {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in results.get(asked.transactional_id, ())
        for partition in topic.results_by_partition
    }
    missing = RequestTimedOut("the coordinator left this partition out of its answer")
    return {
        named: _error(codes[named], asked, coordinator) if named in codes else missing for named in asked.partitions
    }


def _error(code: int, asked: AddPartitions, coordinator: BrokerId) -> RunnelError | None:
    if not code:
        return None
    return error_of(code, action=f"write for {asked.transactional_id!r}", broker=str(coordinator))


def _closing() -> NotCoordinator:
    return NotCoordinator("this broker is closing, and asks no coordinator any more")


def _report(sender: "asyncio.Task[None]") -> None:
    if not sender.cancelled() and (error := sender.exception()):
        logger.error("asking about transactions failed", exc_info=error)
