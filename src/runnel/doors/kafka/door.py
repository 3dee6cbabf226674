"""The Kafka door: frames to requests, requests to handlers, answers to frames."""

from collections.abc import Sequence
from typing import NamedTuple

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.doors.kafka import alter_configs, api_versions
from runnel.doors.kafka.add_offsets_to_txn import add_offsets_to_txn
from runnel.doors.kafka.add_partitions_to_txn import add_partitions_to_txn
from runnel.doors.kafka.alter_partition import alter_partition
from runnel.doors.kafka.alter_partition_reassignments import alter_partition_reassignments
from runnel.doors.kafka.alter_share_group_offsets import alter_share_group_offsets
from runnel.doors.kafka.api_versions import SERVED
from runnel.doors.kafka.call import Answer, Call, Following
from runnel.doors.kafka.consumer_group_describe import consumer_group_describe
from runnel.doors.kafka.consumer_group_heartbeat import consumer_group_heartbeat
from runnel.doors.kafka.create_partitions import create_partitions
from runnel.doors.kafka.create_topics import create_topics
from runnel.doors.kafka.delete_groups import delete_groups
from runnel.doors.kafka.delete_records import delete_records
from runnel.doors.kafka.delete_share_group_offsets import delete_share_group_offsets
from runnel.doors.kafka.delete_topics import delete_topics
from runnel.doors.kafka.describe_cluster import describe_cluster
from runnel.doors.kafka.describe_configs import describe_configs
from runnel.doors.kafka.describe_groups import describe_groups
from runnel.doors.kafka.describe_log_dirs import describe_log_dirs
from runnel.doors.kafka.describe_producers import describe_producers
from runnel.doors.kafka.describe_share_group_offsets import describe_share_group_offsets
from runnel.doors.kafka.describe_topic_partitions import describe_topic_partitions
from runnel.doors.kafka.describe_transactions import describe_transactions
from runnel.doors.kafka.elect_leaders import elect_leaders
from runnel.doors.kafka.end_txn import end_txn
from runnel.doors.kafka.fetch import fetch
from runnel.doors.kafka.fetch_sessions import FetchSessions
from runnel.doors.kafka.find_coordinator import find_coordinator
from runnel.doors.kafka.heartbeat import heartbeat
from runnel.doors.kafka.init_producer_id import init_producer_id
from runnel.doors.kafka.join_group import join_group
from runnel.doors.kafka.leave_group import leave_group
from runnel.doors.kafka.list_config_resources import list_config_resources
from runnel.doors.kafka.list_groups import list_groups
from runnel.doors.kafka.list_offsets import list_offsets
from runnel.doors.kafka.list_partition_reassignments import list_partition_reassignments
from runnel.doors.kafka.list_transactions import list_transactions
from runnel.doors.kafka.metadata import metadata
from runnel.doors.kafka.offset_commit import offset_commit
from runnel.doors.kafka.offset_delete import offset_delete
from runnel.doors.kafka.offset_fetch import offset_fetch
from runnel.doors.kafka.offset_for_leader_epoch import offset_for_leader_epoch
from runnel.doors.kafka.produce import produce
from runnel.doors.kafka.relay import CONTROLLERS, relayed
from runnel.doors.kafka.runnel_call import runnel_call
from runnel.doors.kafka.share_acknowledge import share_acknowledge
from runnel.doors.kafka.share_connection import ShareConnection
from runnel.doors.kafka.share_fetch import share_fetch
from runnel.doors.kafka.share_group_describe import share_group_describe
from runnel.doors.kafka.share_group_heartbeat import share_group_heartbeat
from runnel.doors.kafka.share_sessions import ShareSessions
from runnel.doors.kafka.sync_group import sync_group
from runnel.doors.kafka.txn_offset_commit import txn_offset_commit
from runnel.doors.kafka.unregister_broker import unregister_broker
from runnel.doors.kafka.write_txn_markers import write_txn_markers
from runnel.model.errors import InvalidRequest
from runnel.model.seams import Buffer, Rng
from runnel.net.connection import Connection
from runnel.wire.kafka import codec
from runnel.wire.kafka.apis import Api

PRODUCE_SERVED_SINCE = 3  # advertised from 0 on for old clients' sake, see api_versions


class Handler(NamedTuple):
    """Who answers an API, and in which versions."""

    answer: Answer
    lowest: int
    highest: int


ANSWERS: dict[Api, Answer] = {
    Api.PRODUCE: produce,
    Api.FETCH: fetch,
    Api.LIST_OFFSETS: list_offsets,
    Api.METADATA: metadata,
    Api.OFFSET_COMMIT: offset_commit,
    Api.OFFSET_FETCH: offset_fetch,
    Api.FIND_COORDINATOR: find_coordinator,
    Api.JOIN_GROUP: join_group,
    Api.HEARTBEAT: heartbeat,
    Api.LEAVE_GROUP: leave_group,
    Api.SYNC_GROUP: sync_group,
    Api.DESCRIBE_GROUPS: describe_groups,
    Api.LIST_GROUPS: list_groups,
    Api.API_VERSIONS: api_versions.api_versions,
    Api.CREATE_TOPICS: create_topics,
    Api.DELETE_TOPICS: delete_topics,
    Api.DELETE_RECORDS: delete_records,
    Api.INIT_PRODUCER_ID: init_producer_id,
    Api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    Api.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    Api.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    Api.END_TXN: end_txn,
    Api.WRITE_TXN_MARKERS: write_txn_markers,
    Api.TXN_OFFSET_COMMIT: txn_offset_commit,
    Api.DESCRIBE_CONFIGS: describe_configs,
    Api.ALTER_CONFIGS: alter_configs.alter_configs,
    Api.DESCRIBE_LOG_DIRS: describe_log_dirs,
    Api.CREATE_PARTITIONS: create_partitions,
    Api.DELETE_GROUPS: delete_groups,
    Api.ELECT_LEADERS: elect_leaders,
    Api.INCREMENTAL_ALTER_CONFIGS: alter_configs.incremental_alter_configs,
    Api.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    Api.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    Api.OFFSET_DELETE: offset_delete,
    Api.ALTER_PARTITION: alter_partition,
    Api.DESCRIBE_CLUSTER: describe_cluster,
    Api.DESCRIBE_PRODUCERS: describe_producers,
    Api.UNREGISTER_BROKER: unregister_broker,
    Api.DESCRIBE_TRANSACTIONS: describe_transactions,
    Api.LIST_TRANSACTIONS: list_transactions,
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
    Api.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    Api.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    Api.SHARE_GROUP_DESCRIBE: share_group_describe,
    Api.SHARE_FETCH: share_fetch,
    Api.SHARE_ACKNOWLEDGE: share_acknowledge,
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    Api.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    Api.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
    Api.LIST_CONFIG_RESOURCES: list_config_resources,
    Api.RUNNEL_CALL: runnel_call,
}
HANDLERS: dict[int, Handler] = {
    int(api): Handler(
        relayed(api, ANSWERS[api]) if api in CONTROLLERS else ANSWERS[api],
        PRODUCE_SERVED_SINCE if api is Api.PRODUCE else low,
        high,
    )
    for api, (low, high) in SERVED.items()
}


class KafkaDoor:
    """Gives each connection its session."""

    def __init__(self, broker: Broker, rng: Rng) -> None:
        self._broker = broker
        self._fetch_sessions = FetchSessions(rng)
        self._share_sessions = ShareSessions()

    def open(self, connection: Connection) -> "KafkaSession":
        sharing = ShareConnection(self._broker, self._share_sessions)
        return KafkaSession(self._broker, self._fetch_sessions, sharing, connection)


class KafkaSession:
    """One connection's side of the door."""

    def __init__(
        self, broker: Broker, fetch_sessions: FetchSessions, sharing: ShareConnection, connection: Connection
    ) -> None:
        self._broker = broker
        self._fetch_sessions = fetch_sessions
        self._sharing = sharing
        self._waits = Waits()
        self._following = Following(broker)
        self._connection = connection
        self._host = "/" + connection.peer.rpartition(":")[0]  # as Kafka's tools show it

    async def handle(self, frame: memoryview) -> Sequence[Buffer] | None:
        """The answer to one frame; InvalidRequest, which closes the connection, where there can't be one."""
        header, position = codec.read_request_header(frame)
        handler = HANDLERS.get(header.api_key)
        if handler is None or not handler.lowest <= header.api_version <= handler.highest:
            return self._refuse(header)
        request = codec.decode_request(header.api_key, header.api_version, frame, position)
        call = Call(
            self._broker,
            header.api_version,
            header.client_id or "",
            self._host,
            self._connection.let_pass,
            self._fetch_sessions,
            self._waits,
            self._following,
            self._sharing,
        )
        response = await handler.answer(request, call)
        if response is None:
            return None
        return codec.encode_response(header.api_key, header.api_version, header.correlation_id, response)

    def closed(self) -> None:
        """Nobody is there to be answered any more. Groups go by sessions, fetch sessions by age."""
        self._waits.end()
        self._following.end_session()
        self._sharing.close()

    def _refuse(self, header: codec.RequestHeader) -> Sequence[Buffer]:
        if header.api_key == Api.API_VERSIONS:
            return codec.encode_response(header.api_key, 0, header.correlation_id, api_versions.unsupported_version())
        raise InvalidRequest(
            f"client {header.client_id!r} sent API {header.api_key} v{header.api_version}, which this broker does not"
            " serve; ApiVersions lists what it does"
        )
