"""What the Kafka door answers to each error: one table, no codes anywhere else."""

from runnel.cluster.store import Conflict, OutcomeUnknown, StoreUnavailable
from runnel.model import errors as e
from runnel.wire.kafka.error_codes import ErrorCode

CODES: dict[type[e.RunnelError], ErrorCode] = {
    e.ClientError: ErrorCode.INVALID_REQUEST,
    e.RetriableError: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    e.Corruption: ErrorCode.CORRUPT_MESSAGE,
    e.Fatal: ErrorCode.KAFKA_STORAGE_ERROR,
    # requests and names
    e.InvalidRequest: ErrorCode.INVALID_REQUEST,
    e.UnsupportedVersion: ErrorCode.UNSUPPORTED_VERSION,
    e.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    e.InvalidConfig: ErrorCode.INVALID_CONFIG,
    e.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    e.InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    e.InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    e.TopicAlreadyExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    e.PolicyViolation: ErrorCode.POLICY_VIOLATION,
    e.TopicGone: ErrorCode.UNKNOWN_TOPIC_ID,
    e.ViewSourceGone: ErrorCode.INVALID_TOPIC_EXCEPTION,
    e.ReadOnlyTopic: ErrorCode.INVALID_TOPIC_EXCEPTION,  # no client tries again on it, and all tell it
    e.InvalidFilter: ErrorCode.INVALID_CONFIG,  # settings are the one way by which filters come through this door
    e.UnsupportedByRunnel: ErrorCode.UNSUPPORTED_VERSION,
    e.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    e.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    e.InconsistentTopicId: ErrorCode.INCONSISTENT_TOPIC_ID,
    # appending
    e.CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    e.BadRecords: ErrorCode.INVALID_RECORD,
    e.InvalidRecord: ErrorCode.INVALID_RECORD,
    e.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    e.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    e.UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    e.UnsupportedFormat: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    e.InvalidAcks: ErrorCode.INVALID_REQUIRED_ACKS,
    e.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    e.LeaderNotAvailable: ErrorCode.LEADER_NOT_AVAILABLE,
    e.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    e.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    e.NotEnoughReplicasAfterAppend: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    e.RequestTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    e.TooBusy: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    e.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    e.DuplicateSequence: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    e.UnknownProducer: ErrorCode.UNKNOWN_PRODUCER_ID,
    e.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    e.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    e.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    e.InvalidProducerMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    # transactions
    e.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
    e.TransactionAbortable: ErrorCode.TRANSACTION_ABORTABLE,
    e.OperationNotAttempted: ErrorCode.OPERATION_NOT_ATTEMPTED,
    e.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    e.TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    e.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    # reading
    e.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    e.FencedEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    e.UnknownEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    e.FetchSessionNotFound: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    e.InvalidFetchSessionEpoch: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    e.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    # groups
    e.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    e.CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    e.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    e.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    e.GroupNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    e.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
    e.GroupSubscribed: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    e.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
    e.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
    e.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    e.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    e.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    e.InconsistentGroupProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    e.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    e.FencedInstance: ErrorCode.FENCED_INSTANCE_ID,
    e.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
    e.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    e.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    e.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    e.InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    e.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    e.UnstableOffsetCommit: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    e.NoSuchMember: ErrorCode.UNKNOWN_MEMBER_ID,
    e.TooManyMembers: ErrorCode.GROUP_MAX_SIZE_REACHED,
    # queues
    e.UnknownSink: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    e.UnknownQueue: ErrorCode.GROUP_ID_NOT_FOUND,
    e.QueueAlreadyExists: ErrorCode.DUPLICATE_RESOURCE,
    e.QueueBeingDeleted: ErrorCode.LEADER_NOT_AVAILABLE,
    e.WindowFull: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    e.GroupIsQueue: ErrorCode.POLICY_VIOLATION,
    e.LeaseLost: ErrorCode.INVALID_RECORD_STATE,
    e.KeyReused: ErrorCode.INVALID_REQUEST,
    e.ShareSessionNotFound: ErrorCode.SHARE_SESSION_NOT_FOUND,
    e.InvalidShareSessionEpoch: ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    e.TooManyShareSessions: ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    e.NotPending: ErrorCode.RESOURCE_NOT_FOUND,
    # coordination
    e.NotController: ErrorCode.NOT_CONTROLLER,
    e.NoReassignmentInProgress: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    e.ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
    e.PreferredLeaderNotAvailable: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    e.EligibleLeadersNotAvailable: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    e.BrokerNotRegistered: ErrorCode.BROKER_ID_NOT_REGISTERED,
    e.StaleBrokerEpoch: ErrorCode.STALE_BROKER_EPOCH,
    e.StalePartitionEpoch: ErrorCode.INVALID_UPDATE_VERSION,
    e.IneligibleReplica: ErrorCode.INELIGIBLE_REPLICA,
    Conflict: ErrorCode.REQUEST_TIMED_OUT,
    OutcomeUnknown: ErrorCode.REQUEST_TIMED_OUT,
    StoreUnavailable: ErrorCode.REQUEST_TIMED_OUT,
}


def code_of(error: e.RunnelError | None) -> int:
    """The code of an error, or of the nearest kind of error that the table knows; 0 for none."""
    if error is None:
        return 0
    e.as_value(error)  # it is answered: nobody needs to know any more where it was raised
    return next(int(CODES[kind]) for kind in type(error).__mro__ if kind in CODES)


def transaction_code(error: e.RunnelError | None, *, knows_fencing: bool, knows_abortable: bool = True) -> int:
    """The code of what a transaction's coordinator said, for clients of any age."""
    if isinstance(error, e.ProducerFenced) and not knows_fencing:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    if isinstance(error, e.TransactionAbortable) and not knows_abortable:
        return int(ErrorCode.INVALID_TXN_STATE)
    return code_of(error)


def text_of(error: e.RunnelError | None) -> str | None:
    return None if error is None else str(error)
