"""The first batch of a transaction in a partition: its coordinator is asked whether it belongs there.

Rule 1: one question for all partitions of a request. Clients of Produce v12 and above leave it to this question to
        add the partitions to the transaction; what older ones write must have been added before (KIP-890).
Rule 2: a guard is taken in each partition before the question leaves. The answer counts as long as it is valid.
Rule 3: a batch that is in the log, is fenced off there, or goes on with a transaction that is open needs no question.
Rule 4: whatever may be better in a moment is told in words that make a client of any age send the batch again.
Rule 5: a coordinator is not asked once a newer one has written a marker of the producer here: it may not know yet
        that it is over, and would let a late batch open a transaction that nobody ends.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from runnel.model.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidTransactionState,
    NotEnoughReplicas,
    ProducerFenced,
    RetriableError,
    RunnelError,
    as_value,
)
from runnel.model.ids import NO_EPOCH, Epoch
from runnel.record.batch import BatchHeader
from runnel.replica.ending import Guard
from runnel.replica.partition import Partition


class Gate(Protocol):
    """Who knows the coordinators of transactions, here and elsewhere."""

    async def admit(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]], *,
        add: bool, timeout_ms: int, coordinator_epoch: int = NO_EPOCH,
    ) -> Mapping[tuple[str, int], RunnelError | None]:  # fmt: skip
        """For each partition: None if the transaction may write there, else why not.

        `coordinator_epoch`: of the newest coordinator that is known to have ended a transaction of the producer.
        """
        ...


class Claim(NamedTuple):
    """In whose name a request writes, and whether its partitions are to be added to the transaction."""

    transactional_id: str
    adds: bool
    timeout_ms: int


class Closed:
    """A gate that nobody passes: there are no coordinators."""

    async def admit(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]], *,
        add: bool, timeout_ms: int, coordinator_epoch: int = NO_EPOCH,
    ) -> Mapping[tuple[str, int], RunnelError | None]:  # fmt: skip
        error = InvalidTransactionState(f"no transaction of {transactional_id!r} is open: this broker serves none")
        return dict.fromkeys(partitions, error)


Batches: TypeAlias = Mapping[int, tuple[Partition, BatchHeader]]  # by their numbers in the request


def begins(partition: Partition, header: BatchHeader) -> bool:
    """Rule 3: whether a batch is the first of its transaction in a partition, as far as the log knows."""
    if not header.transactional or partition.in_transaction(header):
        return False
    try:
        return partition.log.producers.check(header) is None
    except InvalidProducerEpoch:
        return False  # the log refuses it, whatever a coordinator says
    except RunnelError:
        return True  # what it misses may stand in line


async def admit(gate: Gate, claim: Claim, batches: Batches) -> dict[int, Guard | RunnelError]:
    """For each batch that begins a transaction: the guard to append it with, or why it can't be appended."""
    producers = {(header.producer_id, header.producer_epoch) for _, header in batches.values()}
    if len(producers) > 1:
        mixed = InvalidProducerMapping(
            f"one request of {claim.transactional_id!r} wrote for {len(producers)} producers: a transaction has one"
        )
        return dict.fromkeys(batches, mixed)
    [(producer_id, epoch)] = producers
    guards = {number: _guard(partition, producer_id) for number, (partition, _) in batches.items()}
    asked = {
        number: (partition.topic, partition.key.number)
        for number, (partition, _) in batches.items()
        if isinstance(guard := guards[number], Guard) and not guard.admits(epoch)  # a batch before it was admitted
    }
    known_epoch = max((_known_epoch(batches[number][0], producer_id) for number in asked), default=NO_EPOCH)
    places = list(dict.fromkeys(asked.values()))
    verdicts = await _ask(gate, claim, producer_id, epoch, places, known_epoch) if asked else {}
    for number, place in asked.items():
        refusal, guard = verdicts.get(place), guards[number]
        if refusal is not None:
            guards[number] = _told(refusal, claim)
        elif isinstance(guard, Guard):
            guard.admit(epoch)
    return guards


def _guard(partition: Partition, producer_id: int) -> Guard | RunnelError:
    try:
        return partition.guard(producer_id)
    except RunnelError as error:
        return as_value(error)


def _known_epoch(partition: Partition, producer_id: int) -> Epoch:
    """Rule 5: the coordinator that wrote the last marker of a producer here."""
    known = partition.log.producers.get(producer_id)
    return NO_EPOCH if known is None else Epoch(known.coordinator_epoch)


async def _ask(
    gate: Gate, claim: Claim, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]], known_epoch: Epoch
) -> Mapping[tuple[str, int], RunnelError | None]:
    try:
        return await gate.admit(
            claim.transactional_id, producer_id, epoch, partitions,
            add=claim.adds, timeout_ms=claim.timeout_ms, coordinator_epoch=known_epoch,
        )  # fmt: skip
    except RunnelError as error:
        return dict.fromkeys(partitions, as_value(error))


def _told(error: RunnelError, claim: Claim) -> RunnelError:
    """Rule 4. A producer hears of its epoch as of a partition's refusal; that is what clients can recover from."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, ConcurrentTransactions) and claim.adds:
        return error
    if isinstance(error, RetriableError):
        # As Kafka does: of all that clients send again, this makes them ask for no metadata.
        return NotEnoughReplicas(f"could not ask whether {claim.transactional_id!r} may write here, try again: {error}")
    return error
