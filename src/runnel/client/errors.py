"""What a broker's error code means to a client: what is raised, whether trying again can help, and what to do.

One table. Nothing else in the client decides whether a code is worth another try.
"""

from enum import Flag, auto
from typing import NamedTuple

from runnel.model import errors as e
from runnel.wire.kafka.error_codes import ErrorCode


class BrokerUnreachable(e.RetriableError):
    """No connection to the broker, or it broke before the answer came."""


class NotKafka(e.ClientError):
    """Something listens there, but it does not speak the Kafka protocol."""


class Refused(e.ClientError):
    """The broker refused with a code that has no class of its own."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class TopicMissing(e.ClientError):
    """The cluster says that there is no such topic. (UnknownTopic is one broker's word, and may pass.)"""


class BufferFull(e.RetriableError):
    """The producer holds as many unsent bytes as it may, and nothing left in time."""


class OutcomeUnknown(e.RetriableError):
    """A commit was asked for, and the answer did not come: it may have been carried out. Ask again."""


class Closed(e.ClientError):
    """The client was closed before this was done."""


class Remedy(Flag):
    """What to do before trying again. No flag: trying again will not help."""

    NONE = 0
    RETRY = auto()
    REFRESH = auto()  # ask who leads now
    FIND = auto()  # ask who coordinates now


_LEADER = Remedy.RETRY | Remedy.REFRESH
_COORDINATOR = Remedy.RETRY | Remedy.FIND


class Meaning(NamedTuple):
    error: type[e.RunnelError]
    remedy: Remedy
    advice: str


_AGAIN = "try again"
_REJOIN = "join the group again"
_RIGHTS = "ask who runs the cluster for the permission"

MEANINGS: dict[int, Meaning] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: Meaning(
        e.OffsetOutOfRange, Remedy.NONE, "read from 'start', 'end', or an offset that is still kept"
    ),
    ErrorCode.CORRUPT_MESSAGE: Meaning(e.CorruptBatch, Remedy.RETRY, "send it again"),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Meaning(
        e.UnknownTopic, _LEADER, "check the name and the partition number, or create the topic"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: Meaning(e.LeaderNotAvailable, _LEADER, "wait until a leader is elected"),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Meaning(e.NotLeader, _LEADER, _AGAIN),
    ErrorCode.REQUEST_TIMED_OUT: Meaning(e.RequestTimedOut, Remedy.RETRY, "try again, or give it more time"),
    ErrorCode.REPLICA_NOT_AVAILABLE: Meaning(e.LeaderNotAvailable, _LEADER, _AGAIN),
    ErrorCode.MESSAGE_TOO_LARGE: Meaning(
        e.BatchTooLarge, Remedy.NONE, "send less at once, or raise the topic's max.message.bytes"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: Meaning(e.OffsetMetadataTooLarge, Remedy.NONE, "shorten the metadata"),
    ErrorCode.NETWORK_EXCEPTION: Meaning(BrokerUnreachable, _LEADER, _AGAIN),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Meaning(e.CoordinatorLoading, Remedy.RETRY, "wait until it has loaded"),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Meaning(e.CoordinatorNotAvailable, _COORDINATOR, _AGAIN),
    ErrorCode.NOT_COORDINATOR: Meaning(e.NotCoordinator, _COORDINATOR, _AGAIN),
    ErrorCode.INVALID_TOPIC_EXCEPTION: Meaning(
        e.InvalidTopicName,
        Remedy.NONE,
        "use 1 to 249 letters, digits, '.', '_' and '-'; a view can only be read, and only while its source is there",
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: Meaning(e.BatchTooLarge, Remedy.NONE, "send less at once"),
    ErrorCode.NOT_ENOUGH_REPLICAS: Meaning(e.NotEnoughReplicas, Remedy.RETRY, "wait until more replicas are in sync"),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Meaning(
        e.NotEnoughReplicasAfterAppend, Remedy.RETRY, "wait until more replicas are in sync"
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: Meaning(e.InvalidAcks, Remedy.NONE, "use acks 0, 1 or all"),
    ErrorCode.ILLEGAL_GENERATION: Meaning(e.IllegalGeneration, Remedy.NONE, _REJOIN),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: Meaning(
        e.InconsistentGroupProtocol, Remedy.NONE, "use an assignor that all members of the group know"
    ),
    ErrorCode.INVALID_GROUP_ID: Meaning(e.InvalidGroupId, Remedy.NONE, "use a group name that is not empty"),
    ErrorCode.UNKNOWN_MEMBER_ID: Meaning(e.UnknownMember, Remedy.NONE, _REJOIN),
    ErrorCode.INVALID_SESSION_TIMEOUT: Meaning(
        e.InvalidSessionTimeout, Remedy.NONE, "use a session timeout between the broker's minimum and maximum"
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: Meaning(e.RebalanceInProgress, Remedy.NONE, _REJOIN),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Meaning(Refused, Remedy.NONE, _RIGHTS),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Meaning(Refused, Remedy.NONE, _RIGHTS),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Meaning(Refused, Remedy.NONE, _RIGHTS),
    ErrorCode.INVALID_TIMESTAMP: Meaning(
        e.InvalidTimestamp, Remedy.NONE, "use a time near the broker's, or widen message.timestamp.*.max.ms"
    ),
    ErrorCode.UNSUPPORTED_VERSION: Meaning(e.UnsupportedVersion, Remedy.NONE, "use a newer broker"),
    ErrorCode.TOPIC_ALREADY_EXISTS: Meaning(e.TopicAlreadyExists, Remedy.NONE, "choose another name, or use it"),
    ErrorCode.INVALID_PARTITIONS: Meaning(e.InvalidPartitions, Remedy.NONE, "choose an allowed number of partitions"),
    ErrorCode.INVALID_REPLICATION_FACTOR: Meaning(
        e.InvalidReplicationFactor, Remedy.NONE, "choose at most as many replicas as there are brokers"
    ),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: Meaning(e.InvalidReplicaAssignment, Remedy.NONE, "name brokers that exist"),
    ErrorCode.INVALID_CONFIG: Meaning(e.InvalidConfig, Remedy.NONE, "correct the setting"),
    ErrorCode.NOT_CONTROLLER: Meaning(e.NotLeader, _LEADER, _AGAIN),
    ErrorCode.INVALID_REQUEST: Meaning(e.InvalidRequest, Remedy.NONE, "correct the request"),
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Meaning(e.UnsupportedFormat, Remedy.NONE, "use record format 2"),
    ErrorCode.POLICY_VIOLATION: Meaning(e.PolicyViolation, Remedy.NONE, "follow the broker's policy"),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Meaning(
        e.OutOfOrderSequence, Remedy.NONE, "messages before this one were lost: check them, then send again"
    ),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Meaning(e.DuplicateSequence, Remedy.NONE, "nothing: it was appended before"),
    ErrorCode.INVALID_PRODUCER_EPOCH: Meaning(e.InvalidProducerEpoch, Remedy.NONE, "start the producer anew"),
    ErrorCode.INVALID_TXN_STATE: Meaning(e.InvalidTransactionState, Remedy.NONE, "start a new transaction"),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Meaning(e.InvalidProducerMapping, Remedy.NONE, "start the producer anew"),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: Meaning(
        e.InvalidTransactionTimeout, Remedy.NONE, "use a timeout up to the broker's transaction.max.timeout.ms"
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: Meaning(
        e.ConcurrentTransactions, Remedy.RETRY, "wait until the transaction before it has ended"
    ),
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Meaning(
        e.TransactionCoordinatorFenced, Remedy.NONE, "nothing: a newer coordinator has taken over"
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: Meaning(e.StorageFailed, _LEADER, "look at the broker's disk"),
    ErrorCode.UNKNOWN_PRODUCER_ID: Meaning(e.UnknownProducer, Remedy.NONE, "start the producer anew"),
    ErrorCode.NON_EMPTY_GROUP: Meaning(e.GroupNotEmpty, Remedy.NONE, "stop the group's members first"),
    ErrorCode.GROUP_ID_NOT_FOUND: Meaning(e.GroupNotFound, Remedy.NONE, "check the group's name"),
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: Meaning(e.FetchSessionNotFound, Remedy.RETRY, _AGAIN),
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: Meaning(e.InvalidFetchSessionEpoch, Remedy.RETRY, _AGAIN),
    ErrorCode.FENCED_LEADER_EPOCH: Meaning(e.FencedEpoch, _LEADER, _AGAIN),
    ErrorCode.UNKNOWN_LEADER_EPOCH: Meaning(e.UnknownEpoch, _LEADER, _AGAIN),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: Meaning(e.UnsupportedCompression, Remedy.NONE, "use another compression"),
    ErrorCode.OFFSET_NOT_AVAILABLE: Meaning(e.OffsetNotAvailable, _LEADER, _AGAIN),
    ErrorCode.BROKER_ID_NOT_REGISTERED: Meaning(
        e.BrokerNotRegistered, Remedy.NONE, "see which brokers there are: 'runnel cluster brokers'"
    ),
    ErrorCode.STALE_BROKER_EPOCH: Meaning(e.StaleBrokerEpoch, Remedy.NONE, "start the broker again"),
    ErrorCode.INVALID_UPDATE_VERSION: Meaning(e.StalePartitionEpoch, _LEADER, _AGAIN),
    ErrorCode.INELIGIBLE_REPLICA: Meaning(e.IneligibleReplica, _LEADER, _AGAIN),
    ErrorCode.MEMBER_ID_REQUIRED: Meaning(Refused, Remedy.NONE, _REJOIN),
    ErrorCode.GROUP_MAX_SIZE_REACHED: Meaning(e.GroupFull, Remedy.NONE, "use fewer members, or another group"),
    ErrorCode.FENCED_INSTANCE_ID: Meaning(
        e.FencedInstance, Remedy.NONE, "stop the other member that has this instance id"
    ),
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: Meaning(
        e.PreferredLeaderNotAvailable, _LEADER, "wait until the first replica is in sync"
    ),
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: Meaning(
        e.EligibleLeadersNotAvailable, _LEADER, "start a broker that holds the partition"
    ),
    ErrorCode.ELECTION_NOT_NEEDED: Meaning(e.ElectionNotNeeded, Remedy.NONE, "there is nothing to do"),
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: Meaning(
        e.NoReassignmentInProgress, Remedy.NONE, "there is nothing to cancel"
    ),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: Meaning(e.GroupSubscribed, Remedy.NONE, "stop the group's members first"),
    ErrorCode.INVALID_RECORD: Meaning(e.InvalidRecord, Remedy.NONE, "correct the record (compacted topics need a key)"),
    ErrorCode.UNSTABLE_OFFSET_COMMIT: Meaning(e.UnstableOffsetCommit, Remedy.RETRY, _AGAIN),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Meaning(e.RequestTimedOut, Remedy.RETRY, "try again later"),
    ErrorCode.PRODUCER_FENCED: Meaning(e.ProducerFenced, Remedy.NONE, "another producer took over: start anew"),
    ErrorCode.UNKNOWN_TOPIC_ID: Meaning(e.UnknownTopicId, _LEADER, "the topic was deleted or made anew: look it up"),
    ErrorCode.INCONSISTENT_TOPIC_ID: Meaning(e.InconsistentTopicId, _LEADER, _AGAIN),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: Meaning(e.TransactionalIdNotFound, Remedy.NONE, "check the transactional id"),
    ErrorCode.TRANSACTION_ABORTABLE: Meaning(
        e.TransactionAbortable, Remedy.NONE, "abort the transaction, then begin another"
    ),
    ErrorCode.FENCED_MEMBER_EPOCH: Meaning(e.FencedMemberEpoch, Remedy.NONE, _REJOIN),
    ErrorCode.UNRELEASED_INSTANCE_ID: Meaning(
        e.UnreleasedInstance, Remedy.NONE, "stop the other member that has this instance id"
    ),
    ErrorCode.UNSUPPORTED_ASSIGNOR: Meaning(e.UnsupportedAssignor, Remedy.NONE, "use 'uniform' or 'range'"),
    ErrorCode.STALE_MEMBER_EPOCH: Meaning(e.StaleMemberEpoch, Remedy.NONE, _REJOIN),
    ErrorCode.INVALID_REGULAR_EXPRESSION: Meaning(e.InvalidRegularExpression, Remedy.NONE, "correct the pattern"),
}

_OTHER = Meaning(Refused, Remedy.NONE, "look at the broker's log")


def name_of(code: int) -> str:
    """The protocol's name of a code, also of one newer than this client."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def remedy_of(code: int) -> Remedy:
    return MEANINGS.get(code, _OTHER).remedy


def error_of(code: int, *, action: str, broker: str, message: str | None = None) -> e.RunnelError:
    """The error for one code, in the broker's own words if it has some, else with our advice."""
    meaning = MEANINGS.get(code, _OTHER)
    said = f": {message.rstrip('.')}" if message else f"; {meaning.advice}"
    text = f"can't {action}: broker {broker} answered {name_of(code)}{said}"
    if meaning.error is Refused:
        return Refused(text, code=code)
    return meaning.error(text)


def check(code: int, *, action: str, broker: str, message: str | None = None) -> None:
    """Raise unless the code says success."""
    if code:
        raise error_of(code, action=action, broker=broker, message=message)
