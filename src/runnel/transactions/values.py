"""What the verbs of transactions take and give, and the settings they obey."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from runnel.model.errors import RunnelError
from runnel.model.ids import NO_PRODUCER, PartitionKey, ProducerId, TopicId

HOUR_MS = 60 * 60 * 1000
NO_PRODUCER_EPOCH = -1
EPOCH_LAST = 32_766  # the last one that a producer may have: the one above it is left to fence it
NamedPartition: TypeAlias = tuple[str, int]


class TopicView(Protocol):
    """The topics of the cluster as one consistent picture."""

    def id_of(self, name: str) -> TopicId | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def partition_count(self, topic_id: TopicId) -> int:
        """How many partitions the topic has; 0 if there is no such topic."""
        ...


class TransactionConfig(msgspec.Struct, frozen=True):
    """The settings of transactions; Kafka's name of each stands beside it."""

    timeout_max_ms: int = 900_000  # transaction.max.timeout.ms
    expiration_ms: int = 7 * 24 * HOUR_MS  # transactional.id.expiration.ms
    expiration_check_ms: int = HOUR_MS  # transaction.remove.expired.transaction.cleanup.interval.ms


class State(IntEnum):
    """Where a transactional id stands. The numbers are Kafka's, and are stored."""

    EMPTY = 0  # a producer has begun, its first transaction has not
    ONGOING = 1
    PREPARE_COMMIT = 2  # decided, and not yet in every partition
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """Kafka's name of it."""
        return self.name.title().replace("_", "")

    @property
    def ending(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def running(self) -> bool:
        """Whether partitions may hold messages of a transaction that has not ended there."""
        return self is State.ONGOING or self.ending


STATES: dict[str, State] = {state.label: state for state in State}


class Cause(IntEnum):
    """Why a transaction ended. Stored."""

    CLIENT = 0  # its producer said so
    FENCED = 1  # another producer began under its transactional id
    TIMED_OUT = 2
    SINK = 3  # the sink that it belongs to said so


class Identity(NamedTuple):
    """A producer: with transactions of version 2, one of its transactions."""

    producer_id: ProducerId
    epoch: int


NOBODY = Identity(NO_PRODUCER, NO_PRODUCER_EPOCH)


# --- what is asked
class InitProducer(msgspec.Struct, frozen=True):
    transactional_id: str
    timeout_ms: int
    producer: Identity = NOBODY  # who it was until now (KIP-360)
    new_id: ProducerId = NO_PRODUCER  # for when one is needed


class AddPartitions(msgspec.Struct, frozen=True):
    transactional_id: str
    producer: Identity
    partitions: tuple[NamedPartition, ...]
    verify_only: bool = False


class EndTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer: Identity
    commit: bool
    bumps: bool = False  # since EndTxn v5: the end of a transaction is the end of its epoch (KIP-890)
    new_id: ProducerId = NO_PRODUCER  # for when one is needed


class ListTransactions(msgspec.Struct, frozen=True):
    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1  # only those that run for longer


# --- what is answered
class NeedsProducerId(msgspec.Struct, frozen=True):
    """Nothing was done: ask again with a new producer id."""


class PartitionsAdded(msgspec.Struct, frozen=True):
    errors: Mapping[NamedPartition, RunnelError | None]


class DescribedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    state: State
    producer: Identity
    timeout_ms: int
    began_ms: int  # wall time; -1 if none has begun
    partitions: tuple[NamedPartition, ...]  # not yet ended, of topics that are still there
    holder: str = ""  # the sink that holds it


class ListedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: ProducerId
    state: State


# --- what is ordered, and told when it is done
class Verdict(msgspec.Struct, frozen=True):
    """Tell these partitions how the transaction ended, for as long as it takes; then tell the machine."""

    transactional_id: str
    producer: Identity  # the epoch is that of the markers
    commit: bool
    version: int  # 2: the epoch of the markers is higher than that of all that was written
    cause: Cause
    partitions: frozenset[PartitionKey]
    ran_ms: int  # for how long, until it was decided
