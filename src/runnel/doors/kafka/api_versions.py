# ApiVersions (key 18), v0-v4.  v3 flexible body, but its response header stays v0; an unknown version is answered in v0
"""ApiVersions: what this door understands."""

from runnel.doors.kafka.call import Call
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

# As real brokers advertise them, less what Runnel does not have. The minimums matter too: with Produce from 3 on, older
# librdkafka silently sends uncompressed; v0-v2 are refused all the same.
SERVED: dict[Api, tuple[int, int]] = {
    Api.PRODUCE: (0, 13),
    Api.FETCH: (4, 18),
    Api.LIST_OFFSETS: (1, 11),
    Api.METADATA: (0, 13),
    Api.OFFSET_COMMIT: (2, 10),
    Api.OFFSET_FETCH: (1, 10),
    Api.FIND_COORDINATOR: (0, 6),
    Api.JOIN_GROUP: (0, 9),
    Api.HEARTBEAT: (0, 4),
    Api.LEAVE_GROUP: (0, 5),
    Api.SYNC_GROUP: (0, 5),
    Api.DESCRIBE_GROUPS: (0, 6),
    Api.LIST_GROUPS: (0, 5),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 7),
    Api.DELETE_TOPICS: (1, 6),
    Api.DELETE_RECORDS: (0, 2),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.ADD_PARTITIONS_TO_TXN: (0, 5),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    Api.WRITE_TXN_MARKERS: (1, 2),
    Api.TXN_OFFSET_COMMIT: (0, 5),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.ALTER_CONFIGS: (0, 2),
    Api.DESCRIBE_LOG_DIRS: (1, 5),
    Api.CREATE_PARTITIONS: (0, 3),
    Api.DELETE_GROUPS: (0, 2),
    Api.ELECT_LEADERS: (0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    Api.OFFSET_DELETE: (0, 0),
    Api.ALTER_PARTITION: (3, 3),
    Api.DESCRIBE_CLUSTER: (0, 2),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.UNREGISTER_BROKER: (0, 0),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.LIST_TRANSACTIONS: (0, 2),
    Api.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: (0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    Api.SHARE_GROUP_HEARTBEAT: (1, 1),
    Api.SHARE_GROUP_DESCRIBE: (1, 1),
    Api.SHARE_FETCH: (1, 2),
    Api.SHARE_ACKNOWLEDGE: (1, 2),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    Api.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    Api.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
    Api.LIST_CONFIG_RESOURCES: (0, 1),
    Api.RUNNEL_CALL: (0, 0),
}

# The levels of Kafka 4.3. It has two more, of what Runnel does not have: kraft.version and streams.version.
FEATURES = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "metadata.version": 30,  # 4.3-IV0
    "transaction.version": 2,  # KIP-890: brokers add partitions, and each end of a transaction ends its epoch
}
METADATA_VERSION_MIN = 7  # what Kafka 4 brokers give as the lowest level


async def api_versions(request: m.ApiVersionsRequest, call: Call) -> m.ApiVersionsResponse:
    return _table()


def unsupported_version() -> m.ApiVersionsResponse:
    """The answer to an ApiVersions request that is newer than we are, in v0, with the table to choose from."""
    return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_keys())


def _table() -> m.ApiVersionsResponse:
    return m.ApiVersionsResponse(
        api_keys=_keys(),
        supported_features=[
            m.ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=METADATA_VERSION_MIN if name == "metadata.version" else 0, max_version=level
            )
            for name, level in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            m.ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        ],
    )


def _keys() -> list[m.ApiVersionsResponse.ApiVersion]:
    return [
        m.ApiVersionsResponse.ApiVersion(api_key=api, min_version=low, max_version=high)
        for api, (low, high) in SERVED.items()
    ]
