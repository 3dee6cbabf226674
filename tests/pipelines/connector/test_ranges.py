"""Reading ranges straight from the log: what comes, what is cut out, what is lost, and what is tried again."""

import threading
from pathlib import Path

import pytest
from tests.pipelines.connector.topics import Topic

from runnel.client.cluster_admin import ClusterAdmin
from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.connector.reading import ranges
from runnel.pipelines.connector.reading.ranges import Lost, Range, RangeReader
from runnel.record import records
from runnel.record.batch import headers
from runnel.testing.process import BrokerProcess


def refuse(lost: Lost) -> None:
    raise AssertionError(f"unexpected loss: {lost}")


def read(gate: Gateway, span: Range, isolation: int = READ_COMMITTED) -> list[tuple[int, bytes]]:
    """(offset, value) of all messages of the batches that came, also of those around the range."""
    found = []
    for run in gate.read(span, isolation, refuse):
        for at, header in headers(run):
            found += [(r.offset, r.value or b"") for r in records.decode(run[at : at + header.size])]
    return found


def test_whole_batches_that_hold_the_range_come_once_and_in_order(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    topic.send(100, batch=10)
    assert [offset for offset, _ in read(gate, Range(topic.at(0), 25, 47))] == list(range(20, 50))
    assert [offset for offset, _ in read(gate, Range(topic.at(0), 0, 100))] == list(range(100))
    assert read(gate, Range(topic.at(0), 25, 25)) == []


def test_a_range_larger_than_answers_comes_in_many_of_bounded_size(
    gate: Gateway, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(gate, name)
    topic.send(400, batch=10, size=1_000)
    monkeypatch.setattr(ranges, "ANSWER_BYTES_MIN", 15_000)
    monkeypatch.setattr(ranges, "ANSWER_BYTES_MAX", 30_000)
    reader = RangeReader(gate.cluster, Range(topic.at(0), 3, 397), bytes_first=15_000)
    sizes, seen = [], 0
    while (found := gate.run(reader.next())) is not None:
        assert not isinstance(found, Lost)
        sizes.append(sum(map(len, found)))
        seen += sum(header.count for run in found for _, header in headers(run))
    assert seen == 400
    assert len(sizes) > 10
    assert max(sizes) <= 30_000


def test_the_next_answer_is_under_way_while_one_is_worked_on(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    topic.send(100, batch=10, size=1_000)
    reader = RangeReader(gate.cluster, Range(topic.at(0), 0, 100), bytes_first=15_000)
    gate.run(reader.next())
    assert reader._under_way is not None
    gate.run(reader.close())
    assert reader._under_way.done()


def test_aborted_messages_and_markers_are_cut_out(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    topic.transact([b"a", b"b"], commit=True)  # 0, 1, marker 2
    topic.transact([b"x", b"y"], commit=False)  # 3, 4, marker 5
    topic.transact([b"c"], commit=True)  # 6, marker 7
    assert read(gate, Range(topic.at(0), 0, 8)) == [(0, b"a"), (1, b"b"), (6, b"c")]
    assert [o for o, _ in read(gate, Range(topic.at(0), 0, 8), READ_UNCOMMITTED)] == [0, 1, 3, 4, 6]
    assert read(gate, Range(topic.at(0), 3, 6)) == []


def test_a_range_that_ends_in_nothing_but_markers_ends(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    topic.transact([b"x"], commit=False)
    assert read(gate, Range(topic.at(0), 0, 2)) == []


def test_what_is_not_kept_any_more_is_told_once_and_reading_goes_on(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    topic.send(30, batch=10)
    topic.trim(15)
    lost: list[Lost] = []
    found = [
        header.last_offset for run in gate.read(Range(topic.at(0), 3, 30), 1, lost.append) for _, header in headers(run)
    ]
    assert lost == [Lost(topic.at(0), 3, 15)]
    assert found == [19, 29]
    lost.clear()
    assert list(gate.read(Range(topic.at(0), 3, 9), 1, lost.append)) == []
    assert lost == [Lost(topic.at(0), 3, 9)]


def test_who_stops_reading_leaves_nothing_behind(gate: Gateway, name: str) -> None:
    topic = Topic(gate, name)
    topic.send(100, batch=10)
    found = gate.read(Range(topic.at(0), 0, 100), READ_COMMITTED, refuse)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert len(read(gate, Range(topic.at(0), 0, 100))) == 100


def test_a_broker_that_comes_back_is_read_on_where_reading_was(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "ANSWER_BYTES_MIN", 1)  # a batch at a time
    monkeypatch.setattr(ranges, "ANSWER_BYTES_MAX", 1)
    with BrokerProcess(tmp_path / "data") as broker:
        gate = Gateway((broker.kafka,))
        topic = Topic(gate, name)
        topic.send(100, batch=10)
        reader = RangeReader(gate.cluster, Range(topic.at(0), 0, 100), bytes_first=1)
        gate.run(reader.next())
        broker.kill()
        back = threading.Timer(0.5, broker.start)
        back.start()
        seen = 10
        while (found := gate.run(reader.next())) is not None:
            assert not isinstance(found, Lost)
            seen += sum(header.count for run in found for _, header in headers(run))
        back.join()
        gate.close()
    assert seen == 100


def test_a_leader_that_moves_is_followed(trio: list[BrokerProcess], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "ANSWER_BYTES_MIN", 1)  # a batch at a time
    monkeypatch.setattr(ranges, "ANSWER_BYTES_MAX", 1)
    gate = Gateway((trio[0].kafka,))
    topic = Topic(gate, name, replicas=3)
    topic.send(100, batch=10)
    admin = ClusterAdmin(gate.cluster)
    reader = RangeReader(gate.cluster, Range(topic.at(0), 0, 100), bytes_first=1)
    leaders, seen = set(), 0
    while (found := gate.run(reader.next())) is not None:
        assert not isinstance(found, Lost)
        seen += sum(header.count for run in found for _, header in headers(run))
        view = gate.run(gate.cluster.view([name]))
        partition = view.topics[name].partitions[0]
        leaders.add(partition.leader)
        turned = [*partition.replicas[1:], partition.replicas[0]]
        assert gate.run(admin.reassign({topic.at(0): turned})) == {}
        gate.run(admin.elect([topic.at(0)]))
    gate.close()
    assert seen == 100
    assert len(leaders) > 1
