"""What the HTTP door answers to each error: one table, no statuses anywhere else.

Rule 1: every error becomes application/problem+json (RFC 9457) with a code, a sentence and what to do next.
Rule 2: a class without a row of its own is answered as the nearest class above it; each has one (see its test).
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

from runnel.client import errors as c
from runnel.cluster.store import Conflict, OutcomeUnknown, StoreDamaged, StoreUnavailable
from runnel.model import errors as e
from runnel.net.posting import BadAddress, NoAnswer
from runnel.wire.kafka.codec import Unsupported
from runnel.wire.kafka.primitives import Malformed

PROBLEM_JSON: Final = b"application/problem+json"
RETRY_AFTER_S: Final = 1


# --- what goes wrong with requests before any operation sees them
class NoSuchPath(e.ClientError): ...


class MethodNotAllowed(e.ClientError):
    """There is something at this address, but not with this method."""

    def __init__(self, message: str, *, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.allowed = allowed


class MalformedBody(e.ClientError):
    """The body is not JSON."""


class InvalidInput(e.ClientError):
    """A parameter or a field of the body is missing, unknown, or of another kind than it has to be."""


class UnexpectedBody(e.ClientError):
    """The request has a body where none is taken."""


class BodyTooLarge(e.ClientError): ...


class CrossOrigin(e.ClientError):
    """A page of another site asks, in the name of somebody who merely looks at it."""


class ClientHeaderRequired(e.ClientError):
    """A GET that changes something does not show that no page of another site sent it."""


class MalformedHost(e.ClientError):
    """The request has no header Host, several, or one that names no host."""


class WrongHost(e.ClientError):
    """The door is called by a name that is not its own, as by a page whose name was made to point here."""


class Stopping(e.RetriableError):
    """The broker is about to stop, or has not begun."""


class NotServing(e.RetriableError):
    """The broker can't read a part of its state."""


class PeerGone(e.RetriableError):
    """Nobody is there to be answered."""


class Row(NamedTuple):
    status: HTTPStatus
    next: str


S = HTTPStatus
_AGAIN: Final = "try again in a moment"
_FIX: Final = "correct the request, then send it again"
_KAFKA: Final = "this concerns clients of the Kafka protocol: read what it says"
_MEMBER: Final = "join the group again, and go on from what was committed"

TABLE: dict[type[e.RunnelError], Row] = {
    e.RunnelError: Row(S.INTERNAL_SERVER_ERROR, "look into the broker's log"),
    e.ClientError: Row(S.BAD_REQUEST, _FIX),
    e.RetriableError: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.Corruption: Row(S.INTERNAL_SERVER_ERROR, "read from another replica; the broker's log names the place"),
    e.Fatal: Row(S.INTERNAL_SERVER_ERROR, "the broker ends: ask another one"),
    e.PlaceLost: Row(S.SERVICE_UNAVAILABLE, "ask another broker, or this one again soon"),
    e.DataInUse: Row(S.INTERNAL_SERVER_ERROR, "give each broker a data directory of its own"),
    e.DataUnusable: Row(S.INTERNAL_SERVER_ERROR, "give the broker a data directory that it may use"),
    StoreDamaged: Row(S.INTERNAL_SERVER_ERROR, "restore the metadata from a copy"),
    # requests
    NoSuchPath: Row(S.NOT_FOUND, "see /docs for the addresses that there are"),
    MethodNotAllowed: Row(S.METHOD_NOT_ALLOWED, "use a method that the header Allow names"),
    MalformedBody: Row(S.BAD_REQUEST, "send JSON in UTF-8"),
    InvalidInput: Row(S.UNPROCESSABLE_ENTITY, "see /docs for what is expected"),
    UnexpectedBody: Row(S.UNPROCESSABLE_ENTITY, "send it without a body; see /docs for its parameters"),
    BodyTooLarge: Row(S.REQUEST_ENTITY_TOO_LARGE, "send less at once"),
    CrossOrigin: Row(S.FORBIDDEN, "call from a page of this address, or add the origin to http-origins"),
    ClientHeaderRequired: Row(S.FORBIDDEN, "add the header Runnel-Client: curl -H 'Runnel-Client: curl' ..."),
    MalformedHost: Row(S.BAD_REQUEST, "send one header Host, as HOST or HOST:PORT"),
    WrongHost: Row(S.MISDIRECTED_REQUEST, "call it by localhost or an address, or add the name to http-hosts"),
    e.TooBusy: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    Stopping: Row(S.SERVICE_UNAVAILABLE, "ask another broker, or this one again soon"),
    NotServing: Row(S.SERVICE_UNAVAILABLE, "look into the broker's log; it tries again by itself"),
    PeerGone: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.InvalidRequest: Row(S.BAD_REQUEST, _FIX),
    e.UnsupportedVersion: Row(S.BAD_REQUEST, "use brokers of one version"),
    Unsupported: Row(S.BAD_REQUEST, "use brokers of one version"),
    Malformed: Row(S.BAD_GATEWAY, "use brokers of one version"),
    # names and settings
    e.InvalidTopicName: Row(S.UNPROCESSABLE_ENTITY, "choose another name"),
    e.InvalidConfig: Row(S.UNPROCESSABLE_ENTITY, "choose a value that is allowed"),
    e.InvalidPartitions: Row(S.UNPROCESSABLE_ENTITY, "use a number that is allowed"),
    e.InvalidReplicationFactor: Row(S.UNPROCESSABLE_ENTITY, "choose as many replicas as there are brokers, or fewer"),
    e.InvalidReplicaAssignment: Row(S.UNPROCESSABLE_ENTITY, "name brokers that there are"),
    e.TopicAlreadyExists: Row(S.CONFLICT, "use the topic that there is, or another name"),
    e.TopicGone: Row(S.GONE, "follow another topic, or the one that has its name now"),
    e.ViewSourceGone: Row(S.GONE, "delete the view, and make one of another topic"),
    e.ReadOnlyTopic: Row(S.CONFLICT, "use the topic that it is a view of"),
    e.PolicyViolation: Row(S.CONFLICT, "keep to the rule that the message names, or change it"),
    e.InvalidFilter: Row(S.UNPROCESSABLE_ENTITY, "correct the filter where the message points to"),
    e.UnsupportedByRunnel: Row(S.NOT_IMPLEMENTED, "do without it"),
    e.UnknownTopic: Row(S.NOT_FOUND, "check the name and the partition, or create the topic"),
    e.UnknownTopicId: Row(S.NOT_FOUND, "look the topic up again: it may have been deleted"),
    e.InconsistentTopicId: Row(S.NOT_FOUND, "look the topic up again: it may have been created anew"),
    c.TopicMissing: Row(S.NOT_FOUND, "check the name, or create the topic"),
    # appending
    e.CorruptBatch: Row(S.BAD_REQUEST, "send it again"),
    e.BadRecords: Row(S.UNPROCESSABLE_ENTITY, _FIX),
    e.InvalidRecord: Row(S.UNPROCESSABLE_ENTITY, _FIX),
    e.InvalidTimestamp: Row(S.UNPROCESSABLE_ENTITY, "leave the timestamp out, or correct it"),
    e.BatchTooLarge: Row(S.REQUEST_ENTITY_TOO_LARGE, "send smaller messages, or raise max.message.bytes of the topic"),
    e.UnsupportedCompression: Row(S.UNPROCESSABLE_ENTITY, _FIX),
    e.UnsupportedFormat: Row(S.UNPROCESSABLE_ENTITY, _FIX),
    e.InvalidAcks: Row(S.UNPROCESSABLE_ENTITY, "use all, 1 or 0"),
    e.NotLeader: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.LeaderNotAvailable: Row(S.SERVICE_UNAVAILABLE, "try again when a leader is elected"),
    e.StorageFailed: Row(S.SERVICE_UNAVAILABLE, "look into the broker's log, then try again"),
    e.NotEnoughReplicas: Row(S.SERVICE_UNAVAILABLE, "try again when more replicas are in sync"),
    e.NotEnoughReplicasAfterAppend: Row(S.SERVICE_UNAVAILABLE, "it may be kept: send it again with the same id"),
    e.RequestTimedOut: Row(S.GATEWAY_TIMEOUT, "it may have been done: look, then try again"),
    e.OutOfOrderSequence: Row(S.CONFLICT, _KAFKA),
    e.DuplicateSequence: Row(S.CONFLICT, _KAFKA),
    e.UnknownProducer: Row(S.CONFLICT, _KAFKA),
    e.InvalidProducerEpoch: Row(S.CONFLICT, _KAFKA),
    e.ProducerFenced: Row(S.CONFLICT, _KAFKA),
    e.InvalidTransactionState: Row(S.CONFLICT, _KAFKA),
    e.InvalidProducerMapping: Row(S.CONFLICT, _KAFKA),
    e.ConcurrentTransactions: Row(S.CONFLICT, _AGAIN),
    e.TransactionAbortable: Row(S.CONFLICT, _KAFKA),
    e.OperationNotAttempted: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.TransactionCoordinatorFenced: Row(S.CONFLICT, _KAFKA),
    e.TransactionalIdNotFound: Row(S.NOT_FOUND, "check the id"),
    e.InvalidTransactionTimeout: Row(S.UNPROCESSABLE_ENTITY, _KAFKA),
    # reading
    e.OffsetOutOfRange: Row(S.REQUESTED_RANGE_NOT_SATISFIABLE, "read from an offset that is kept, or from 'start'"),
    e.FencedEpoch: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.UnknownEpoch: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.FetchSessionNotFound: Row(S.CONFLICT, _KAFKA),
    e.InvalidFetchSessionEpoch: Row(S.CONFLICT, _KAFKA),
    e.ShareSessionNotFound: Row(S.CONFLICT, _KAFKA),
    e.InvalidShareSessionEpoch: Row(S.CONFLICT, _KAFKA),
    e.TooManyShareSessions: Row(S.SERVICE_UNAVAILABLE, _KAFKA),
    e.OffsetNotAvailable: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    # groups
    e.CoordinatorLoading: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.CoordinatorNotAvailable: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.NotCoordinator: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.InvalidGroupId: Row(S.UNPROCESSABLE_ENTITY, "choose another name"),
    e.GroupNotFound: Row(S.NOT_FOUND, "check the name of the group"),
    e.GroupNotEmpty: Row(S.CONFLICT, "end its members first"),
    e.GroupSubscribed: Row(S.CONFLICT, "end the members that subscribe to the topic first"),
    e.GroupFull: Row(S.CONFLICT, "end some members first"),
    e.UnknownMember: Row(S.CONFLICT, _MEMBER),
    e.MemberIdRequired: Row(S.CONFLICT, _KAFKA),
    e.IllegalGeneration: Row(S.CONFLICT, _MEMBER),
    e.RebalanceInProgress: Row(S.CONFLICT, _AGAIN),
    e.InconsistentGroupProtocol: Row(S.CONFLICT, "use another group: the members of this one speak differently"),
    e.InvalidSessionTimeout: Row(S.UNPROCESSABLE_ENTITY, "choose a time that is allowed"),
    e.FencedInstance: Row(S.CONFLICT, _MEMBER),
    e.UnreleasedInstance: Row(S.CONFLICT, "wait until the other one is gone"),
    e.FencedMemberEpoch: Row(S.CONFLICT, _MEMBER),
    e.StaleMemberEpoch: Row(S.CONFLICT, _MEMBER),
    e.UnsupportedAssignor: Row(S.UNPROCESSABLE_ENTITY, "use uniform or range"),
    e.InvalidRegularExpression: Row(S.UNPROCESSABLE_ENTITY, "correct the expression"),
    e.OffsetMetadataTooLarge: Row(S.REQUEST_ENTITY_TOO_LARGE, "send less metadata with the commit"),
    e.UnstableOffsetCommit: Row(S.CONFLICT, _AGAIN),
    e.NoSuchMember: Row(S.NOT_FOUND, "make a member again: it goes on from what was committed"),
    e.TooManyMembers: Row(S.TOO_MANY_REQUESTS, "close members that nobody uses, or ask another broker"),
    # queues
    e.UnknownSink: Row(S.NOT_FOUND, "check the name: 'runnel sink ls' shows those that there are"),
    e.UnknownQueue: Row(S.NOT_FOUND, "check the name, or create the queue"),
    e.QueueAlreadyExists: Row(S.CONFLICT, "use the queue that there is, or another name"),
    e.QueueBeingDeleted: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.WindowFull: Row(
        S.SERVICE_UNAVAILABLE, "receive without a filter too, or give each kind of message a queue with a filter"
    ),
    e.GroupIsQueue: Row(S.CONFLICT, "delete the queue of that name, with DELETE /v1/queues/..."),
    e.KeyReused: Row(S.UNPROCESSABLE_ENTITY, "send it under a key of its own"),
    e.LeaseLost: Row(S.CONFLICT, "receive again: the message may be with another consumer"),
    e.NotPending: Row(S.NOT_FOUND, "it is too late, or the id is another one"),
    # the cluster
    e.NotController: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    e.BrokerNotRegistered: Row(S.NOT_FOUND, "see GET /v1/cluster for the brokers of the cluster"),
    e.BrokerIdInUse: Row(S.CONFLICT, "give each broker a number of its own"),
    e.BrokerNotRegistered: Row(S.NOT_FOUND, "name a broker of the cluster: 'runnel cluster brokers' lists them"),
    e.StaleBrokerEpoch: Row(S.CONFLICT, _AGAIN),
    e.StalePartitionEpoch: Row(S.CONFLICT, _AGAIN),
    e.IneligibleReplica: Row(S.CONFLICT, _AGAIN),
    e.NoReassignmentInProgress: Row(S.NOT_FOUND, "nothing moves: there is nothing to do"),
    e.ElectionNotNeeded: Row(S.CONFLICT, "there is nothing to do"),
    e.PreferredLeaderNotAvailable: Row(S.SERVICE_UNAVAILABLE, "start the broker that is to lead"),
    e.EligibleLeadersNotAvailable: Row(S.SERVICE_UNAVAILABLE, "start a broker that holds the partition"),
    Conflict: Row(S.CONFLICT, _AGAIN),
    OutcomeUnknown: Row(S.GATEWAY_TIMEOUT, "it may have been done: look, then try again"),
    StoreUnavailable: Row(S.SERVICE_UNAVAILABLE, "wait until ZooKeeper answers again"),
    # other brokers
    BadAddress: Row(S.UNPROCESSABLE_ENTITY, "use another URL"),
    NoAnswer: Row(S.BAD_GATEWAY, _AGAIN),
    c.BrokerUnreachable: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    c.NotKafka: Row(S.BAD_GATEWAY, "check the addresses of the brokers"),
    c.Refused: Row(S.BAD_GATEWAY, "read what the other broker said"),
    c.BufferFull: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
    c.OutcomeUnknown: Row(S.GATEWAY_TIMEOUT, "it may have been done: look, then try again"),
    c.Closed: Row(S.SERVICE_UNAVAILABLE, _AGAIN),
}


class Problem(msgspec.Struct, kw_only=True):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    next: str


def code_of(kind: type[e.RunnelError]) -> str:
    """The name of an error outside: UnknownTopic is `unknown-topic`."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", kind.__name__).lower()


def title_of(kind: type[e.RunnelError]) -> str:
    return code_of(kind).replace("-", " ").capitalize()


def row_of(kind: type[e.RunnelError]) -> Row:
    return next(TABLE[above] for above in kind.__mro__ if above in TABLE)


def problem_of(error: e.RunnelError) -> Problem:
    kind = type(e.as_value(error))  # it is answered: nobody needs to know any more where it was raised
    code, row = code_of(kind), row_of(kind)
    return Problem(
        type=f"/docs#{code}", title=title_of(kind), status=int(row.status), detail=str(error), code=code, next=row.next
    )


def headers_of(error: e.RunnelError, status: int) -> list[tuple[bytes, bytes]]:
    """What a client needs to know besides."""
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", ", ".join(error.allowed).encode())]
    if status in (S.SERVICE_UNAVAILABLE, S.TOO_MANY_REQUESTS):
        return [(b"retry-after", b"%d" % RETRY_AFTER_S)]
    return []
