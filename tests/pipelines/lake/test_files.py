"""How rows become files: what ends a file, what is kept apart, what the log can tell of it."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.lake.rows import DAY, GIVEN, TABLE, batch

from runnel.pipelines.lake.columns import ERROR, table_schema
from runnel.pipelines.lake.files import OPEN_FILES_MAX, DataFile, FileCutter, Held, shelved
from runnel.pipelines.lake.place import Place

NOW_MS = 1_780_000_000_000


def cutter(folder: Path, **settings: int) -> FileCutter:
    return FileCutter(Place.of(str(folder)), TABLE, "q-1", now_ms=NOW_MS, **settings)


def offsets(folder: Path, file: DataFile) -> list[int]:
    return list(pq.ParquetFile(folder / file.name).read()["offset"].to_pylist())


def test_one_file_for_each_topic_and_day(tmp_path: Path) -> None:
    files = cutter(tmp_path)
    files.add(batch(range(4), topic=["a", "b", "a", "b"], at=[DAY, DAY, DAY, DAY - timedelta(days=1)]))
    done = {(file.topic, file.day): offsets(tmp_path, file) for file in files.finish()}
    assert done == {("a", "2026-03-01"): [0, 2], ("b", "2026-03-01"): [1], ("b", "2026-02-28"): [3]}


def test_rows_keep_their_order(tmp_path: Path) -> None:
    files = cutter(tmp_path, row_group_bytes=500)
    for start in range(0, 300, 10):
        files.add(batch(range(start, start + 10), topic=["a", "b"] * 5))
    for file in files.finish():
        assert offsets(tmp_path, file) == list(range(0 if file.topic == "a" else 1, 300, 2))


def test_a_day_is_one_of_utc_whatever_the_zone_of_the_session() -> None:
    """Spark hands times over in its own zone; the first of March in Tokyo is still February in UTC."""
    zone = timezone(timedelta(hours=9))
    rows = batch([1], at=datetime(2026, 3, 1, 3, tzinfo=zone))
    there = rows.set_column(5, "timestamp", rows["timestamp"].cast(pa.timestamp("us", "Asia/Tokyo")))
    assert [shelf.day.isoformat() for shelf, _ in shelved(there)] == ["2026-02-28"]


def test_a_file_ends_at_its_size_and_never_for_the_time_in_a_row(tmp_path: Path) -> None:
    """Late rows for other days do not end the file of this day."""
    files = cutter(tmp_path, file_bytes=1 << 20, row_group_bytes=1 << 16)
    for number in range(100):
        late = DAY - timedelta(days=number % 3)
        files.add(batch(range(number * 10, number * 10 + 10), at=[DAY] * 9 + [late]))
    assert Counter(file.day for file in files.finish()) == {"2026-03-01": 1, "2026-02-28": 1, "2026-02-27": 1}


def test_long_files_are_cut(tmp_path: Path) -> None:
    files = cutter(tmp_path, file_bytes=20_000, row_group_bytes=10_000)
    noise = bytes(range(256)) * 4
    for number in range(200):
        files.add(batch([number], value=noise + number.to_bytes(4, "big") * 100))
    done = files.finish()
    assert len(done) > 2
    assert [offset for file in done for offset in offsets(tmp_path, file)] == list(range(200))
    assert all(file.size < 60_000 for file in done)


def test_memory_is_bounded_by_writing_the_longest_first(tmp_path: Path) -> None:
    files = cutter(tmp_path, buffer_bytes=20_000, row_group_bytes=1 << 30)
    for number in range(100):
        files.add(batch(range(number * 10, number * 10 + 10), at=[DAY] * 9 + [DAY - timedelta(days=1)]))
        assert files._buffered_bytes <= 20_000
    assert sum(file.rows for file in files.finish()) == 1000


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    """A backfill over many days writes them all, a few at a time."""
    files = cutter(tmp_path, buffer_bytes=0)
    days = OPEN_FILES_MAX + 10
    for number in range(2 * days):
        files.add(batch([number], at=DAY - timedelta(days=number % days)))
        assert sum(each.writer is not None for each in files._open.values()) <= OPEN_FILES_MAX
    done = files.finish()
    assert sum(file.rows for file in done) == 2 * days
    assert {file.day for file in done} == {(DAY - timedelta(days=n)).date().isoformat() for n in range(days)}


def test_a_failed_task_leaves_nothing(tmp_path: Path) -> None:
    files = cutter(tmp_path, row_group_bytes=1, file_bytes=1)
    files.add(batch(range(5)))
    files.add(batch(range(5, 10)))
    assert list(tmp_path.rglob("*.parquet"))
    files.discard()
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_with_an_error_are_in_files_of_their_own(tmp_path: Path) -> None:
    schema = table_schema(GIVEN.append(pa.field(ERROR, pa.string())))
    files = FileCutter(Place.of(str(tmp_path)), schema, "q-1", now_ms=NOW_MS)
    rows = batch(range(4))
    files.add(rows.append_column(ERROR, pa.array([None, "bad", None, "bad"])))
    assert sorted(offsets(tmp_path, file) for file in files.finish()) == [[0, 2], [1, 3]]


def test_the_log_can_tell_least_and_greatest(tmp_path: Path) -> None:
    files = cutter(tmp_path)
    files.add(batch([7, 5], at=[DAY, DAY + timedelta(microseconds=3)]))
    files.add(batch([9], partition=3))
    (file,) = files.finish()
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 3
    assert {name: (stats["minValues"][name], stats["maxValues"][name]) for name in ("partition", "offset")} == {
        "partition": (0, 3),
        "offset": (5, 9),
    }
    assert stats["minValues"]["timestamp"] == "2026-03-01T12:00:00.000000Z"
    assert stats["maxValues"]["timestamp"] == "2026-03-01T12:00:00.000003Z"
    assert stats["nullCount"]["offset"] == 0


@pytest.mark.parametrize("text", ["x" * 33, None])
def test_a_bound_that_is_not_sure_is_not_told(tmp_path: Path, text: str | None) -> None:
    schema = table_schema(GIVEN.append(pa.field("car", pa.string())))
    files = FileCutter(Place.of(str(tmp_path)), schema, "q-1", now_ms=NOW_MS)
    files.add(batch([1]).append_column("car", pa.array([text], pa.string())))
    (file,) = files.finish()
    stats = json.loads(file.stats)
    assert "car" not in stats["minValues"] | stats["maxValues"]
    assert stats["nullCount"]["car"] == (text is None)


def test_a_bound_of_some_row_groups_alone_is_not_told(tmp_path: Path) -> None:
    """Parquet leaves out bounds that are very long: those of the other rows would be taken for all."""
    schema = table_schema(GIVEN.append(pa.field("car", pa.string())))
    files = FileCutter(Place.of(str(tmp_path)), schema, "q-1", now_ms=NOW_MS, row_group_bytes=1)
    for text in ("short", "z" * 10_000):
        files.add(batch([1]).append_column("car", pa.array([text])))
    (file,) = files.finish()
    assert "car" not in json.loads(file.stats)["maxValues"]


def test_an_account_of_each_partition(tmp_path: Path) -> None:
    files = cutter(tmp_path)
    files.add(batch([3, 5]))
    files.add(batch([9]))
    files.add(batch([1], partition=1))
    assert files.account == {("cars", 0): Held(3, 3, 9), ("cars", 1): Held(1, 1, 1)}


def test_a_row_without_a_time_is_refused(tmp_path: Path) -> None:
    rows = batch([1])
    rows = rows.set_column(5, "timestamp", pa.array([None], pa.timestamp("us", "UTC")))
    with pytest.raises(ValueError, match="without a topic or a timestamp"):
        cutter(tmp_path).add(rows)


def test_when_it_was_written_is_in_the_row(tmp_path: Path) -> None:
    files = cutter(tmp_path)
    files.add(batch([1]))
    (file,) = files.finish()
    written = pq.ParquetFile(tmp_path / file.name).read()["ingested_at"].to_pylist()
    assert written == [datetime.fromtimestamp(NOW_MS / 1000, UTC)]
