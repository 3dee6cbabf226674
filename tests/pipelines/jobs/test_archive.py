"""What an archive is asked for, and where it begins; what needs no Spark."""

from pathlib import Path

import pytest

from runnel.client.metadata import TopicPartition
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.errors import BadOption, DataLoss
from runnel.pipelines.jobs.archive import (
    EARLIEST,
    ArchiveConf,
    _begun,
    behind,
    check_names,
    checkpoint_in,
    sink_options,
    source_options,
)  # fmt: skip
from runnel.pipelines.lake.sink import SinkOptions

STREAM = StreamConf("/checkpoint", "b:1")
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_job_without_a_checkpoint_goes_on_behind_what_the_lake_has() -> None:
    assert behind({ZERO: 9}, {ZERO: 20, ONE: 5}) == {ZERO: 10, ONE: EARLIEST}
    assert behind({ZERO: 9}, {ZERO: 10}) == {ZERO: 10}, "all of it is there"


def test_a_topic_that_was_created_anew_is_refused() -> None:
    """Its offsets begin again: what is behind those of the lake never comes."""
    with pytest.raises(DataLoss, match="another lake"):
        behind({ZERO: 9}, {ZERO: 9})


def test_partitions_that_are_not_archived_are_no_matter() -> None:
    assert behind({ONE: 100}, {ZERO: 5}) == {ZERO: EARLIEST}


def test_a_checkpoint_is_begun_when_it_says_where_a_batch_ends(tmp_path: Path) -> None:
    assert not _begun(str(tmp_path))
    (tmp_path / "offsets").mkdir()
    assert not _begun(str(tmp_path))
    (tmp_path / "offsets" / "0").touch()
    assert _begun(str(tmp_path))
    assert _begun(f"file://{tmp_path}")


def test_topics_or_a_pattern() -> None:
    by_name = source_options(ArchiveConf(STREAM, "lake", ("a", "b")))
    assert by_name["subscribe"] == "a,b"
    assert by_name["group.id"] == "archive-lake"
    by_pattern = source_options(ArchiveConf(STREAM, "/x/lake/", pattern="shop-.*", exclude="shop-x"))
    assert (by_pattern["subscribePattern"], by_pattern["excludePattern"]) == ("shop-.*", "shop-x")
    for conf in (ArchiveConf(STREAM, "lake"), ArchiveConf(STREAM, "lake", ("a",), pattern="b")):
        with pytest.raises(BadOption, match="one of them"):
            source_options(conf)


def test_the_sink_understands_what_the_job_hands_on(tmp_path: Path) -> None:
    conf = ArchiveConf(
        STREAM, str(tmp_path), file_bytes=1000, compact_every=5, vacuum_after_h=48, storage={"AWS_REGION": "x"}
    )
    options = SinkOptions.of(sink_options(conf))
    assert (options.file_bytes, options.compact_every, options.vacuum_after_h) == (1000, 5, 48)
    assert options.place.storage == {"AWS_REGION": "x"}


@pytest.mark.parametrize("names", [["topic"], ["Offset"], ["_error"], ["date"], ["a", "A"]])
def test_fields_do_not_hide_columns(names: list[str]) -> None:
    with pytest.raises(BadOption, match="prefix"):
        check_names(names)


def test_the_checkpoint_is_in_the_lake_below_a_name_that_readers_pass_over(tmp_path: Path) -> None:
    assert checkpoint_in(f"{tmp_path}/") == f"{tmp_path}/_archive"
