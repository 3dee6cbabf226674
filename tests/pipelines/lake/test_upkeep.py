"""Compaction changes no row; vacuum removes what nothing needs; neither stands in the way of a writer."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.lake.rows import GIVEN, TABLE
from tests.pipelines.lake.test_table import offsets, written

from runnel.pipelines.errors import BadOption
from runnel.pipelines.lake.columns import table_schema
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import chosen_files
from runnel.pipelines.lake.table import BatchKey, commit, named, opened
from runnel.pipelines.lake.upkeep import compact, summary, vacuum


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Five batches of ten rows."""
    place = Place.of(str(tmp_path / "lake"))
    for number in range(5):
        key = BatchKey("q", number)
        commit(place, key, TABLE, [written(place, key, range(number * 10, number * 10 + 10))])
    return place


def age(place: Place, hours: float) -> None:
    """As if all files had been written so long ago."""
    then = time.time() - hours * 3600
    for file in Path(place.path).rglob("*.parquet"):
        os.utime(file, (then, then))


def test_compaction_keeps_every_row(place: Place) -> None:
    assert compact(place).files_after == 1
    assert offsets(place) == list(range(50))
    assert pq.ParquetFile(opened(place).file_uris()[0]).metadata.row_group(0).column(0).compression == "ZSTD"


def test_what_was_is_still_there_after_a_compaction(place: Place) -> None:
    version = opened(place).version()
    compact(place)
    assert offsets(place, version) == list(range(50))
    assert offsets(place, version - 2) == list(range(30))


def test_batches_are_known_after_a_compaction(place: Place) -> None:
    compact(place)
    key = BatchKey("q", 4)
    assert not commit(place, key, TABLE, [written(place, key, range(40, 50), task="0-1")])


def test_compaction_tells_the_bounds_of_its_files(place: Place) -> None:
    key = BatchKey("q", 5)
    compact(place)
    commit(place, key, TABLE, [written(place, key, range(50, 60))])
    assert len(chosen_files(opened(place), "offset < 50")) == 1
    assert len(chosen_files(opened(place), "offset < 60")) == 2


def test_one_topic_alone(place: Place) -> None:
    assert compact(place, topic="others").files_after == 5


def test_vacuum_removes_what_nobody_named_and_keeps_what_the_table_has(place: Place) -> None:
    stray = written(place, BatchKey("dead", 3), range(3))
    compact(place)
    kept = named(opened(place))
    age(place, 200)
    vacuum(place, after_h=1)
    present = {str(file.relative_to(place.path)) for file in Path(place.path).rglob("topic=*/**/*.parquet")}
    assert stray.name not in present
    assert kept <= present
    assert offsets(place) == list(range(50))


def test_vacuum_leaves_what_a_task_may_be_writing(place: Place) -> None:
    fresh = written(place, BatchKey("q", 6), range(3))
    vacuum(place, after_h=1)
    assert not place.lacking([fresh.name])


def test_a_dry_run_removes_nothing(place: Place) -> None:
    stray = written(place, BatchKey("dead", 3), range(3))
    age(place, 200)
    assert any(stray.name in name for name in vacuum(place, after_h=1, dry_run=True))
    assert not place.lacking([stray.name])


def test_vacuum_without_any_delay_is_refused(place: Place) -> None:
    with pytest.raises(BadOption, match="1h or more"):
        vacuum(place, after_h=0)


def test_a_job_may_keep_its_checkpoint_in_the_lake(place: Place) -> None:
    kept = Path(place.path, "_archive", "offsets")
    kept.mkdir(parents=True)
    (kept / "0").write_text("v1")
    os.utime(kept / "0", (0, 0))
    vacuum(place, after_h=1)
    assert (kept / "0").exists()


def test_a_summary_from_the_log_alone(place: Place) -> None:
    (told,) = summary(place).topics
    assert (told.topic, told.rows, told.files, told.first_day) == ("cars", 50, 5, "2026-03-01")


def test_compaction_tells_no_bounds_of_floating_point(tmp_path: Path) -> None:
    """Not even now that it is deltalake which writes: a file with NaN must not be skipped."""
    place = Place.of(str(tmp_path / "other"))
    schema = table_schema(GIVEN.append(pa.field("speed", pa.float64())))
    for number in range(2):
        key = BatchKey("q", number)
        commit(place, key, schema, [written(place, key, range(number, number + 1), schema=schema)])
    compact(place)
    told = pa.table(opened(place).get_add_actions(flatten=True)).to_pylist()[0]
    assert told["max.offset"] == 1
    assert told.get("max.speed") is None
    assert told.get("min.value") is None
