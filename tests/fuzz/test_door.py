"""Hostile bytes at the Kafka door of a real broker: it lives, its memory stays bounded, honest clients are served.

RUNNEL_FUZZ_FRAMES    how many hostile frames (a few thousand unless told: seconds)
RUNNEL_FUZZ_SEED      where chance begins; a failure names it
"""

import os
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runnel.record import records
from runnel.record.records import Record
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import codec, notation
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import API, Api

FRAMES = int(os.environ.get("RUNNEL_FUZZ_FRAMES", "3000"))
SEED = int(os.environ.get("RUNNEL_FUZZ_SEED", "1"))
GROWTH_BYTES_MAX = 64 * 1024 * 1024
OPEN_AT_ONCE = 32
ATTACK_S_MAX = 300 + FRAMES // 50  # a hang ends as a failure, however long the attack was meant to be
ABSURD = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x0f", b"\x00\xff\xff\xff"]
TOPIC = "honest"  # nonsense never names it
NUMBERS = [-(2**31), -1000, -2, -1, 0, 1, 2, 3, 100, 2**15 - 1, 2**31 - 1]
TEXTS = [
    "",
    "fuzz",
    "fuzz-2",
    "..",
    "a/b",
    "x" * 300,
    "\x00",
    "range",
    "consumer",
    "__consumer_offsets",
    "__transaction_state",
    "1",
    "[a-",
    "\U0001f600",
]
BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of our own, with one topic in it; every codec has been compiled, so that growth is what attacks cost."""
    with BrokerProcess(tmp_path_factory.mktemp("fuzz") / "data") as broker:
        kept = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")  # honest messages are old
        wanted = m.CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=1, replication_factor=1, configs=[kept]
        )
        exchange(broker, request(Api.CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)))
        for key, version in served(broker):
            with connect(broker) as connection:
                connection.sendall(sample(key, version))
        assert is_honest(broker)
        yield broker
        assert "Traceback" not in broker.errors(), (
            f"seed {SEED}: something was not foreseen:\n{broker.errors()[-4000:]}"
        )


def connect(broker: BrokerProcess) -> socket.socket:
    host, port = broker.kafka.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def exchange(broker: BrokerProcess, frame: bytes) -> bytes:
    """One request on a connection of its own; its answer without the size."""
    with connect(broker) as connection:
        connection.sendall(frame)
        return receive(connection)


def receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the broker closed the connection")
        data += part
    return data


def request(key: int, version: int, message: object) -> bytes:
    return b"".join(map(bytes, codec.encode_request(key, version, 7, "fuzz", message)))


def served(broker: BrokerProcess) -> list[tuple[int, int]]:
    """Every API and version that the broker advertises and the schema knows."""
    answer = exchange(broker, request(Api.API_VERSIONS, 0, m.ApiVersionsRequest()))
    _, table = codec.decode_response(Api.API_VERSIONS, 0, memoryview(answer))
    return [
        (key.api_key, version)
        for key in table.api_keys
        for version in range(max(key.min_version, API[key.api_key].min_version), key.max_version + 1)
    ]


def is_honest(broker: BrokerProcess) -> bool:
    """Whether a new client is served: versions, a produced message, and the same message fetched."""
    served(broker)
    frame = exchange(broker, sample(Api.PRODUCE, 7))
    _, answer = codec.decode_response(Api.PRODUCE, 7, memoryview(frame))
    (placed,) = answer.responses[0].partition_responses
    place = m.FetchRequest.FetchPartition(partition=0, fetch_offset=placed.base_offset, partition_max_bytes=100_000)
    fetch = m.FetchRequest(
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=100_000,
        topics=[m.FetchRequest.FetchTopic(topic=TOPIC, partitions=[place])],
    )
    _, found = codec.decode_response(Api.FETCH, 11, memoryview(exchange(broker, request(Api.FETCH, 11, fetch))))
    data = found.responses[0].partitions[0].records
    return placed.error_code == 0 and records.decode(bytes(data))[0].value == b"honest"


def resident_bytes(broker: BrokerProcess) -> int:
    statm = Path(f"/proc/{broker.pid}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- well-formed requests to start from
def batch() -> bytes:
    message = Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=b"honest", headers=(("h", b"v"),))
    return bytes(records.encode([message]))


def filled() -> dict[int, object]:
    """Requests with something in them, for the APIs where content matters; nothing here creates many partitions."""
    produced = m.ProduceRequest.PartitionProduceData(index=0, records=batch())
    fetched = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    created = m.CreateTopicsRequest.CreatableTopic(name="fuzz-new", num_partitions=1, replication_factor=1)
    grown = m.CreatePartitionsRequest.CreatePartitionsTopic(name=TOPIC, count=2)
    listed = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    committed = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\x00" * 10)
    setting = m.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="1000000")
    altered = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=TOPIC, configs=[setting]
    )
    described = m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=TOPIC)
    trimmed = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    return {
        Api.PRODUCE: m.ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[m.ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[produced])],
        ),
        Api.FETCH: m.FetchRequest(
            max_wait_ms=10, max_bytes=100_000, topics=[m.FetchRequest.FetchTopic(topic=TOPIC, partitions=[fetched])]
        ),
        Api.LIST_OFFSETS: m.ListOffsetsRequest(
            replica_id=-1, topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[listed])]
        ),
        Api.METADATA: m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=TOPIC)]),
        Api.CREATE_TOPICS: m.CreateTopicsRequest(topics=[created], timeout_ms=1000, validate_only=True),
        Api.CREATE_PARTITIONS: m.CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=True),
        Api.OFFSET_COMMIT: m.OffsetCommitRequest(
            group_id="fuzz", topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[committed])]
        ),
        Api.JOIN_GROUP: m.JoinGroupRequest(
            group_id="fuzz",
            session_timeout_ms=6000,
            rebalance_timeout_ms=6000,
            protocol_type="consumer",
            protocols=[protocol],
        ),
        Api.CONSUMER_GROUP_HEARTBEAT: m.ConsumerGroupHeartbeatRequest(
            group_id="fuzz-new",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=6000,
            subscribed_topic_names=[TOPIC],
            topic_partitions=[],
        ),
        Api.INCREMENTAL_ALTER_CONFIGS: m.IncrementalAlterConfigsRequest(resources=[altered], validate_only=True),
        Api.DESCRIBE_CONFIGS: m.DescribeConfigsRequest(resources=[described]),
        Api.DELETE_RECORDS: m.DeleteRecordsRequest(
            topics=[m.DeleteRecordsRequest.DeleteRecordsTopic(name=TOPIC, partitions=[trimmed])], timeout_ms=1000
        ),
    }


FILLED = filled()


def sample(key: int, version: int) -> bytes:
    """A well-formed frame; empty where nothing is filled in, or where the version can't hold it."""
    empty: object = getattr(m, f"{API[key].name}Request")()
    try:
        return request(key, version, FILLED.get(key, empty))
    except (ValueError, TypeError):
        return request(key, version, empty)


# --- and what becomes of them
def hostile(rng: random.Random, key: int, version: int) -> bytes:
    """A frame that is wrong somewhere; its size is right, so that the broker reads on."""
    body = bytearray(sample(key, version)[4:])
    first = 14 if rng.random() < 0.9 else 4  # mostly behind the header, whose errors are soon all seen
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(first, max(len(body), first + 1))
        match rng.randrange(6):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                body[at : at + 4] = rng.choice(ABSURD)
            case 2:
                del body[at:]
            case 3:
                body[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                del body[at : at + rng.randrange(1, 9)]
            case 5:
                body[first:] = rng.randbytes(rng.randrange(0, 200))
    return struct.pack(">i", len(body)) + bytes(body)


def nonsense(rng: random.Random, key: int, version: int) -> bytes:
    """A frame that is well-formed and makes no sense."""
    schema = notation.message(f"{API[key].name}Request")

    def struct_of(kind: Any, layout: notation.Struct) -> object:
        return kind(**{field.name: value_of(field) for field in layout.fields if version in field.versions})

    def value_of(field: notation.Field) -> object:
        if version in field.nullable and rng.random() < 0.2:
            return None
        if field.array:
            return [one_of(field.type) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        return one_of(field.type)

    def one_of(kind: str) -> object:
        if kind in schema.structs:
            return struct_of(getattr(root, kind), schema.structs[kind])
        if kind in BITS:
            number = rng.choice([*NUMBERS, rng.getrandbits(BITS[kind])])
            low = 0 if kind.startswith("u") else -(2 ** BITS[kind])
            return min(max(number, low), 2 ** BITS[kind] - 1)
        match kind:
            case "string":
                return rng.choice(TEXTS)
            case "bool":
                return rng.random() < 0.5
            case "uuid":
                return rng.choice([UUID(int=0), UUID(int=1), UUID(int=rng.getrandbits(128))])
            case "float64":
                return rng.choice([0.0, -1.0, float("inf")])
            case _:
                return rng.choice([b"", batch(), rng.randbytes(50)])

    root: Any = getattr(m, schema.name)
    return request(key, version, struct_of(root, schema.root))


def attack(target: BrokerProcess, make: Callable[[random.Random, int, int], bytes]) -> None:
    """Send such frames of every API and version, over connections that come and go."""
    rng = random.Random(SEED)
    kinds = served(target)
    before = resident_bytes(target)
    lines: deque[socket.socket] = deque()
    for number in range(FRAMES):
        if len(lines) == OPEN_AT_ONCE:
            lines.popleft().close()
        line = connect(target)
        lines.append(line)
        with suppress(BrokenPipeError, ConnectionResetError):  # it hung up: its right
            for _ in range(rng.choice([1, 1, 3])):
                line.sendall(make(rng, *kinds[(number * 7919 + rng.randrange(3)) % len(kinds)]))
        if number % OPEN_AT_ONCE == 0:
            served(target)  # an answer: it has caught up, so that no more connections are open than we mean
        if number % 500 == 0:
            assert is_honest(target), f"seed {SEED}, frame {number}"
    for line in lines:
        line.close()
    assert is_honest(target), f"seed {SEED}"
    grown = resident_bytes(target) - before
    assert grown < GROWTH_BYTES_MAX, f"seed {SEED}: {grown} bytes more after {FRAMES} hostile frames"


@pytest.mark.timeout(ATTACK_S_MAX)
def test_mutated_requests_of_every_api_and_version(target: BrokerProcess) -> None:
    attack(target, hostile)


@pytest.mark.timeout(ATTACK_S_MAX)
def test_well_formed_nonsense_of_every_api_and_version(target: BrokerProcess) -> None:
    attack(target, nonsense)


def test_random_bytes(target: BrokerProcess) -> None:
    rng = random.Random(SEED)
    for _ in range(max(50, FRAMES // 20)):
        with connect(target) as line:
            line.sendall(rng.randbytes(rng.randrange(1, 300)))
    assert is_honest(target)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 2**31 - 1, 100 * 1024 * 1024 + 1])
def test_a_frame_of_an_impossible_size_ends_its_connection(target: BrokerProcess, size: int) -> None:
    with connect(target) as line:
        line.sendall(struct.pack(">i", size) + b"x" * 100)
        with pytest.raises((EOFError, ConnectionResetError)):
            receive(line)
    assert is_honest(target)


def test_promised_frames_cost_nothing_until_they_come(target: BrokerProcess) -> None:
    """Two hundred connections that promise 99 MB each, and send a kilobyte."""
    before = resident_bytes(target)
    with ExitStack() as closing:
        for _ in range(200):
            line = closing.enter_context(connect(target))
            line.sendall(struct.pack(">i", 99 * 1024 * 1024) + b"\x00" * 1024)
        assert is_honest(target)
        assert resident_bytes(target) - before < GROWTH_BYTES_MAX


def array_bombs() -> Iterator[tuple[int, int, bytes]]:
    """Counts that no frame could hold, where a count stands: first in the body, in both encodings."""
    for key in (Api.METADATA, Api.DELETE_TOPICS, Api.CREATE_TOPICS, Api.DESCRIBE_GROUPS, Api.DELETE_GROUPS):
        known = API[key]
        for version in range(known.min_version, known.max_version + 1):
            flexible = version >= known.flexible_since
            yield key, version, (b"\x00\xff\xff\xff\xff\x0f" if flexible else b"\x7f\xff\xff\xff") + b"\x00" * 16


def test_absurd_counts_are_refused_before_anything_is_made_of_them(target: BrokerProcess) -> None:
    before = resident_bytes(target)
    for key, version, body in array_bombs():
        message = struct.pack(">hhih", key, version, 7, 4) + b"fuzz" + body
        with connect(target) as line:
            line.sendall(struct.pack(">i", len(message)) + message)
            try:
                receive(line)
            except (EOFError, ConnectionResetError):
                continue
    assert is_honest(target)
    assert resident_bytes(target) - before < GROWTH_BYTES_MAX


def test_half_a_request_and_silence(target: BrokerProcess) -> None:
    frame = sample(Api.METADATA, 12)
    with ExitStack() as closing:
        for size in range(len(frame)):
            closing.enter_context(connect(target)).sendall(frame[:size])
        assert is_honest(target), "others are served while these hang"


def test_a_slow_client_is_served_byte_by_byte(target: BrokerProcess) -> None:
    with connect(target) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in sample(Api.API_VERSIONS, 3):
            line.sendall(bytes([byte]))
            time.sleep(0)
        assert len(receive(line)) > 100


def test_who_never_reads_costs_little(target: BrokerProcess) -> None:
    """Thousands of fetches sent, not one answer read: the broker stops reading instead of heaping up answers."""
    large = Record(offset=0, timestamp=1_700_000_000_000, key=None, value=b"x" * 500_000, headers=())
    produced = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(records.encode([large])))
    topic = m.ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[produced])
    for _ in range(8):
        exchange(target, request(Api.PRODUCE, 7, m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])))
    place = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8_000_000)
    wanted = m.FetchRequest.FetchTopic(topic=TOPIC, partitions=[place])
    fetch = request(Api.FETCH, 11, m.FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=8_000_000, topics=[wanted]))
    before = resident_bytes(target)
    with ExitStack() as closing:
        for _ in range(4):
            line = closing.enter_context(connect(target))
            line.setblocking(False)
            with suppress(BlockingIOError):  # the broker does not read on: that is the point
                for _ in range(5000):
                    line.sendall(fetch)
        for _ in range(20):
            assert is_honest(target)
            assert resident_bytes(target) - before < GROWTH_BYTES_MAX
            time.sleep(0.05)


def test_the_dead_are_not_waited_for(target: BrokerProcess) -> None:
    """Fetches that would wait for weeks, each on a connection that ends at once: nothing of them may stay."""
    place = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    wanted = m.FetchRequest.FetchTopic(topic=TOPIC, partitions=[place])
    patient = m.FetchRequest(max_wait_ms=2**31 - 1, min_bytes=2**31 - 1, max_bytes=1000, topics=[wanted])
    frame = request(Api.FETCH, 11, patient)
    before = resident_bytes(target)
    for number in range(2000):
        with connect(target) as line:
            line.sendall(frame)
        if number % OPEN_AT_ONCE == 0:
            served(target)
    assert is_honest(target)
    assert resident_bytes(target) - before < GROWTH_BYTES_MAX
