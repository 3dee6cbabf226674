"""A batch is in the table once or not at all, whoever commits it, and however often."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError
from tests.pipelines.lake.rows import GIVEN, TABLE, batch

from runnel.pipelines.errors import BadOption, NothingThere
from runnel.pipelines.lake import table as lake_table
from runnel.pipelines.lake.columns import table_schema
from runnel.pipelines.lake.files import DataFile, FileCutter
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.table import BatchKey, commit, named, opened, ready, sweep, told


def written(place: Place, key: BatchKey, offsets: range, *, task: str = "0-0", schema: pa.Schema = TABLE) -> DataFile:
    files = FileCutter(place, schema, f"{key.prefix}{task}", now_ms=1)
    rows = batch(offsets)
    for field in schema:
        if field.name not in (*GIVEN.names, "date", "ingested_at"):
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    files.add(rows)
    (file,) = files.finish()
    return file


def offsets(place: Place, version: int | None = None) -> list[int]:
    found = opened(place, version).file_uris()
    return sorted(offset for uri in found for offset in pq.ParquetFile(uri).read()["offset"].to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.of(str(tmp_path / "lake"))


def test_a_batch_is_committed_once(place: Place) -> None:
    key = BatchKey("q", 0)
    assert commit(place, key, TABLE, [written(place, key, range(3))])
    assert not commit(place, key, TABLE, [written(place, key, range(3), task="0-1")])
    assert offsets(place) == [0, 1, 2]


def test_an_earlier_batch_is_not_committed_after_a_later_one(place: Place) -> None:
    """A driver that slept wakes up with a batch that another has gone beyond."""
    later, earlier = BatchKey("q", 5), BatchKey("q", 4)
    assert commit(place, later, TABLE, [written(place, later, range(10, 12))])
    assert not commit(place, earlier, TABLE, [written(place, earlier, range(8, 10))])
    assert offsets(place) == [10, 11]


def test_queries_do_not_stand_in_each_others_way(place: Place) -> None:
    for query in ("q", "r"):
        assert commit(place, BatchKey(query, 0), TABLE, [written(place, BatchKey(query, 0), range(1))])
    assert offsets(place) == [0, 0]


def test_of_two_drivers_that_looked_at_the_same_moment_one_commits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commits between the look at the last batch and our own commit: the log refuses ours."""
    key = BatchKey("q", 0)
    ready(place, TABLE)
    mine, theirs = written(place, key, range(3)), written(place, key, range(3), task="0-1")
    real = lake_table._commit
    raced: list[bool] = []

    def too_late(*args: object) -> None:
        monkeypatch.setattr(lake_table, "_commit", real)
        raced.append(commit(place, key, TABLE, [theirs]))
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lake_table, "_commit", too_late)
    assert not commit(place, key, TABLE, [mine])
    assert raced == [True]
    assert named(opened(place)) == {theirs.name}


def test_a_commit_of_another_query_in_between_only_costs_a_second_try(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = BatchKey("q", 0), BatchKey("r", 0)
    ready(place, TABLE)
    real = lake_table._commit

    def in_between(*args: object) -> None:
        monkeypatch.setattr(lake_table, "_commit", real)
        commit(place, other, TABLE, [written(place, other, range(1))])
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lake_table, "_commit", in_between)
    assert commit(place, ours, TABLE, [written(place, ours, range(1, 3))])
    assert offsets(place) == [0, 1, 2]


def test_a_commit_whose_answer_was_lost_is_known_for_ones_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Object stores may write and report a failure. Taken for somebody else's, our own files would be removed."""
    key = BatchKey("q", 0)
    file = written(place, key, range(3))
    real = lake_table._commit

    def answer_lost(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        raise CommitFailedError("connection reset")

    monkeypatch.setattr(lake_table, "_commit", answer_lost)
    assert commit(place, key, TABLE, [file])
    assert named(opened(place)) == {file.name}


def test_what_other_tries_of_a_decided_batch_left_is_swept(place: Place) -> None:
    key = BatchKey("q", 1)
    before, later = BatchKey("q", 0), BatchKey("q", 2)
    left = written(place, key, range(3), task="0-0")
    old, file, next_ = (
        written(place, each, range(3), task="1-0") for each in (before, key, later)
    )  # of other batches: another driver may be about to commit them
    commit(place, key, TABLE, [file])
    assert sweep(place, key, [file]) == [left.name]
    assert place.lacking([left.name, old.name, file.name, next_.name]) == [left.name]


def test_tables_are_of_the_protocol_that_every_reader_knows(place: Place) -> None:
    protocol = ready(place, TABLE).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_columns_may_be_added(place: Place) -> None:
    commit(place, BatchKey("q", 0), TABLE, [written(place, BatchKey("q", 0), range(2))])
    wider = table_schema(GIVEN.append(pa.field("speed", pa.float64())).append(pa.field("car", pa.string())))
    key = BatchKey("q", 1)
    commit(place, key, wider, [written(place, key, range(2, 4), schema=wider)])
    table = opened(place)
    assert pa.schema(table.schema().to_arrow()).names[-2:] == ["speed", "car"]
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    assert "car" in table.metadata().configuration["delta.dataSkippingStatsColumns"].split(",")
    key = BatchKey("q", 2)
    assert commit(place, key, TABLE, [written(place, key, range(4, 6))]), "who knows fewer columns goes on"


def test_columns_are_not_changed(place: Place) -> None:
    ready(place, table_schema(GIVEN.append(pa.field("speed", pa.float64()))))
    with pytest.raises(BadOption, match="speed"):
        ready(place, table_schema(GIVEN.append(pa.field("speed", pa.string()))))
    with pytest.raises(BadOption, match="Speed"):
        ready(place, table_schema(GIVEN.append(pa.field("Speed", pa.float64()))))


def test_a_table_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path), pa.table({"a": [1]}))
    with pytest.raises(BadOption, match="not partitioned"):
        ready(Place.of(str(tmp_path)), TABLE)


def test_no_table_is_said_so(place: Place) -> None:
    with pytest.raises(NothingThere, match="archive"):
        opened(place)


def test_a_topic_that_means_something_in_a_path_is_refused(place: Place) -> None:
    key = BatchKey("q", 0)
    file = written(place, key, range(1))
    with pytest.raises(BadOption, match="topic"):
        commit(place, key, TABLE, [DataFile(file.name, "../x", file.day, 1, 1, "{}", 1)])


def test_commits_say_what_they_put_in_up_to_a_version(place: Place) -> None:
    for number in range(3):
        key = BatchKey("q", number)
        commit(place, key, TABLE, [written(place, key, range(2))], {"cars": {"0": [2, 0, number]}})
    whole = [{"query": "q", "batch": n, "held": {"cars": {"0": [2, 0, n]}}} for n in range(3)]
    assert list(told(place, opened(place).version())) == whole
    assert list(told(place, 2)) == whole[:2], "version 0 made the table"


def test_batches_are_known_beyond_a_checkpoint_of_the_log(place: Place) -> None:
    """Every hundredth commit the log is summed up: readers begin there."""
    for number in range(102):
        key = BatchKey("q", number)
        commit(place, key, TABLE, [written(place, key, range(number, number + 1))])
    assert list(Path(place.path, "_delta_log").glob("*.checkpoint.parquet"))
    last = BatchKey("q", 101)
    assert not commit(place, last, TABLE, [written(place, last, range(101, 102), task="0-1")])
    assert offsets(place) == list(range(102))
