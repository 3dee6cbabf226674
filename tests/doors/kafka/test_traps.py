"""What real clients trip over, byte by byte, against a real broker: each trap was found with a client.

Requests and answers are made by hand where their very shape is the trap, and with the codec elsewhere.
"""

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import pytest

from runnel.record import records
from runnel.record.compression import Compression
from runnel.record.records import Record
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import codec
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import API, Api
from runnel.wire.kafka.error_codes import ErrorCode

# As real 4.3 brokers advertise it, for the requests that a broker without access control has.
KAFKA_TABLE = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5),
    23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 32: (1, 4), 33: (0, 2), 35: (1, 5),
    37: (0, 3), 42: (0, 2), 44: (0, 1), 47: (0, 0), 60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2),
    68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2), 90: (0, 1),
    91: (0, 0), 92: (0, 0),
}  # fmt: skip

WHO = m.ApiVersionsRequest(client_software_name="trap", client_software_version="1")
NO_TOPICS = struct.pack(">hii", 1, 0, -1)  # a consumer's subscription v1: no topics, no user data


class Line:
    """One connection that asks one thing after the other."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, api: int, version: int, body: bytes, *, correlation: int = 7) -> None:
        """A request with the header of inflexible versions, its body given as bytes."""
        message = struct.pack(">hhih", api, version, correlation, 4) + b"trap" + body
        self.socket.sendall(struct.pack(">i", len(message)) + message)

    def receive(self) -> bytes:
        """The bytes after the size; EOFError when the broker hung up."""
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def ask(self, api: Api, version: int, request: Any, *, behind: bytes = b"") -> Any:
        """Ask with the codec; the decoded answer."""
        frame = bytearray(b"".join(map(bytes, codec.encode_request(api, version, 7, "trap", request)))) + behind
        frame[:4] = struct.pack(">i", len(frame) - 4)
        self.socket.sendall(frame)
        answer = codec.decode_response(api, version, memoryview(self.receive()))[1]
        assert not list(empty_messages(answer)), "what is no error has no message"
        return answer


def empty_messages(answer: Any, path: str = "") -> Iterator[str]:
    """Where an answer has an empty error message instead of none."""
    if isinstance(answer, list):
        for each in answer:
            yield from empty_messages(each, path)
        return
    for name in getattr(type(answer), "__slots__", ()):
        value = getattr(answer, name)
        if name.endswith("error_message") and value == "":
            yield f"{path}.{name}"
        yield from empty_messages(value, f"{path}.{name}")


@pytest.fixture
def line(broker: BrokerProcess) -> Any:
    with Line(broker.kafka) as line:
        yield line


@pytest.fixture
def topic(line: Line) -> str:
    """A topic of one's own."""
    name = f"traps-{uuid.uuid4().hex}"
    assert create(line, name, 7).error_code == 0
    return name


def create(line: Line, name: str, version: int) -> Any:
    wanted = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = line.ask(Api.CREATE_TOPICS, version, m.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000))
    return answer.topics[0]


def table(line: Line) -> dict[int, tuple[int, int]]:
    answer = line.ask(
        Api.API_VERSIONS, 4, m.ApiVersionsRequest(client_software_name="trap", client_software_version="1")
    )
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


# --- the table of versions
def test_the_table_is_kafkas(line: Line) -> None:
    found = table(line)
    assert {key: found.get(key) for key in KAFKA_TABLE} == KAFKA_TABLE


def test_what_is_advertised_beyond_that_is_in_the_schema(line: Line) -> None:
    for key, (low, high) in table(line).items():
        known = API[key]
        assert high <= known.max_version, known.name
        assert low <= high, known.name


def test_produce_begins_at_0_or_old_librdkafka_would_not_compress(line: Line) -> None:
    assert table(line)[Api.PRODUCE][0] == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_before_3_is_refused_all_the_same(line: Line, version: int) -> None:
    body = struct.pack(">hii", 1, 1000, 0)
    line.send(Api.PRODUCE, version, body)
    with pytest.raises(EOFError):
        line.receive()


def test_the_gates_of_old_librdkafka_are_open(line: Line) -> None:
    """librdkafka 2.0 (kcat) uses a feature only when these versions are in the range."""
    found = table(line)
    gates = {
        Api.JOIN_GROUP: [0], Api.SYNC_GROUP: [0], Api.HEARTBEAT: [0], Api.LEAVE_GROUP: [0], Api.FIND_COORDINATOR: [0],
        Api.INIT_PRODUCER_ID: [0], Api.OFFSET_COMMIT: [2], Api.OFFSET_FETCH: [1], Api.LIST_OFFSETS: [1],
        Api.PRODUCE: [3, 7], Api.FETCH: [4, 10],
    }  # fmt: skip
    for api, versions in gates.items():
        low, high = found[api]
        assert all(low <= version <= high for version in versions), api.name


def test_librdkafka_insists_on_exact_versions(line: Line) -> None:
    found = table(line)
    exact = {
        Api.OFFSET_FOR_LEADER_EPOCH: 2, Api.CONSUMER_GROUP_HEARTBEAT: 1, Api.CONSUMER_GROUP_DESCRIBE: 0,
        Api.SHARE_GROUP_HEARTBEAT: 1, Api.SHARE_FETCH: 1, Api.SHARE_ACKNOWLEDGE: 1,
    }  # fmt: skip
    for api, version in exact.items():
        low, high = found[api]
        assert low <= version <= high, api.name


def test_kafka_python_takes_it_for_kafka_4_3(line: Line) -> None:
    found = table(line)
    assert (found[Api.DESCRIBE_LOG_DIRS][1], found[Api.LIST_OFFSETS][1], found[Api.PRODUCE][1]) == (5, 11, 13)


def test_telemetry_is_not_advertised_so_that_clients_stay_silent(line: Line) -> None:
    assert not {71, 72} & table(line).keys()


def test_a_sasl_handshake_is_advertised_from_0_or_not_at_all(line: Line) -> None:
    assert table(line).get(Api.SASL_HANDSHAKE, (0, 1)) == (0, 1)


def test_features_are_those_of_kafka_4_3(line: Line) -> None:
    answer = line.ask(
        Api.API_VERSIONS, 4, m.ApiVersionsRequest(client_software_name="trap", client_software_version="1")
    )
    assert answer.finalized_features_epoch >= 0
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert finalized == {
        "eligible.leader.replicas.version": 1, "group.version": 1, "metadata.version": 30, "share.version": 1,
        "transaction.version": 2,
    }  # fmt: skip  # as Kafka 4.3 has them, but for kraft.version and streams.version
    assert {feature.name for feature in answer.supported_features} >= finalized.keys()


# --- ApiVersions itself
@pytest.mark.parametrize("version", [3, 4])
def test_the_header_of_its_answer_never_has_tags(line: Line, version: int) -> None:
    body = b"\x00" + b"\x05trap" + b"\x021" + b"\x00"  # tags of the header, software name and version, tags
    line.send(Api.API_VERSIONS, version, body, correlation=77)
    correlation, error, count = struct.unpack_from(">ihB", line.receive())
    assert (correlation, error) == (77, 0)
    assert count - 1 == len(table(line))


@pytest.mark.parametrize("version", [5, 99, 32_767])
def test_an_unknown_version_of_it_is_answered_in_version_0(line: Line, version: int) -> None:
    line.send(Api.API_VERSIONS, version, b"\x00\x05trap\x021\x00 and what a newer client adds", correlation=78)
    answer = line.receive()
    correlation, error, count = struct.unpack_from(">ihi", answer)
    assert (correlation, error) == (78, ErrorCode.UNSUPPORTED_VERSION)
    keys = [struct.unpack_from(">hhh", answer, 10 + 6 * number) for number in range(count)]
    assert len(answer) == 10 + 6 * count
    assert (18, 0, 4) in keys
    assert len(table(line)) >= 1, "the connection lives on: the client asks again in a version both know"


def test_it_can_be_asked_again_on_the_same_connection(line: Line) -> None:
    assert table(line) == table(line)


# --- requests
def test_bytes_behind_a_request_are_ignored(line: Line) -> None:
    """librdkafka 2.16 sends three of them behind Metadata v13."""
    answer = line.ask(Api.METADATA, 13, m.MetadataRequest(topics=None), behind=b"\x00\x00\x00")
    assert answer.brokers


@pytest.mark.parametrize("version", [12, 13])
def test_an_id_decides_whatever_the_name(line: Line, topic: str, version: int) -> None:
    """Java 4.3 asks by id and leaves the name empty, not null."""
    (found,) = metadata(line, version, name=topic)
    by_id = [metadata(line, version, name=name, topic_id=found.topic_id)[0] for name in ("", None)]
    assert [(one.error_code, one.name) for one in by_id] == [(0, topic), (0, topic)]
    (unknown,) = metadata(line, version, name=None, topic_id=uuid.uuid4())
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


def metadata(line: Line, version: int, **asked: Any) -> list[Any]:
    request = m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(**asked)], allow_auto_topic_creation=False
    )
    return list(line.ask(Api.METADATA, version, request).topics)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_in_versions_that_only_half_have_them(line: Line, topic: str, version: int) -> None:
    (found,) = metadata(line, version, name=topic, topic_id=uuid.uuid4())
    assert found.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9)])
def test_special_times_are_unknown_to_older_versions(line: Line, topic: str, timestamp: int, since: int) -> None:
    """-3: the largest time, -4: the earliest on local disk, -5: the last in remote storage."""
    assert list_offsets(line, topic, since - 1, timestamp).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert list_offsets(line, topic, since, timestamp).error_code == ErrorCode.NONE


def list_offsets(line: Line, topic: str, version: int, timestamp: int) -> Any:
    place = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    wanted = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[place])
    answer = line.ask(Api.LIST_OFFSETS, version, m.ListOffsetsRequest(replica_id=-1, topics=[wanted]))
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize(("operation", "value", "code"), [(1, None, 0), (0, "1", 40)])
def test_a_setting_nobody_knows(line: Line, topic: str, operation: int, value: str | None, code: int) -> None:
    """Resetting it is done at once, setting it is refused."""
    setting = m.IncrementalAlterConfigsRequest.AlterableConfig(
        name="no.such.setting", config_operation=operation, value=value
    )
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[setting]
    )
    answer = line.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == code


@pytest.mark.parametrize("name", ["²", "--1", "-1", "9" * 5_000])
def test_a_broker_that_no_number_names(line: Line, name: str) -> None:
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name=name, configs=[])
    answer = line.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("number", [-1, -1000])
def test_a_cursor_beside_the_topic(line: Line, topic: str, number: int) -> None:
    cursor = m.DescribeTopicPartitionsRequest.Cursor(topic_name=topic, partition_index=number)
    wanted = m.DescribeTopicPartitionsRequest.TopicRequest(name=topic)
    request = m.DescribeTopicPartitionsRequest(topics=[wanted], cursor=cursor)
    answer = line.ask(Api.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [found.error_code for found in answer.topics] == [ErrorCode.INVALID_REQUEST]


def test_an_unknown_tagged_field_is_skipped(line: Line) -> None:
    """A tag that no version has: 99, three bytes."""
    body = b"\x00" + b"\x00" + b"\x00\x00" + b"\x01\x63\x03abc"  # header tags; no topics (all); flags; one tag
    line.send(Api.METADATA, 12, body)
    assert struct.unpack_from(">i", line.receive()) == (7,)


@pytest.mark.parametrize(("api", "version"), [(999, 0), (Api.METADATA, 99), (Api.FETCH, 3), (Api.METADATA, -1)])
def test_what_is_not_served_ends_the_connection_and_nothing_else(
    broker: BrokerProcess, line: Line, api: int, version: int
) -> None:
    line.send(api, version, b"")
    with pytest.raises((EOFError, ConnectionResetError)):
        line.receive()
    with Line(broker.kafka) as other:
        assert table(other)


def test_answers_come_in_the_order_of_requests(line: Line, topic: str) -> None:
    """A slow request (a fetch that waits) before a quick one: the protocol has no other order."""
    place = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    wanted = m.FetchRequest.FetchTopic(topic=topic, partitions=[place])
    fetch = m.FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=1000, topics=[wanted])
    line.socket.sendall(b"".join(map(bytes, codec.encode_request(Api.FETCH, 11, 1, "trap", fetch))))
    line.socket.sendall(b"".join(map(bytes, codec.encode_request(Api.METADATA, 9, 2, "trap", m.MetadataRequest()))))
    assert [struct.unpack_from(">i", line.receive())[0] for _ in range(2)] == [1, 2]


# --- nulls that the Java client does not survive
@pytest.mark.parametrize("version", [5, 6, 7])
def test_a_created_topic_tells_its_settings(line: Line, version: int) -> None:
    created = create(line, f"traps-{uuid.uuid4().hex}", version)
    assert created.error_code == 0
    assert created.configs is not None
    assert (created.num_partitions, created.replication_factor) == (1, 1)


def test_described_partitions_have_empty_lists_not_nulls(line: Line, topic: str) -> None:
    wanted = m.DescribeTopicPartitionsRequest.TopicRequest(name=topic)
    answer = line.ask(Api.DESCRIBE_TOPIC_PARTITIONS, 0, m.DescribeTopicPartitionsRequest(topics=[wanted]))
    ((described,),) = ([*found.partitions] for found in answer.topics)
    assert (described.eligible_leader_replicas, described.last_known_elr) == ([], [])


# --- groups
def new_group(line: Line) -> str:
    """The name of a group whose coordinator is ready."""
    name = f"traps-{uuid.uuid4().hex}"
    find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
    end = time.monotonic() + 60
    while line.ask(Api.FIND_COORDINATOR, 4, find).coordinators[0].error_code:
        assert time.monotonic() < end, "no coordinator for a whole minute"
        time.sleep(0.05)
    return name


def test_leaving_echoes_every_member_with_its_instance(line: Line) -> None:
    members = [
        m.LeaveGroupRequest.MemberIdentity(member_id="nobody", group_instance_id=None),
        m.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="static"),
    ]
    group = new_group(line)
    answer = line.ask(Api.LEAVE_GROUP, 5, m.LeaveGroupRequest(group_id=group, members=members))
    assert answer.error_code == 0
    echoed = [(member.member_id, member.group_instance_id, member.error_code) for member in answer.members]
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert echoed == [("nobody", None, unknown), ("", "static", unknown)]


def test_an_instance_that_leaves_is_echoed_with_its_id(line: Line) -> None:
    group = new_group(line)
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=NO_TOPICS)
    request = m.JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, group_instance_id="one",
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip
    assert line.ask(Api.JOIN_GROUP, 9, request).error_code == 0
    leaver = m.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="one")
    answer = line.ask(Api.LEAVE_GROUP, 5, m.LeaveGroupRequest(group_id=group, members=[leaver]))
    assert [(member.group_instance_id, member.error_code) for member in answer.members] == [("one", 0)]


# --- settings of brokers
def alter_broker(line: Line, **values: str) -> Any:
    changes = [
        m.IncrementalAlterConfigsRequest.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in values.items()
    ]
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="1", configs=changes
    )
    request = m.IncrementalAlterConfigsRequest(resources=[resource])
    return line.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0]


def broker_setting(line: Line, name: str) -> str | None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=[name]
    )
    [described] = line.ask(Api.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest(resources=[resource])).results
    [entry] = described.configs
    value: str | None = entry.value
    return value


def test_settings_that_a_broker_does_not_have_are_refused_alone(line: Line) -> None:
    answer = alter_broker(line, num_io_threads="8", log_segment_delete_delay_ms="50000", log_cleaner_threads="2")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "num.io.threads, log.cleaner.threads" in answer.error_message
    assert broker_setting(line, "log.segment.delete.delay.ms") == "50000"
    answer = alter_broker(line, log_segment_delete_delay_ms="40000", log_roll_ms="never")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert broker_setting(line, "log.segment.delete.delay.ms") == "50000", "a wrong value is an error of the whole"
    assert alter_broker(line, log_segment_delete_delay_ms="60000").error_code == 0


# --- messages of what is no error
def test_a_success_has_no_message(line: Line, topic: str) -> None:
    """As `Line` sees to it for every answer; here of those whose message Kafka's schema lets be empty by default."""
    assert create(line, f"{topic}-more", 7).error_message is None
    for version in (3, 4):
        find = m.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
        line.ask(Api.FIND_COORDINATOR, version, find)
    assert broker_setting(line, "log.roll.ms") is not None
    line.ask(Api.LIST_PARTITION_REASSIGNMENTS, 0, m.ListPartitionReassignmentsRequest(topics=None))
    alter = m.AlterPartitionReassignmentsRequest
    parts = [alter.ReassignablePartition(partition_index=0, replicas=[1])]
    moved = line.ask(
        Api.ALTER_PARTITION_REASSIGNMENTS, 1,
        alter(topics=[alter.ReassignableTopic(name=topic, partitions=parts)], timeout_ms=30_000),
    )  # fmt: skip
    assert (moved.error_message, moved.responses[0].partitions[0].error_message) == (None, None)


# --- batches (Kafka itself answers an unknown codec with -1, "unknown server error"; else its codes are these)
def batch(**options: Any) -> bytearray:
    value = Record(offset=0, timestamp=1_700_000_000_000, key=None, value=b"trap", headers=())
    return bytearray(records.encode([value], **options))


def sealed(data: bytearray) -> bytearray:
    """With a checksum that fits whatever was changed."""
    struct.pack_into(">I", data, 17, crc32c.crc32c(data[21:]))
    return data


def produce(line: Line, topic: str, data: bytes | bytearray | None, *, version: int = 7) -> int:
    part = m.ProduceRequest.PartitionProduceData(index=0, records=None if data is None else bytes(data))
    wanted = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    answer = line.ask(Api.PRODUCE, version, m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[wanted]))
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def test_without_a_producer_id_the_sequence_means_nothing(line: Line, topic: str) -> None:
    """aiokafka's plain producer sends producer id -1 with sequence 0, again and again."""
    for _ in range(3):
        assert produce(line, topic, batch(producer_id=-1, producer_epoch=-1, base_sequence=0)) == 0


def changed(position: int, form: str, value: int) -> Callable[[], bytearray]:
    def make() -> bytearray:
        data = batch()
        struct.pack_into(form, data, position, value)
        return sealed(data)

    return make


def rotten() -> bytearray:
    data = batch()
    data[-1] ^= 0xFF
    return data


BAD_BATCHES: dict[str, tuple[Callable[[], bytes | bytearray | None], set[ErrorCode]]] = {
    "a checksum that does not fit": (rotten, {ErrorCode.CORRUPT_MESSAGE}),
    "two batches": (lambda: batch() + batch(), {ErrorCode.INVALID_RECORD}),
    "an old format": (changed(16, ">b", 1), {ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}),
    "a control batch": (changed(21, ">h", 0x20), {ErrorCode.INVALID_RECORD}),
    "a count that does not fit": (changed(57, ">i", 3), {ErrorCode.INVALID_RECORD}),
    "a last offset that does not fit": (changed(23, ">i", 5), {ErrorCode.INVALID_RECORD}),
    "a size beyond the bytes": (changed(8, ">i", 5000), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "a size too small": (changed(8, ">i", 10), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "half a batch": (lambda: batch()[:30], {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "an unknown codec": (changed(21, ">h", 7), {ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                                                ErrorCode.CORRUPT_MESSAGE}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_gets_its_code_and_leaves_no_trace(line: Line, topic: str, name: str) -> None:
    make, codes = BAD_BATCHES[name]
    assert produce(line, topic, make()) in codes
    assert produce(line, topic, batch()) == 0
    assert list_offsets(line, topic, 5, -1).offset == 1


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)])
def test_zstd_needs_produce_7(line: Line, topic: str, version: int, code: ErrorCode) -> None:
    assert produce(line, topic, batch(compression=Compression.ZSTD), version=version) == code


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)])
def test_what_a_topic_compresses_by_zstd_needs_fetch_10(line: Line, version: int, code: ErrorCode) -> None:
    name = f"traps-{uuid.uuid4().hex}"
    setting = m.CreateTopicsRequest.CreatableTopicConfig(name="compression.type", value="zstd")
    wanted = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[setting])
    line.ask(Api.CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000))
    assert produce(line, name, batch(), version=3) == 0  # nobody who sends has to know of it
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    request = m.FetchRequest(topics=[m.FetchRequest.FetchTopic(topic=name, partitions=[partition])], min_bytes=0)
    found = line.ask(Api.FETCH, version, request).responses[0].partitions[0]
    assert found.error_code == code
    assert bool(found.records) == (code is ErrorCode.NONE)
