"""`runnel pipeline lake`: upkeep from the command line, without Spark."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.pipelines.lake.rows import TABLE
from tests.pipelines.lake.test_table import offsets, written
from tests.pipelines.lake.test_upkeep import age

from runnel.cli.pipeline_lake import lake
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.table import BatchKey, commit, opened


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.of(str(tmp_path / "lake"))
    for number in range(3):
        key = BatchKey("q", number)
        commit(place, key, TABLE, [written(place, key, range(number * 10, number * 10 + 10))])
    return place


def ran(*words: str) -> Result:
    result = CliRunner().invoke(lake, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_show(place: Place) -> None:
    assert "cars" in ran("show", place.path).stdout
    told = json.loads(ran("show", place.path, "--json").stdout)
    (topic,) = told["topics"]
    assert (topic["topic"], topic["rows"], topic["files"]) == ("cars", 30, 3)


def test_compact_and_vacuum(place: Place) -> None:
    """What was replaced just now stays, for readers of earlier versions; what nothing ever named goes."""
    assert "3 files are 1 now" in ran("compact", place.path).stderr
    stray = written(place, BatchKey("dead", 0), range(3))
    age(place, 100)
    assert ran("vacuum", place.path, "--after", "2h", "-n").stdout.strip().endswith(stray.name)
    assert not place.lacking([stray.name])
    assert "1 file removed" in ran("vacuum", place.path, "--after", "2h").stderr
    assert place.lacking([stray.name])
    assert offsets(place) == list(range(30))
    assert offsets(place, opened(place).version() - 4) == list(range(20))
