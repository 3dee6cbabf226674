"""Which requests the Kafka protocol has, and in which versions. Written by tools/kafka_schema.py; do not edit."""

from enum import IntEnum
from typing import NamedTuple

NEVER = 32_768  # above every version: no version of the message is flexible


class ApiVersions(NamedTuple):
    """What the schema knows of one request and its response; a broker may serve less."""

    name: str
    min_version: int
    max_version: int
    flexible_since: int


class Api(IntEnum):
    """The key of each request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    RUNNEL_CALL = 10100


API: dict[int, ApiVersions] = {
    Api.PRODUCE: ApiVersions("Produce", 3, 13, 9),
    Api.FETCH: ApiVersions("Fetch", 4, 18, 12),
    Api.LIST_OFFSETS: ApiVersions("ListOffsets", 1, 11, 6),
    Api.METADATA: ApiVersions("Metadata", 0, 13, 9),
    Api.OFFSET_COMMIT: ApiVersions("OffsetCommit", 2, 10, 8),
    Api.OFFSET_FETCH: ApiVersions("OffsetFetch", 1, 10, 6),
    Api.FIND_COORDINATOR: ApiVersions("FindCoordinator", 0, 6, 3),
    Api.JOIN_GROUP: ApiVersions("JoinGroup", 0, 9, 6),
    Api.HEARTBEAT: ApiVersions("Heartbeat", 0, 4, 4),
    Api.LEAVE_GROUP: ApiVersions("LeaveGroup", 0, 5, 4),
    Api.SYNC_GROUP: ApiVersions("SyncGroup", 0, 5, 4),
    Api.DESCRIBE_GROUPS: ApiVersions("DescribeGroups", 0, 6, 5),
    Api.LIST_GROUPS: ApiVersions("ListGroups", 0, 5, 3),
    Api.SASL_HANDSHAKE: ApiVersions("SaslHandshake", 0, 1, NEVER),
    Api.API_VERSIONS: ApiVersions("ApiVersions", 0, 4, 3),
    Api.CREATE_TOPICS: ApiVersions("CreateTopics", 2, 7, 5),
    Api.DELETE_TOPICS: ApiVersions("DeleteTopics", 1, 6, 4),
    Api.DELETE_RECORDS: ApiVersions("DeleteRecords", 0, 2, 2),
    Api.INIT_PRODUCER_ID: ApiVersions("InitProducerId", 0, 6, 2),
    Api.OFFSET_FOR_LEADER_EPOCH: ApiVersions("OffsetForLeaderEpoch", 2, 4, 4),
    Api.ADD_PARTITIONS_TO_TXN: ApiVersions("AddPartitionsToTxn", 0, 5, 3),
    Api.ADD_OFFSETS_TO_TXN: ApiVersions("AddOffsetsToTxn", 0, 4, 3),
    Api.END_TXN: ApiVersions("EndTxn", 0, 5, 3),
    Api.WRITE_TXN_MARKERS: ApiVersions("WriteTxnMarkers", 1, 2, 1),
    Api.TXN_OFFSET_COMMIT: ApiVersions("TxnOffsetCommit", 0, 5, 3),
    Api.DESCRIBE_ACLS: ApiVersions("DescribeAcls", 1, 3, 2),
    Api.CREATE_ACLS: ApiVersions("CreateAcls", 1, 3, 2),
    Api.DELETE_ACLS: ApiVersions("DeleteAcls", 1, 3, 2),
    Api.DESCRIBE_CONFIGS: ApiVersions("DescribeConfigs", 1, 4, 4),
    Api.ALTER_CONFIGS: ApiVersions("AlterConfigs", 0, 2, 2),
    Api.ALTER_REPLICA_LOG_DIRS: ApiVersions("AlterReplicaLogDirs", 1, 2, 2),
    Api.DESCRIBE_LOG_DIRS: ApiVersions("DescribeLogDirs", 1, 5, 2),
    Api.SASL_AUTHENTICATE: ApiVersions("SaslAuthenticate", 0, 2, 2),
    Api.CREATE_PARTITIONS: ApiVersions("CreatePartitions", 0, 3, 2),
    Api.CREATE_DELEGATION_TOKEN: ApiVersions("CreateDelegationToken", 1, 3, 2),
    Api.RENEW_DELEGATION_TOKEN: ApiVersions("RenewDelegationToken", 1, 2, 2),
    Api.EXPIRE_DELEGATION_TOKEN: ApiVersions("ExpireDelegationToken", 1, 2, 2),
    Api.DESCRIBE_DELEGATION_TOKEN: ApiVersions("DescribeDelegationToken", 1, 3, 2),
    Api.DELETE_GROUPS: ApiVersions("DeleteGroups", 0, 2, 2),
    Api.ELECT_LEADERS: ApiVersions("ElectLeaders", 0, 2, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: ApiVersions("IncrementalAlterConfigs", 0, 1, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: ApiVersions("AlterPartitionReassignments", 0, 1, 0),
    Api.LIST_PARTITION_REASSIGNMENTS: ApiVersions("ListPartitionReassignments", 0, 0, 0),
    Api.OFFSET_DELETE: ApiVersions("OffsetDelete", 0, 0, NEVER),
    Api.DESCRIBE_CLIENT_QUOTAS: ApiVersions("DescribeClientQuotas", 0, 1, 1),
    Api.ALTER_CLIENT_QUOTAS: ApiVersions("AlterClientQuotas", 0, 1, 1),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiVersions("DescribeUserScramCredentials", 0, 0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: ApiVersions("AlterUserScramCredentials", 0, 0, 0),
    Api.VOTE: ApiVersions("Vote", 0, 2, 0),
    Api.BEGIN_QUORUM_EPOCH: ApiVersions("BeginQuorumEpoch", 0, 1, 1),
    Api.END_QUORUM_EPOCH: ApiVersions("EndQuorumEpoch", 0, 1, 1),
    Api.DESCRIBE_QUORUM: ApiVersions("DescribeQuorum", 0, 2, 0),
    Api.ALTER_PARTITION: ApiVersions("AlterPartition", 2, 3, 2),
    Api.UPDATE_FEATURES: ApiVersions("UpdateFeatures", 0, 2, 0),
    Api.ENVELOPE: ApiVersions("Envelope", 0, 0, 0),
    Api.FETCH_SNAPSHOT: ApiVersions("FetchSnapshot", 0, 1, 0),
    Api.DESCRIBE_CLUSTER: ApiVersions("DescribeCluster", 0, 2, 0),
    Api.DESCRIBE_PRODUCERS: ApiVersions("DescribeProducers", 0, 0, 0),
    Api.BROKER_REGISTRATION: ApiVersions("BrokerRegistration", 0, 4, 0),
    Api.BROKER_HEARTBEAT: ApiVersions("BrokerHeartbeat", 0, 2, 0),
    Api.UNREGISTER_BROKER: ApiVersions("UnregisterBroker", 0, 0, 0),
    Api.DESCRIBE_TRANSACTIONS: ApiVersions("DescribeTransactions", 0, 0, 0),
    Api.LIST_TRANSACTIONS: ApiVersions("ListTransactions", 0, 2, 0),
    Api.ALLOCATE_PRODUCER_IDS: ApiVersions("AllocateProducerIds", 0, 0, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: ApiVersions("ConsumerGroupHeartbeat", 0, 1, 0),
    Api.CONSUMER_GROUP_DESCRIBE: ApiVersions("ConsumerGroupDescribe", 0, 1, 0),
    Api.CONTROLLER_REGISTRATION: ApiVersions("ControllerRegistration", 0, 0, 0),
    Api.GET_TELEMETRY_SUBSCRIPTIONS: ApiVersions("GetTelemetrySubscriptions", 0, 0, 0),
    Api.PUSH_TELEMETRY: ApiVersions("PushTelemetry", 0, 0, 0),
    Api.ASSIGN_REPLICAS_TO_DIRS: ApiVersions("AssignReplicasToDirs", 0, 0, 0),
    Api.LIST_CONFIG_RESOURCES: ApiVersions("ListConfigResources", 0, 1, 0),
    Api.DESCRIBE_TOPIC_PARTITIONS: ApiVersions("DescribeTopicPartitions", 0, 0, 0),
    Api.SHARE_GROUP_HEARTBEAT: ApiVersions("ShareGroupHeartbeat", 1, 1, 1),
    Api.SHARE_GROUP_DESCRIBE: ApiVersions("ShareGroupDescribe", 1, 1, 1),
    Api.SHARE_FETCH: ApiVersions("ShareFetch", 1, 2, 1),
    Api.SHARE_ACKNOWLEDGE: ApiVersions("ShareAcknowledge", 1, 2, 1),
    Api.ADD_RAFT_VOTER: ApiVersions("AddRaftVoter", 0, 1, 0),
    Api.REMOVE_RAFT_VOTER: ApiVersions("RemoveRaftVoter", 0, 0, 0),
    Api.UPDATE_RAFT_VOTER: ApiVersions("UpdateRaftVoter", 0, 0, 0),
    Api.INITIALIZE_SHARE_GROUP_STATE: ApiVersions("InitializeShareGroupState", 0, 0, 0),
    Api.READ_SHARE_GROUP_STATE: ApiVersions("ReadShareGroupState", 0, 0, 0),
    Api.WRITE_SHARE_GROUP_STATE: ApiVersions("WriteShareGroupState", 0, 1, 0),
    Api.DELETE_SHARE_GROUP_STATE: ApiVersions("DeleteShareGroupState", 0, 0, 0),
    Api.READ_SHARE_GROUP_STATE_SUMMARY: ApiVersions("ReadShareGroupStateSummary", 0, 1, 0),
    Api.STREAMS_GROUP_HEARTBEAT: ApiVersions("StreamsGroupHeartbeat", 0, 0, 0),
    Api.STREAMS_GROUP_DESCRIBE: ApiVersions("StreamsGroupDescribe", 0, 0, 0),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: ApiVersions("DescribeShareGroupOffsets", 0, 1, 0),
    Api.ALTER_SHARE_GROUP_OFFSETS: ApiVersions("AlterShareGroupOffsets", 0, 0, 0),
    Api.DELETE_SHARE_GROUP_OFFSETS: ApiVersions("DeleteShareGroupOffsets", 0, 0, 0),
    Api.RUNNEL_CALL: ApiVersions("RunnelCall", 0, 0, 0),
}
