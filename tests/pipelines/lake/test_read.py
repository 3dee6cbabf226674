"""Which files are read: those that may hold a row of interest, of one version."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.pipelines.lake.rows import DAY, TABLE, batch

from runnel.pipelines.lake.files import FileCutter
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import chosen_files, path_of, spark_address, spark_schema
from runnel.pipelines.lake.table import BatchKey, commit, opened


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Four batches: one for each day, ten offsets and one partition each, topics a and b in turn."""
    place = Place.of(str(tmp_path / "lake"))
    for number in range(4):
        key = BatchKey("q", number)
        files = FileCutter(place, TABLE, key.prefix, now_ms=1)
        day = DAY + timedelta(days=number)
        files.add(batch(range(number * 10, number * 10 + 10), topic="ab"[number % 2], partition=number, at=day))
        commit(place, key, TABLE, files.finish())
    return place


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (None, 4), ("offset >= 30", 1), ("offset > 39", 0), ("offset between 5 and 14", 2), ("topic = 'a'", 2),
        ("date = '2026-03-02'", 1), ("date >= '2026-03-02' and topic = 'b'", 2), ("partition in (0, 3)", 2),
        ("timestamp < '2026-03-02T12:00:00Z'", 1), ("timestamp <= '2026-03-02T12:00:00Z'", 2),
        ("length(value) > 3 and offset < 10", 1), ("length(value) > 3", 4), ("offset < 10 or partition = 3", 2),
    ],
)  # fmt: skip
def test_files_are_skipped_by_what_the_log_tells(place: Place, where: str | None, count: int) -> None:
    assert len(chosen_files(opened(place), where)) == count


def test_an_earlier_version_has_its_own_files(place: Place) -> None:
    version = opened(place).version()
    assert [len(chosen_files(opened(place, version - back), None)) for back in range(4)] == [4, 3, 2, 1]


def test_types_are_the_tables(place: Place) -> None:
    types = {field.name: field.dataType.simpleString() for field in spark_schema(opened(place))}
    assert types["topic"] == "string"
    assert types["date"] == "date"
    assert types["headers"] == "array<struct<key:string,value:binary>>"
    assert types["timestamp"] == "timestamp"


def test_the_addresses_of_files_begin_with_the_tables(place: Place) -> None:
    table = opened(place)
    assert all(file.startswith(path_of(table) + "/topic=") for file in chosen_files(table, None))


def test_addresses_for_spark() -> None:
    assert spark_address("s3://lake/x") == "s3a://lake/x"
    assert spark_address("gs://lake/x") == "gs://lake/x"
    assert spark_address("/a lake/x") == "file:///a lake/x"


def test_a_folder_may_have_a_name_with_spaces(tmp_path: Path) -> None:
    place = Place.of(str(tmp_path / "my lake 50%"))
    files = FileCutter(place, TABLE, "x", now_ms=1)
    files.add(batch(range(3)))
    commit(place, BatchKey("q", 0), TABLE, files.finish())
    table = opened(place)
    assert path_of(table) == place.path
    assert all(Path(file).exists() for file in chosen_files(table, None))


def test_reading_is_found_at_the_top_and_costs_nothing_until_it_is_used() -> None:
    """Spark imports the formats in every process that looks for one."""
    import subprocess
    import sys

    script = (
        "import sys, pyspark_runnel_lake\n"
        "assert not {'deltalake', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "from runnel.pipelines import read_lake\n"
        "from runnel.pipelines.lake import read_lake as same\n"
        "assert read_lake is same\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
