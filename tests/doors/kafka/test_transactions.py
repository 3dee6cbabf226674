"""Transactions at the wire: both dialects of Produce, isolation of readers, and how transactions end."""

import uuid
from typing import Any

import pytest
from tests.doors.kafka.test_traps import Line, create, line

from runnel.record import records
from runnel.record.batch import headers
from runnel.record.records import Record
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

__all__ = ["line"]

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_BY_NAME = 12  # the last version with names
TIME = 1_700_000_000_000


@pytest.fixture
def topic(line: Line) -> str:
    name = f"transactions-{uuid.uuid4().hex}"
    assert create(line, name, 7).error_code == 0
    return name


class Transactional:
    """A producer that speaks by hand."""

    def __init__(self, line: Line, topic: str, version: int) -> None:
        self._line = line
        self._topic = topic
        self._version = version  # of Produce: since 12 partitions need not be added
        self.id = f"id-{uuid.uuid4().hex}"
        find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[self.id])
        while line.ask(Api.FIND_COORDINATOR, 6, find).coordinators[0].error_code:
            pass
        init = m.InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        while (made := line.ask(Api.INIT_PRODUCER_ID, 5, init)).error_code:
            assert made.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.producer, self.epoch = made.producer_id, made.producer_epoch
        self.sequence = 0

    def add(self) -> int:
        named = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self._topic, partitions=[0])
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id, v3_and_below_producer_id=self.producer,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=[named],
        )  # fmt: skip
        code = int(ErrorCode.CONCURRENT_TRANSACTIONS)
        while code == ErrorCode.CONCURRENT_TRANSACTIONS:  # the one before is still being ended
            answer = self._line.ask(Api.ADD_PARTITIONS_TO_TXN, 3, request)
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def send(self, value: bytes = b"v", *, epoch: int | None = None, timestamp: int = TIME) -> int:
        row = Record(offset=0, timestamp=timestamp, key=None, value=value, headers=())
        batch = records.encode(
            [row], producer_id=self.producer, producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=self.sequence, transactional=True,
        )  # fmt: skip
        part = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
        wanted = m.ProduceRequest.TopicProduceData(name=self._topic, partition_data=[part])
        request = m.ProduceRequest(transactional_id=self.id, acks=-1, timeout_ms=30_000, topic_data=[wanted])
        answer = self._line.ask(Api.PRODUCE, self._version, request)
        code: int = answer.responses[0].partition_responses[0].error_code
        self.sequence += code == 0
        return code

    def end(self, *, commit: bool) -> None:
        bumps = self._version >= 12
        request = m.EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer, producer_epoch=self.epoch, committed=commit
        )
        answer = self._line.ask(Api.END_TXN, 5 if bumps else 3, request)
        assert answer.error_code == 0
        if bumps:
            self.producer, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        while latest(self._line, self._topic, READ_COMMITTED) < latest(self._line, self._topic, READ_UNCOMMITTED):
            pass  # the answer leaves before the markers are written


def listed(line: Line, topic: str, isolation: int, timestamp: int) -> int:
    wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    named = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
    request = m.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[named])
    partition = line.ask(Api.LIST_OFFSETS, 7, request).topics[0].partitions[0]
    assert partition.error_code == 0
    offset: int = partition.offset
    return offset


def latest(line: Line, topic: str, isolation: int) -> int:
    return listed(line, topic, isolation, -1)


def fetched(
    line: Line, topic: str, isolation: int, *, offset: int = 0, session: tuple[int, int] = (0, -1), named: bool = True
) -> Any:
    wanted = m.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [m.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])] if named else []
    request = m.FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=isolation, session_id=session[0],
        session_epoch=session[1], topics=topics,
    )  # fmt: skip
    answer = line.ask(Api.FETCH, FETCH_BY_NAME, request)
    assert answer.error_code == 0
    return answer


def partition_of(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def values(partition: Any) -> list[bytes | None]:
    data = partition.records or b""
    return [
        row.value
        for position, header in headers(data)
        if not header.control
        for row in records.decode(memoryview(data)[position : position + header.size])
    ]


def markers(line: Line, topic: str, *ends: tuple[Transactional, bool, int, int], version: int = 2) -> list[int]:
    """Write markers as a coordinator would: producer, outcome, epoch, coordinator epoch."""
    request = m.WriteTxnMarkersRequest(
        markers=[
            m.WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=who.producer, producer_epoch=epoch, transaction_result=commit,
                coordinator_epoch=coordinator, transaction_version=version,
                topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 7])],
            )
            for who, commit, epoch, coordinator in ends
        ]
    )  # fmt: skip
    answer = line.ask(Api.WRITE_TXN_MARKERS, 2, request)
    assert [each.producer_id for each in answer.markers] == [who.producer for who, *_ in ends]
    partitions = [each.topics[0].partitions for each in answer.markers]
    assert [each[1].error_code for each in partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(ends)
    return [each[0].error_code for each in partitions]


@pytest.mark.parametrize("version", [9, 12])
def test_readers_see_what_their_isolation_lets_them(line: Line, topic: str, version: int) -> None:
    one, two = Transactional(line, topic, version), Transactional(line, topic, version)
    for producer in (one, two) if version < 12 else ():
        assert producer.add() == 0
    assert (one.send(b"one"), two.send(b"two")) == (0, 0)
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        seen = partition_of(fetched(line, topic, isolation))
        assert (seen.high_watermark, seen.last_stable_offset, seen.log_start_offset) == (2, 0, 0)
        assert values(seen) == ([] if isolation == READ_COMMITTED else [b"one", b"two"])
    assert (latest(line, topic, READ_COMMITTED), latest(line, topic, READ_UNCOMMITTED)) == (0, 2)
    assert (listed(line, topic, READ_COMMITTED, TIME), listed(line, topic, READ_UNCOMMITTED, TIME)) == (-1, 0)
    assert (listed(line, topic, READ_COMMITTED, -3), listed(line, topic, READ_UNCOMMITTED, -3)) == (-1, 0)


@pytest.mark.parametrize("version", [9, 12])
def test_aborted_transactions_are_told_to_whom_it_concerns(line: Line, topic: str, version: int) -> None:
    producer = Transactional(line, topic, version)
    for number, commit in enumerate((True, False, True)):
        if version < 12:
            assert producer.add() == 0
        assert producer.send(b"%d" % number) == 0
        producer.end(commit=commit)
    committed = partition_of(fetched(line, topic, READ_COMMITTED))
    assert [(each.producer_id, each.first_offset) for each in committed.aborted_transactions] == [
        (producer.producer, 2)
    ]
    assert values(committed) == [b"0", b"1", b"2"]
    assert (committed.high_watermark, committed.last_stable_offset) == (6, 6)
    later = partition_of(fetched(line, topic, READ_COMMITTED, offset=4))
    assert (later.aborted_transactions, values(later)) == ([], [b"2"])
    assert not partition_of(fetched(line, topic, READ_UNCOMMITTED)).aborted_transactions


def test_a_session_tells_that_the_stable_offset_moved(line: Line, topic: str) -> None:
    producer = Transactional(line, topic, 12)
    assert producer.send() == 0
    first = fetched(line, topic, READ_UNCOMMITTED, offset=1, session=(0, 0))
    assert partition_of(first).last_stable_offset == 0
    session = first.session_id
    assert fetched(line, topic, READ_UNCOMMITTED, session=(session, 1), named=False).responses == []
    [code] = markers(line, topic, (producer, True, producer.epoch + 1, 1))
    assert code == 0
    told = partition_of(fetched(line, topic, READ_COMMITTED, session=(session, 2), named=False))
    assert (told.high_watermark, told.last_stable_offset) == (2, 2)


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_what_was_not_added_is_refused_in_words_that_the_client_knows(
    line: Line, topic: str, version: int, code: ErrorCode
) -> None:
    producer = Transactional(line, topic, version)
    assert producer.send() == code
    assert latest(line, topic, READ_UNCOMMITTED) == 0


def test_a_producer_of_an_older_epoch_hears_of_its_epoch(line: Line, topic: str) -> None:
    producer = Transactional(line, topic, 12)
    assert producer.send() == 0
    producer.end(commit=True)
    for _ in range(2):  # known here, and then only to the coordinator
        assert producer.send(epoch=producer.epoch - 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        topic = f"transactions-{uuid.uuid4().hex}"
        assert create(line, topic, 7).error_code == 0
        producer._topic = topic


def test_markers_end_several_transactions_at_once_and_fence(line: Line, topic: str) -> None:
    one, two = Transactional(line, topic, 12), Transactional(line, topic, 12)
    assert (one.send(), two.send()) == (0, 0)
    assert markers(line, topic, (one, True, one.epoch + 1, 5), (two, False, two.epoch + 1, 5)) == [0, 0]
    assert latest(line, topic, READ_COMMITTED) == latest(line, topic, READ_UNCOMMITTED) == 4
    again = markers(line, topic, (one, True, one.epoch + 1, 5), (two, False, two.epoch, 5))
    assert again == [0, ErrorCode.INVALID_PRODUCER_EPOCH]
    assert markers(line, topic, (one, True, one.epoch + 1, 4)) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert latest(line, topic, READ_UNCOMMITTED) == 4
    assert one.send() == ErrorCode.INVALID_PRODUCER_EPOCH


def test_described_producers_tell_of_their_transactions(line: Line, topic: str) -> None:
    def described() -> list[tuple[int, int, int, int]]:
        named = m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
        [told] = line.ask(Api.DESCRIBE_PRODUCERS, 0, m.DescribeProducersRequest(topics=[named])).topics
        return [
            (each.producer_id, each.producer_epoch, each.current_txn_start_offset, each.coordinator_epoch)
            for each in told.partitions[0].active_producers
        ]

    producer = Transactional(line, topic, 12)
    assert producer.send() == 0
    assert described() == [(producer.producer, producer.epoch, 0, -1)]
    assert markers(line, topic, (producer, True, producer.epoch + 1, 5)) == [0]
    assert described() == [(producer.producer, producer.epoch + 1, -1, 5)]


def test_records_of_an_open_transaction_can_be_deleted(line: Line, topic: str) -> None:
    producer = Transactional(line, topic, 12)
    assert (producer.send(), producer.send()) == (0, 0)
    wanted = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
    named = m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])
    answer = line.ask(Api.DELETE_RECORDS, 2, m.DeleteRecordsRequest(topics=[named], timeout_ms=30_000))
    assert answer.topics[0].partitions[0].low_watermark == 2
    assert (latest(line, topic, READ_COMMITTED), latest(line, topic, READ_UNCOMMITTED)) == (2, 2)
    producer.end(commit=True)
    while latest(line, topic, READ_COMMITTED) < 3:
        pass  # the marker comes a little later
