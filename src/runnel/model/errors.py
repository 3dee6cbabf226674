"""What can go wrong. The type says whose fault it is; each door has one table that says what it answers.

    ClientError     the request is wrong: retrying it unchanged will not help
    RetriableError  ours, for now: the same request may well succeed later
    Corruption      the disk returned other bytes than were written; carries the place
    Fatal           the broker must end: going on could lose what was acknowledged

A message says what happened, to what, and what to do next.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeVar


class RunnelError(Exception):
    """The root of every error that Runnel raises on purpose."""


class ClientError(RunnelError):
    """The request is wrong: retrying it unchanged will not help."""


class RetriableError(RunnelError):
    """Ours, for now: the same request may well succeed later."""


class Corruption(RunnelError):
    """The disk returned other bytes than were written, of the messages from `first_offset` up to `next_offset`."""

    def __init__(self, what: str, *, path: str, position: int, first_offset: int = -1, next_offset: int = -1) -> None:
        super().__init__(f"{what} in {path} at byte {position}")
        self.path = path
        self.position = position
        self.first_offset = first_offset
        self.next_offset = next_offset


class Fatal(RunnelError):
    """The broker must end: going on could lose what was acknowledged (a failed fsync, for one)."""


class PlaceLost(Fatal):
    """The cluster may take this broker for dead, and another may have its place: this life of it has to end."""


class RecordUnreadable(RunnelError):
    """A record of an internal topic is none that its coordinator wrote, or was written by a newer Runnel.

    The record is set aside, and its neighbours are read (replica/unreadable.py).
    """


class DataInUse(RunnelError):
    """Another broker holds the data directory."""


class DataUnusable(RunnelError):
    """The system does not let the broker use the data directory."""


E = TypeVar("E", bound=BaseException)


def as_value(error: E) -> E:
    """The error as a value, to be kept, returned or handed on: without the frames that it passed through.

    A traceback holds its frames, and with them all that their functions had in hand: requests of megabytes. An error
    that such a frame holds in turn is garbage for the collector alone, which comes seldom. The frames of an error that
    nobody foresaw stay: the log tells them.
    """
    if isinstance(error, RunnelError):
        error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


# --- requests and names
class InvalidRequest(ClientError): ...


class UnsupportedVersion(ClientError): ...


class InvalidTopicName(ClientError): ...


class InvalidConfig(ClientError): ...


class InvalidPartitions(ClientError): ...


class InvalidReplicationFactor(ClientError): ...


class InvalidReplicaAssignment(ClientError): ...


class TopicAlreadyExists(ClientError): ...


class PolicyViolation(ClientError): ...


class InvalidFilter(ClientError):
    """A filter's text is not one: what stands at `position` (from 0), and what could stand there."""

    def __init__(self, message: str, *, position: int = 0, found: str = "", expected: str = "") -> None:
        super().__init__(message)
        self.position = position
        self.found = found
        self.expected = expected


class ReadOnlyTopic(ClientError):
    """The topic is a view on another one: it has nothing of its own that could be written, cut or moved."""


class TopicGone(ClientError):
    """The topic that somebody follows was deleted."""


class ViewSourceGone(ClientError):
    """The topic that a view shows messages of was deleted."""


class UnsupportedByRunnel(ClientError):
    """Kafka has it, this broker does not (yet)."""


class UnknownTopic(RetriableError):
    """Retriable, as in Kafka: the topic may be on its way."""


class UnknownTopicId(RetriableError): ...


class InconsistentTopicId(RetriableError): ...


# --- cluster
class NotController(RetriableError):
    """Only the controller changes metadata, and this broker is not it (any more)."""


class BrokerIdInUse(RetriableError):
    """Another process is registered under this id; if it is dead, its session will end soon."""


class BrokerNotRegistered(ClientError):
    """No broker of this number belongs to the cluster."""


class StaleBrokerEpoch(RetriableError):
    """What an earlier life of a broker says does not count any more."""


class StalePartitionEpoch(RetriableError):
    """The partition changed since this change of it was decided: look at the image, then decide anew."""


class IneligibleReplica(RetriableError):
    """A broker that does not serve, or not in the life that was meant, can't be in sync."""


class NoReassignmentInProgress(ClientError): ...


class ElectionNotNeeded(ClientError):
    """The partition is led by whom an election would choose."""


class PreferredLeaderNotAvailable(RetriableError):
    """The first replica can't lead now: its broker does not serve, or it is not in sync."""


class EligibleLeadersNotAvailable(RetriableError):
    """No broker that holds the partition serves."""


# --- appending
class CorruptBatch(RetriableError):
    """A batch arrived whose checksum or framing is wrong: the wire may have done it, so it may be sent again."""


class BadRecords(ClientError):
    """A batch is refused for some of its records: `reasons`, by their places in it; none where that can't be said."""

    def __init__(self, what: str = "", reasons: Mapping[int, str] | None = None) -> None:
        super().__init__(what)
        self.reasons = reasons or {}


class InvalidRecord(BadRecords): ...


class InvalidTimestamp(BadRecords): ...


class BatchTooLarge(ClientError): ...


class UnsupportedCompression(ClientError): ...


class UnsupportedFormat(ClientError): ...


class InvalidAcks(ClientError): ...


class NotLeader(RetriableError): ...


class LeaderNotAvailable(RetriableError): ...


class StorageFailed(RetriableError):
    """The disk refused (full, read-only, I/O error); nothing of this request was kept."""


class NotEnoughReplicas(RetriableError): ...


class NotEnoughReplicasAfterAppend(RetriableError): ...


class RequestTimedOut(RetriableError): ...


class TooBusy(RetriableError):
    """As much is under way as the broker has room for: nothing of the request was kept, it may be sent again soon."""


class OutOfOrderSequence(ClientError): ...


class DuplicateSequence(ClientError):
    """Older than the batches that are remembered: it was appended once, its offset is forgotten."""


class UnknownProducer(ClientError): ...


class InvalidProducerEpoch(ClientError): ...


class ProducerFenced(ClientError): ...


class InvalidTransactionState(ClientError): ...


class InvalidProducerMapping(ClientError):
    """The transactional id belongs to another producer id, or to none."""


# --- transactions
class ConcurrentTransactions(RetriableError):
    """The transaction before this one is still being ended."""


class TransactionAbortable(ClientError):
    """The transaction can't go on, but its producer can: abort it, then begin another."""


class OperationNotAttempted(RetriableError):
    """Another part of the same request could not be done, so this one was not tried."""


class TransactionCoordinatorFenced(ClientError):
    """A newer coordinator of the transaction has spoken already; this one is not it any more."""


class TransactionalIdNotFound(ClientError): ...


class InvalidTransactionTimeout(ClientError): ...


# --- reading
class OffsetOutOfRange(ClientError): ...


class FencedEpoch(RetriableError): ...


class UnknownEpoch(RetriableError): ...


class FetchSessionNotFound(RetriableError): ...


class InvalidFetchSessionEpoch(RetriableError): ...


class OffsetNotAvailable(RetriableError): ...


# --- groups
class CoordinatorLoading(RetriableError): ...


class CoordinatorNotAvailable(RetriableError): ...


class NotCoordinator(RetriableError): ...


class InvalidGroupId(ClientError): ...


class GroupNotFound(ClientError): ...


class GroupNotEmpty(ClientError): ...


class GroupSubscribed(ClientError):
    """Offsets of a topic that the group still subscribes to can't be deleted."""


class GroupFull(ClientError): ...


class UnknownMember(ClientError): ...


class MemberIdRequired(ClientError):
    """The first join got an id: join again with it."""

    def __init__(self, message: str, *, member_id: str) -> None:
        super().__init__(message)
        self.member_id = member_id


class IllegalGeneration(ClientError): ...


class RebalanceInProgress(RetriableError): ...


class InconsistentGroupProtocol(ClientError): ...


class InvalidSessionTimeout(ClientError): ...


class FencedInstance(ClientError): ...


class UnreleasedInstance(ClientError): ...


class FencedMemberEpoch(ClientError): ...


class StaleMemberEpoch(ClientError): ...


class UnsupportedAssignor(ClientError): ...


class InvalidRegularExpression(ClientError): ...


class OffsetMetadataTooLarge(ClientError): ...


class UnstableOffsetCommit(RetriableError):
    """A transaction that is still open has an offset for this partition: it may be committed yet, or not."""


class NoSuchMember(ClientError):
    """A member of a group that a broker ran: it was closed, it expired, or it ended with its broker."""


class TooManyMembers(ClientError):
    """A broker runs as many members of groups as it may."""


# --- queues
class UnknownQueue(ClientError): ...


class QueueAlreadyExists(ClientError): ...


class QueueBeingDeleted(RetriableError):
    """The queue is not there any more, and what it kept is being taken away: its name is free in a moment."""


class WindowFull(RetriableError):
    """What passes the filter of a receiver lies behind more messages than a queue can remember to be left out."""


class GroupIsQueue(ClientError):
    """What a group's own verbs can't take away, because it belongs to a queue that was created under that name."""


class LeaseLost(ClientError):
    """The message is not leased under this receipt any more: its time was up, it was settled, or the queue moved."""


class KeyReused(ClientError):
    """The idempotency key belongs to another request."""


class ShareSessionNotFound(RetriableError): ...


class InvalidShareSessionEpoch(RetriableError): ...


class TooManyShareSessions(RetriableError): ...


class UnknownSink(ClientError): ...


class NotPending(ClientError):
    """No message waits under this id: it was fired or cancelled before, or there never was one."""


def error_named(name: str, message: str) -> RunnelError | None:
    """The error of this class, told by another broker; None if the name says nothing to us, or it is its own affair.

    What is fatal or damaged over there is neither here.
    """
    kind = _kinds().get(name)
    try:
        return None if kind is None else kind(message)
    except TypeError:
        return None  # it carries more than a message


@cache
def _kinds() -> dict[str, type[RunnelError]]:
    return {kind.__name__: kind for root in (ClientError, RetriableError) for kind in _below(root)}


def _below(root: type[RunnelError]) -> Iterator[type[RunnelError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _below(kind)
