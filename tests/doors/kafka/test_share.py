"""Share groups byte by byte, against a real broker: sessions, acknowledgements, limits, and who waits."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.doors.kafka.test_traps import Line

from runnel.model import headers as h
from runnel.model.queue_config import DEFAULTS
from runnel.record import records
from runnel.record.batch import headers
from runnel.record.records import Headers, Record
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

Fetch, Acknowledge = m.ShareFetchRequest, m.ShareAcknowledgeRequest
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
RECORD_LIMIT = 1
LONG_MS = 30_000
Acks = dict[int, list[tuple[int, int, list[int]]]]  # by partition: first, last, types


class Topic:
    """A topic of one's own."""

    def __init__(self, line: Line, partitions: int = 1) -> None:
        self.name = f"share-{uuid.uuid4().hex}"
        wanted = m.CreateTopicsRequest.CreatableTopic(name=self.name, num_partitions=partitions, replication_factor=1)
        answer = line.ask(Api.CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=[wanted], timeout_ms=LONG_MS))
        assert answer.topics[0].error_code == 0
        self.id = answer.topics[0].topic_id

    def produce(self, line: Line, count: int, *, partition: int = 0, headers: Headers = (), age_ms: int = 0) -> None:
        """One batch of so many messages."""
        now_ms = int(time.time() * 1000) - age_ms
        batch = records.encode([Record(number, now_ms, None, b"%d" % number, headers) for number in range(count)])
        data = m.ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topic = m.ProduceRequest.TopicProduceData(name=self.name, partition_data=[data])
        request = m.ProduceRequest(acks=-1, timeout_ms=LONG_MS, topic_data=[topic])
        answer = line.ask(Api.PRODUCE, 9, request)
        assert answer.responses[0].partition_responses[0].error_code == 0


class Member:
    """One member of a share group on one connection: it counts the epochs of its session."""

    def __init__(self, line: Line, group: str, topic: Topic, member_id: str = "") -> None:
        self.line = line
        self.group = group
        self.topic = topic
        self.id = member_id or str(uuid.uuid4())
        self.epoch = 0

    def fetch(self, *partitions: int, acks: Acks | None = None, version: int = 2, **given: Any) -> Any:
        """A share fetch of the session, or of another epoch."""
        named: Acks = {number: [] for number in partitions} | (acks or {})
        epoch = given.pop("epoch", self.epoch)
        request = Fetch(
            group_id=self.group, member_id=self.id, share_session_epoch=epoch, min_bytes=1, batch_size=500,
            **{"max_wait_ms": 0, "max_bytes": 1 << 20, "max_records": 500, **given},
            topics=[Fetch.FetchTopic(topic_id=self.topic.id, partitions=[
                Fetch.FetchPartition(partition_index=number, acknowledgement_batches=[
                    Fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                    for first, last, types in batches
                ]) for number, batches in named.items()
            ])] if named else [],
        )  # fmt: skip
        answer = self.line.ask(Api.SHARE_FETCH, version, request)
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    def take(self, *partitions: int, **given: Any) -> list[tuple[int, int, int]]:
        """What was leased of the first partition that was answered."""
        answer = self.fetch(*partitions, **given)
        assert answer.error_code == 0, answer.error_message
        [partition] = [partition for topic in answer.responses for partition in topic.partitions] or [None]
        return [] if partition is None else acquired(partition)

    def acknowledge(self, acks: Acks, version: int = 2, **given: Any) -> Any:
        epoch = given.pop("epoch", self.epoch)
        request = Acknowledge(
            group_id=self.group, member_id=self.id, share_session_epoch=epoch, **given,
            topics=[Acknowledge.AcknowledgeTopic(topic_id=self.topic.id, partitions=[
                Acknowledge.AcknowledgePartition(partition_index=number, acknowledgement_batches=[
                    Acknowledge.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                    for first, last, types in batches
                ]) for number, batches in acks.items()
            ])],
        )  # fmt: skip
        answer = self.line.ask(Api.SHARE_ACKNOWLEDGE, version, request)
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    def settle(self, first: int, last: int, kind: int) -> int:
        """The error code of the first partition."""
        answer = self.acknowledge({0: [(first, last, [kind])]})
        assert answer.error_code == 0, answer.error_message
        return int(answer.responses[0].partitions[0].error_code)


Join = Callable[..., Member]


def acquired(partition: Any) -> list[tuple[int, int, int]]:
    assert partition.error_code == 0, partition.error_message
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records]


def configure(line: Line, group: str, **settings: str) -> None:
    request = m.IncrementalAlterConfigsRequest(
        resources=[
            m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=32,
                resource_name=group,
                configs=[
                    m.IncrementalAlterConfigsRequest.AlterableConfig(
                        name=name.replace("_", "."), config_operation=0, value=value
                    )
                    for name, value in settings.items()
                ],
            )
        ]
    )
    answer = line.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


@pytest.fixture
def line(broker: BrokerProcess) -> Iterator[Line]:
    with Line(broker.kafka) as line:
        yield line


@pytest.fixture
def group(line: Line) -> str:
    """A group that begins at the start of its topics."""
    name = f"group-{uuid.uuid4().hex}"
    configure(line, name, share_auto_offset_reset="earliest")
    return name


@pytest.fixture
def join(broker: BrokerProcess, group: str) -> Iterator[Join]:
    """Members of the group, each on a connection of its own."""
    with ExitStack() as stack:

        def member(topic: Topic, member_id: str = "") -> Member:
            line = stack.enter_context(Line(broker.kafka))
            return Member(line, group, topic, member_id)

        yield member


@pytest.fixture
def topic(line: Line) -> Topic:
    return Topic(line)


# --- sessions
def test_a_session_counts_its_requests(line: Line, join: Join, topic: Topic) -> None:
    member = join(topic)
    topic.produce(line, 3)
    answer = member.fetch(0)
    assert [acquired(each) for each in answer.responses[0].partitions] == [[(0, 2, 1)]]
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert member.fetch(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.settle(0, 2, ACCEPT) == 0
    topic.produce(line, 2)
    assert member.take() == [(3, 4, 1)]  # the partition is part of the session


def test_a_session_must_be_begun_by_a_fetch(join: Join, topic: Topic) -> None:
    member = join(topic)
    assert member.fetch(0, epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.fetch(0, epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(0, acks={0: [(0, 0, [ACCEPT])]}).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("given", [{"group_id": ""}, {"group_id": None}, {"member_id": ""}, {"member_id": None}])
def test_a_request_names_its_group_and_its_member(line: Line, given: dict[str, str | None]) -> None:
    named: dict[str, Any] = {"group_id": "g", "member_id": "m", **given}
    answer = line.ask(Api.SHARE_FETCH, 2, Fetch(share_session_epoch=0, **named))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    answer = line.ask(Api.SHARE_ACKNOWLEDGE, 2, Acknowledge(share_session_epoch=1, **named))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_the_last_request_of_a_session_frees_what_it_holds(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 3)
    member, other = join(topic), join(topic)
    assert member.take(0) == [(0, 2, 1)]
    assert other.take(0) == []
    last = member.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=-1)
    assert (last.error_code, last.responses[0].partitions[0].error_code) == (0, 0)
    assert member.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert other.take(max_wait_ms=LONG_MS) == [(1, 2, 1)]  # it gave them back untried


def test_a_last_fetch_settles_and_brings_nothing(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 3)
    member, other = join(topic), join(topic)
    assert member.take(0, max_records=1, share_acquire_mode=RECORD_LIMIT) == [(0, 0, 1)]
    last = member.fetch(acks={0: [(0, 0, [ACCEPT])]}, epoch=-1)
    [partition] = last.responses[0].partitions
    assert (last.error_code, partition.acknowledge_error_code, acquired(partition)) == (0, 0, [])
    assert other.take(0) == [(1, 2, 1)]


def test_the_end_of_a_connection_frees_what_it_holds(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 3)
    member, other = join(topic), join(topic)
    assert member.take(0) == [(0, 2, 1)]
    member.line.socket.close()
    assert other.take(0, max_wait_ms=LONG_MS) == [(0, 2, 2)]


def test_a_member_may_fetch_on_one_connection_and_acknowledge_on_another(
    line: Line, broker: BrokerProcess, join: Join, topic: Topic
) -> None:
    topic.produce(line, 4)
    member, other = join(topic), join(topic)
    assert member.take(0, max_records=3, share_acquire_mode=RECORD_LIMIT) == [(0, 2, 1)]
    with Line(broker.kafka) as second:
        first, member.line = member.line, second
        assert member.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert member.settle(0, 0, ACCEPT) == 0
        assert member.take(max_records=1, share_acquire_mode=RECORD_LIMIT) == [(3, 3, 1)]
    member.line = first  # the second connection has gone: the session began on the first
    assert member.settle(1, 1, ACCEPT) == 0
    assert other.take(0) == []
    first.close()
    assert other.take(max_wait_ms=LONG_MS) == [(2, 3, 2)]


def test_acknowledgements_of_another_connection_do_not_wait_for_a_fetch(
    line: Line, broker: BrokerProcess, join: Join, topic: Topic
) -> None:
    topic.produce(line, 1)
    member = join(topic)
    assert member.take(0) == [(0, 0, 1)]
    found: list[list[tuple[int, int, int]]] = []
    waiting = Member(member.line, member.group, topic, member.id)
    waiting.epoch = member.epoch
    thread = later(lambda: found.append(waiting.take(max_wait_ms=LONG_MS)))
    with Line(broker.kafka) as second:
        member.line = second
        member.epoch += 1
        end = time.monotonic() + LONG_MS / 1000
        while (answer := member.acknowledge({0: [(0, 0, [ACCEPT])]})).error_code:  # until the fetch has come
            assert answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
            assert time.monotonic() < end
        assert answer.responses[0].partitions[0].error_code == 0
        topic.produce(line, 1)
        thread.join(LONG_MS / 1000)
    assert found == [[(1, 1, 1)]]


def test_a_fetch_ends_with_its_session(line: Line, broker: BrokerProcess, join: Join, topic: Topic) -> None:
    member, other = join(topic), join(topic)
    assert member.take(0) == []
    found: list[list[tuple[int, int, int]]] = []
    waiting = Member(member.line, member.group, topic, member.id)
    waiting.epoch = member.epoch
    thread = later(lambda: found.append(waiting.take(max_wait_ms=60 * LONG_MS)))
    with Line(broker.kafka) as second:
        member.line = second
        end = time.monotonic() + LONG_MS / 1000
        while (code := member.acknowledge({}, epoch=member.epoch + 1).error_code) and time.monotonic() < end:
            assert code == ErrorCode.INVALID_SHARE_SESSION_EPOCH  # the fetch has not come yet
        assert member.acknowledge({}, epoch=-1).error_code == 0
        thread.join(LONG_MS / 1000)
    assert found == [[]]
    topic.produce(line, 1)
    assert other.take(0, max_wait_ms=LONG_MS) == [(0, 0, 1)]


def test_a_fetch_whose_connection_went_leaves_the_session_what_it_has(
    line: Line, broker: BrokerProcess, join: Join, topic: Topic
) -> None:
    topic.produce(line, 1)
    member, other = join(topic), join(topic)
    assert member.take(0) == [(0, 0, 1)]
    first = member.line
    with Line(broker.kafka) as second:
        member.line = second
        second.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):  # it waits, and hangs up
            member.take(max_wait_ms=LONG_MS)
    topic.produce(line, 1)
    assert other.take(0, max_wait_ms=LONG_MS) == [(1, 1, 1)]
    member.line = first
    member.epoch += 1
    assert member.settle(0, 0, ACCEPT) == 0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_session_that_is_begun_anew_keeps_its_messages(
    line: Line, broker: BrokerProcess, join: Join, topic: Topic, elsewhere: bool
) -> None:
    topic.produce(line, 1)
    member = join(topic)
    assert member.take(0) == [(0, 0, 1)]
    member.epoch = 0
    with Line(broker.kafka) as second:
        before = member.line
        member.line = second if elsewhere else before
        assert member.take(0) == []
        if elsewhere:
            before.close()  # nothing of the new session goes with it
        assert member.settle(0, 0, ACCEPT) == 0


def test_partitions_that_are_forgotten_are_not_read(line: Line, join: Join) -> None:
    topic = Topic(line, partitions=2)
    member = join(topic)
    assert member.take(0, 1) == []
    gone = [Fetch.ForgottenTopic(topic_id=topic.id, partitions=[0])]
    assert member.take(forgotten_topics_data=gone) == []
    topic.produce(line, 1, partition=0)
    topic.produce(line, 2, partition=1)
    assert member.take() == [(0, 1, 1)]
    assert member.take() == []


def test_what_is_not_there_is_said_of_the_partition(line: Line, join: Join) -> None:
    topic = Topic(line)
    member = join(topic)
    answer = member.fetch(0, 5)
    codes = {each.partition_index: each.error_code for each in answer.responses[0].partitions}
    assert codes == {5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    other = join(Topic(line))
    other.topic.id = uuid.uuid4()
    [partition] = other.fetch(0).responses[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_messages_with_odd_numbers_in_their_headers_hold_up_no_group(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 1)
    for text in (b"--5", b"-", "²".encode(), b"9" * 5_000):
        topic.produce(line, 1, headers=((h.TTL_MS, text), (h.EXPIRES_AT, text)))
    topic.produce(line, 1)
    assert join(topic).take(0) == [(0, 5, 1)]


# --- settling
def test_acknowledgements_come_with_the_next_fetch(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 6)
    member = join(topic)
    assert member.take(0) == [(0, 5, 1)]
    answer = member.fetch(acks={0: [(0, 1, [ACCEPT]), (2, 5, [RELEASE, ACCEPT, 0, RELEASE])]})
    [partition] = answer.responses[0].partitions
    assert partition.acknowledge_error_code == 0
    assert acquired(partition) == [(2, 2, 2), (5, 5, 2)]


def test_nobody_settles_what_it_does_not_hold(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 4)
    one, two = join(topic), join(topic)
    assert one.take(0, max_records=2, share_acquire_mode=RECORD_LIMIT) == [(0, 1, 1)]
    assert two.take(0) == [(2, 3, 1)]
    assert two.settle(0, 0, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert two.settle(1, 2, RELEASE) == ErrorCode.INVALID_RECORD_STATE  # all of it, or nothing
    assert two.settle(2, 3, RELEASE) == 0
    assert two.settle(2, 3, RELEASE) == ErrorCode.INVALID_RECORD_STATE
    assert one.settle(0, 1, ACCEPT) == 0
    assert one.settle(7, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE


def test_nonsense_harms_its_partition_alone(line: Line, join: Join) -> None:
    topic = Topic(line, partitions=2)
    topic.produce(line, 1, partition=0)
    topic.produce(line, 1, partition=1)
    member = join(topic)
    member.fetch(0, 1)
    answer = member.acknowledge({0: [(0, 0, [9])], 1: [(0, 0, [ACCEPT])]})
    codes = {each.partition_index: each.error_code for each in answer.responses[0].partitions}
    assert codes == {0: ErrorCode.INVALID_REQUEST, 1: 0}


def test_a_renewal_has_to_be_announced(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 1)
    member = join(topic)
    assert member.take(0) == [(0, 0, 1)]
    assert member.settle(0, 0, RENEW) == ErrorCode.INVALID_REQUEST
    answer = member.acknowledge({0: [(0, 0, [RENEW])]}, is_renew_ack=True)
    assert answer.responses[0].partitions[0].error_code == 0
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert member.settle(0, 0, ACCEPT) == 0


def test_a_group_may_be_forbidden_to_renew(line: Line, group: str, join: Join, topic: Topic) -> None:
    configure(line, group, share_renew_acknowledge_enable="false")
    topic.produce(line, 1)
    member = join(topic)
    assert member.take(0) == [(0, 0, 1)]
    answer = member.acknowledge({0: [(0, 0, [RENEW])]}, is_renew_ack=True)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
    assert member.settle(0, 0, ACCEPT) == 0


def test_a_fetch_that_only_renews_brings_nothing(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 2)
    member = join(topic)
    assert member.take(0, max_records=1, share_acquire_mode=RECORD_LIMIT) == [(0, 0, 1)]
    answer = member.fetch(acks={0: [(0, 0, [RENEW])]}, is_renew_ack=True, max_records=0, max_bytes=0)
    [partition] = answer.responses[0].partitions
    assert (partition.acknowledge_error_code, acquired(partition)) == (0, [])


def test_a_group_whose_name_no_topic_can_have_has_dead_letters(line: Line, topic: Topic) -> None:
    group = f"my group/{uuid.uuid4().hex}"
    configure(line, group, share_auto_offset_reset="earliest")
    topic.produce(line, 1)
    member = Member(line, group, topic)
    assert member.take(0) == [(0, 0, 1)]
    assert member.settle(0, 0, REJECT) == 0
    dead = DEFAULTS.dead_topic_of(group)
    end = time.monotonic() + LONG_MS / 1000
    while True:
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=dead)]
        asked = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        [found] = line.ask(Api.METADATA, 12, asked).topics
        if found.error_code == 0:
            break
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert time.monotonic() < end
        time.sleep(0.02)


# --- where a group begins
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("reset", "found"),
    [
        ("earliest", [(0, 7, 1)]),
        ("by_duration:P1DT1H", [(2, 7, 1)]),
        ("by_duration:PT2H30M", [(5, 7, 1)]),
        ("by_duration:PT0.5S", []),
        ("latest", []),
    ],
)
def test_a_group_begins_where_it_is_told_to(
    line: Line, broker: BrokerProcess, topic: Topic, reset: str, found: list[tuple[int, int, int]]
) -> None:
    for count, hours in ((2, 48), (3, 24), (3, 2)):
        topic.produce(line, count, age_ms=hours * HOUR_MS)
    group = f"group-{uuid.uuid4().hex}"
    configure(line, group, share_auto_offset_reset=reset)
    member = Member(line, group, topic)
    assert member.take(0, max_wait_ms=1) == found
    topic.produce(line, 1)
    assert member.take(max_wait_ms=LONG_MS) == [(8, 8, 1)]


# --- limits
def test_whole_batches_are_leased_unless_the_limit_is_exact(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 10)
    topic.produce(line, 10)
    member, exact = join(topic), join(topic)
    assert exact.take(0, max_records=3, share_acquire_mode=RECORD_LIMIT) == [(0, 2, 1)]
    assert member.take(0, max_records=2) == [(3, 9, 1)]
    assert member.take(max_records=2, version=1) == [(10, 19, 1)]


def test_a_batch_is_sent_as_it_lies_in_the_log(line: Line, join: Join, topic: Topic) -> None:
    for _ in range(4):
        topic.produce(line, 5)
    member = join(topic)
    assert member.take(0) == [(0, 19, 1)]
    answer = member.fetch(acks={0: [(0, 1, [ACCEPT]), (2, 2, [RELEASE]), (3, 15, [ACCEPT]), (16, 16, [RELEASE])]})
    [partition] = answer.responses[0].partitions
    assert acquired(partition) == [(2, 2, 2), (16, 16, 2)]
    sent = [header.base_offset for _, header in headers(memoryview(partition.records))]
    assert sent == [0, 15]  # those two batches alone, whole
    got = [
        (each.offset, each.value)
        for each in records.decode(memoryview(partition.records)[: len(partition.records) // 2])
    ]
    assert got == [(number, b"%d" % number) for number in range(5)]


def test_bytes_are_bounded(line: Line, join: Join) -> None:
    topic = Topic(line, partitions=2)
    for partition in (0, 1):
        for _ in range(5):
            topic.produce(line, 100, partition=partition)
    member = join(topic)
    answer = member.fetch(0, 1, max_bytes=1)
    [partition] = answer.responses[0].partitions
    assert acquired(partition) == [(0, 99, 1)]  # one batch, whatever its size
    other = member.fetch(max_bytes=1)
    [next_partition] = other.responses[0].partitions
    assert next_partition.partition_index != partition.partition_index  # in turn


def sizes(answer: Any) -> dict[int, int]:
    """The bytes that each partition gave."""
    return {each.partition_index: len(each.records) for topic in answer.responses for each in topic.partitions}


def test_an_answer_is_no_larger_than_asked_for(line: Line, join: Join) -> None:
    topic = Topic(line, partitions=2)
    for partition in (0, 1):
        for _ in range(5):
            topic.produce(line, 100, partition=partition)
    [size] = sizes(join(topic).fetch(0, max_bytes=1)).values()  # of one batch, which is leased for good
    member = join(topic)
    found = sizes(member.fetch(0, 1, max_bytes=3 * size + size // 2))
    assert found == {0: 3 * size}, "the next batch has no room, nor has one of the other partition"
    assert sizes(member.fetch(max_bytes=2 * size)) == {1: 2 * size}


def test_an_answer_with_single_messages_is_no_larger_than_asked_for(line: Line, join: Join, group: str) -> None:
    """Messages that are chosen one by one come in their whole batches, as many as there is room for."""
    configure(line, group, filter="tag IS NULL", attempts_max="1")
    topic = Topic(line)
    for _ in range(4):
        topic.produce(line, 100)
    member = join(topic)
    first = member.fetch(0, max_bytes=1)
    assert [acquired(each) for each in first.responses[0].partitions] == [[(0, 0, 1)]]
    [size] = sizes(first).values()  # of its whole batch
    second = member.fetch(max_bytes=2 * size + size // 2)
    assert sizes(second) == {0: 2 * size}
    [partition] = second.responses[0].partitions
    assert [offset for offset, _, _ in acquired(partition)] == list(range(1, 200))
    assert [(offset, attempt) for offset, _, attempt in member.take()] == [(number, 1) for number in range(200, 400)]


def test_no_more_is_leased_than_the_group_may_hold(line: Line, group: str, join: Join, topic: Topic) -> None:
    configure(line, group, share_partition_max_record_locks="150")
    for _ in range(3):
        topic.produce(line, 100)
    member = join(topic)
    assert member.take(0) == [(0, 149, 1)]
    assert member.take() == []
    assert member.settle(0, 49, ACCEPT) == 0
    assert member.take() == [(150, 199, 1)]


# --- waiting
def later(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_who_waits_is_woken_by_a_message(line: Line, join: Join) -> None:
    topic = Topic(line, partitions=2)
    members = [join(topic) for _ in range(2)]
    for number, member in enumerate(members):
        assert member.take(number) == []
    found: dict[int, list[tuple[int, int, int]]] = {}

    def wait(number: int) -> None:
        found[number] = members[number].take(max_wait_ms=LONG_MS)

    threads = [later(lambda number=number: wait(number)) for number in (0, 1)]
    topic.produce(line, 1, partition=1)  # the other one keeps waiting, and does not take the ring away
    threads[1].join(LONG_MS / 1000 / 2)
    assert found == {1: [(0, 0, 1)]}
    topic.produce(line, 1, partition=0)
    threads[0].join(LONG_MS / 1000 / 2)
    assert found == {1: [(0, 0, 1)], 0: [(0, 0, 1)]}


def test_who_waits_is_woken_by_what_is_released(line: Line, join: Join, topic: Topic) -> None:
    topic.produce(line, 2)
    holder, waiter = join(topic), join(topic)
    assert holder.take(0) == [(0, 1, 1)]
    assert waiter.take(0) == []
    found: list[list[tuple[int, int, int]]] = []
    thread = later(lambda: found.append(waiter.take(max_wait_ms=LONG_MS)))
    assert holder.settle(0, 1, RELEASE) == 0
    thread.join(LONG_MS / 1000 / 2)
    assert found == [[(0, 1, 2)]]


def test_who_waits_is_woken_by_a_lock_that_ran_out(line: Line, group: str, join: Join, topic: Topic) -> None:
    configure(line, group, share_record_lock_duration_ms="1000")
    topic.produce(line, 1)
    holder, waiter = join(topic), join(topic)
    assert holder.take(0) == [(0, 0, 1)]
    assert waiter.take(0, max_wait_ms=LONG_MS) == [(0, 0, 2)]
    assert holder.settle(0, 0, RELEASE) == ErrorCode.INVALID_RECORD_STATE


def test_nothing_is_leased_to_who_has_gone(line: Line, join: Join, topic: Topic) -> None:
    gone, here = join(topic), join(topic)
    assert gone.take(0) == []
    assert here.take(0) == []
    gone.line.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):  # it waits, and hangs up
        gone.take(max_wait_ms=LONG_MS)
    gone.line.socket.close()
    for _ in range(3):  # by the time of these answers the broker has seen the end of that connection
        line.ask(Api.METADATA, 12, m.MetadataRequest(topics=[]))
    topic.produce(line, 1)
    [(first, last, attempt)] = here.take(max_wait_ms=LONG_MS)
    assert (first, last, attempt) == (0, 0, 1)
