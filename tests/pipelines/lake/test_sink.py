"""What tasks and the driver do, without Spark: repetitions, failures, leftovers."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)  # fmt: skip
from tests.pipelines.lake.rows import batch
from tests.pipelines.lake.test_table import offsets

from runnel.pipelines.errors import BadOption, UnknownOption
from runnel.pipelines.lake import table as lake_table
from runnel.pipelines.lake.files import ROW_GROUP_BYTES
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.sink import LakeFormat, LakeWriter, SinkOptions, Written
from runnel.pipelines.lake.table import BatchKey, named, opened

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("key", BinaryType()), StructField("value", BinaryType()), StructField("topic", StringType()),
        StructField("partition", IntegerType()), StructField("offset", LongType()),
        StructField("timestamp", TimestampType()), StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.of(str(tmp_path / "lake"))


def writer(place: Place, **options: str) -> LakeWriter:
    """As Spark makes it: it travels to tasks and back."""
    made = LakeWriter(SinkOptions.of({"path": place.path} | options), SCHEMA)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def tried(place: Place, number: int, *, task: str = "0-0", rows: range = range(10)) -> Written:
    message = writer(place).write_task(iter([batch(rows)]), BatchKey("q", number), task)
    return pickle.loads(pickle.dumps(message))  # type: ignore[no-any-return]


def present(place: Place) -> set[str]:
    return {str(file.relative_to(place.path)) for file in Path(place.path).glob("topic=*/**/*.parquet")}


def test_one_commit_for_all_tasks(place: Place) -> None:
    writer(place).commit([tried(place, 0), tried(place, 0, task="1-0", rows=range(10, 20))], 0)
    assert offsets(place) == list(range(20))
    assert opened(place).version() == 1  # 0 made the table


def test_a_repeated_batch_is_skipped_and_its_files_are_removed(place: Place) -> None:
    writer(place).commit([tried(place, 0)], 0)
    before = present(place)
    writer(place).commit([tried(place, 0)], 0)
    assert offsets(place) == list(range(10))
    assert present(place) == before


def test_what_a_killed_driver_left_goes_with_the_repetition(place: Place) -> None:
    tried(place, 0)  # written, and never committed
    writer(place).commit([tried(place, 0)], 0)
    assert present(place) == named(opened(place))


def test_a_batch_without_rows_commits_nothing(place: Place) -> None:
    writer(place).commit([Written(BatchKey("q", 0), (), {})], 0)
    assert not place.exists()


def test_a_failed_task_leaves_nothing(place: Place) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(range(5), value=bytes(ROW_GROUP_BYTES))
        assert present(place)
        raise RuntimeError("the executor's disk is full")

    with pytest.raises(RuntimeError):
        writer(place).write_task(rows(), BatchKey("q", 0), "0-0")
    assert not present(place)


def test_what_others_wrote_for_a_failed_batch_is_removed(place: Place) -> None:
    writer(place).abort([tried(place, 0), None], 0)
    assert not present(place)


def test_an_abort_after_a_commit_that_may_have_worked_removes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts when the commit fails; it may have worked all the same."""
    message = tried(place, 0)
    real = lake_table._commit

    def answer_lost(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        raise OSError("connection reset")

    monkeypatch.setattr(lake_table, "_commit", answer_lost)
    with pytest.raises(OSError, match="reset"):
        writer(place).commit([message], 0)
    writer(place).abort([message], 0)
    assert offsets(place) == list(range(10))


def test_files_are_written_together_every_few_batches(place: Place) -> None:
    for number in range(4):
        rows = range(number * 10, number * 10 + 10)
        writer(place, compactEvery="4").commit([tried(place, number, rows=rows)], number)
    assert len(opened(place).file_uris()) == 1
    assert offsets(place) == list(range(40))


def test_upkeep_never_fails_a_batch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("runnel.pipelines.lake.upkeep.compact", broken)
    writer(place, compactEvery="1").commit([tried(place, 0)], 0)
    assert offsets(place) == list(range(10))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"path": ""}, BadOption), ({"path": "x", "fileSize": "much"}, BadOption),
        ({"path": "x", "sise": "1"}, UnknownOption), ({"path": "x", "vacuumAfter": "10m"}, BadOption),
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        SinkOptions.of(options)


def test_options_of_the_object_store_are_handed_on() -> None:
    options = SinkOptions.of({"path": "s3://b/lake/", "storage.AWS_REGION": "eu-1"})
    assert options.place == Place("s3://b/lake", {"AWS_REGION": "eu-1"})


def test_a_lake_is_added_to() -> None:
    with pytest.raises(BadOption, match="append"):
        LakeFormat({"path": "x"}).streamWriter(SCHEMA, overwrite=True)


def test_rows_must_say_where_they_were(place: Place) -> None:
    with pytest.raises(BadOption, match="offset"):
        LakeWriter(SinkOptions.of({"path": place.path}), StructType([each for each in SCHEMA if each.name != "offset"]))
