"""How a replay is cut into batches, kept, paced and asked for; what needs no Spark."""

from pathlib import Path

import pytest
from tests.pipelines.lake.rows import TABLE, batch

from runnel.pipelines.errors import BadOption
from runnel.pipelines.jobs.replay import Pace, ReplayConf, check, chosen_by, condition, target_of
from runnel.pipelines.jobs.replay_plan import (
    GRANULES_MAX,
    Batch,
    Granule,
    Piece,
    Plan,
    PlanFile,
    by_time,
    cut,
    granule_bits,
    id_of,
)  # fmt: skip
from runnel.pipelines.lake.files import FileCutter
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.predicate import Column, skippers
from runnel.pipelines.lake.table import BatchKey, commit

BITS = 3


def granules(
    partition: int, counts: list[int], *, at_ms: int = 0, step_ms: int = 10, topic: str = "t"
) -> list[Granule]:
    return [Granule(topic, partition, n, rows, at_ms + n * step_ms) for n, rows in enumerate(counts)]


# --- batches
def test_every_row_is_in_one_batch() -> None:
    all_ = granules(0, [8] * 10) + granules(1, [8] * 10, at_ms=5)
    batches = cut(all_, BITS, 24)
    assert sum(each.rows for each in batches) == 160
    covered = [(p.partition, offset) for b in batches for p in b.pieces for offset in range(p.first, p.end)]
    assert sorted(covered) == [(p, offset) for p in (0, 1) for offset in range(80)]


def test_batches_of_a_partition_follow_each_other_by_offset() -> None:
    """Even where times go back."""
    odd = [Granule("t", 0, n, 8, at_ms) for n, at_ms in enumerate([50, 10, 90, 20])]
    batches = cut(odd + granules(1, [8, 8]), BITS, 8)
    firsts = [piece.first for each in batches for piece in each.pieces if piece.partition == 0]
    assert firsts == [0, 8, 16, 24]


def test_partitions_go_on_together_in_time() -> None:
    order = [(g.partition, g.number) for g in by_time(granules(0, [1] * 3, at_ms=5) + granules(1, [1] * 3))]
    assert order == [(1, 0), (0, 0), (1, 1), (0, 1), (1, 2), (0, 2)]


def test_batches_are_as_long_as_they_may_be_and_no_longer() -> None:
    assert [each.rows for each in cut(granules(0, [8, 8, 8, 8, 3]), BITS, 16)] == [16, 16, 3]
    assert [each.rows for each in cut(granules(0, [8, 8]), BITS, 5)] == [8, 8], "a granule stays whole"


def test_nothing_makes_no_batch() -> None:
    assert cut([], BITS, 10) == []


@pytest.mark.parametrize(("rows", "batch_rows"), [(10, 100), (10**9, 500_000), (10**9, 10), (0, 1)])
def test_granules_are_few_and_small(rows: int, batch_rows: int) -> None:
    size = 1 << granule_bits(rows, batch_rows)
    assert rows / size <= GRANULES_MAX
    assert size == 1 or size <= max(batch_rows / 8, 2 * rows / GRANULES_MAX)


# --- the plan
def plan(name: str = "r", rows: int = 5) -> Plan:
    return Plan(name, {"lake": "x"}, 3, (Batch(rows, (Piece("t", 0, 0, 8),)), Batch(1, (Piece("t", 1, 8, 16),))))


def test_a_plan_is_kept(tmp_path: Path) -> None:
    kept = PlanFile(str(tmp_path / "replay"))
    assert kept.load({"lake": "x"}, "r") is None
    kept.save(plan())
    assert PlanFile(str(tmp_path / "replay")).load({"lake": "x"}, "r") == plan()
    assert kept.done == 0
    kept.note(1)
    assert PlanFile(str(tmp_path / "replay")).done == 1


@pytest.mark.parametrize(("asked", "name"), [({"lake": "y"}, "r"), ({"lake": "x"}, "other")])
def test_a_plan_of_something_else_is_refused(tmp_path: Path, asked: dict[str, str], name: str) -> None:
    kept = PlanFile(str(tmp_path))
    kept.save(plan())
    with pytest.raises(BadOption, match="another replay"):
        kept.load(asked, name)


def test_another_plan_has_another_sink() -> None:
    """Its batches have the same numbers: in the same sink they would be taken for published."""
    assert plan().sink == plan().sink
    assert len({plan().sink, plan(rows=6).sink, plan("s").sink}) == 3


def test_the_same_question_has_the_same_name() -> None:
    one = ReplayConf("lake", "t", rate=5, brokers="a:1", dry_run=True)
    assert id_of(one.asked()) == id_of(ReplayConf("lake", "t").asked())
    assert id_of(one.asked()) != id_of(ReplayConf("lake", "t", key="k").asked())


# --- the slice
def test_the_slice_as_sql() -> None:
    conf = ReplayConf(
        "lake", "t", topics=("b", "a"), partitions=(1, 2), since_ms=1_000, until_ms=2_500, key="k'", where="x = 1 or y"
    )
    assert condition(conf) == (
        "topic IN ('a', 'b') AND partition IN (1, 2) AND timestamp >= '1970-01-01T00:00:01.000000Z' "
        "AND timestamp < '1970-01-01T00:00:02.500000Z' AND key = X'6b27' AND (x = 1 or y)"
    )
    assert condition(ReplayConf("lake", "t")) is None


def test_the_slice_skips_files() -> None:
    columns = [Column("topic", "text"), Column("partition", "number"), Column("timestamp", "time")]
    whole = condition(ReplayConf("lake", "t", topics=("a",), partitions=(1,), since_ms=0, key="k"))
    assert len(skippers(str(whole), columns, utc=False)) == 3


@pytest.mark.parametrize(
    "conf",
    [
        ReplayConf("lake"), ReplayConf("lake", "a'b"), ReplayConf("lake", "t", topics=("x' or 1",)),
        ReplayConf("lake", "t", by="hash"), ReplayConf("lake", "t", rate=0), ReplayConf("lake", targets={"a": "b c"}),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(conf: ReplayConf) -> None:
    with pytest.raises(BadOption):
        check(conf)


# --- targets
def test_topics_go_where_the_map_says() -> None:
    conf = ReplayConf("lake", "rest", targets={"a": "b"})
    assert [target_of(conf, topic) for topic in ("a", "c")] == ["b", "rest"]
    with pytest.raises(BadOption, match="where messages of this topic go"):
        target_of(ReplayConf("lake", targets={"a": "b"}), "c")


def test_partitions_are_kept_where_there_are_enough(tmp_path: Path) -> None:
    place = Place.of(str(tmp_path))
    files = FileCutter(place, TABLE, "x", now_ms=1)
    files.add(batch(range(3), partition=2))
    commit(place, BatchKey("q", 0), TABLE, files.finish())
    conf = ReplayConf(str(tmp_path), "t")
    assert chosen_by(conf, {"t": 3}) == "partition"
    assert chosen_by(conf, {"t": 2}) == "key"
    assert chosen_by(ReplayConf(str(tmp_path), "t", topics=("others",)), {"t": 1}) == "partition"
    with pytest.raises(BadOption, match="use key"):
        chosen_by(ReplayConf(str(tmp_path), "t", by="partition"), {"t": 2})


# --- pace
def test_no_more_is_written_than_the_rate_allows() -> None:
    now = [100.0]

    def sleep(span: float) -> None:
        now[0] += span

    pace = Pace(10, lambda: now[0], sleep)
    begun = []
    for rows in (50, 50, 20, 10):
        pace.wait()
        begun.append(now[0])
        now[0] += 1  # the batch itself takes time
        pace.passed(rows)
    assert begun == [100.0, 105.0, 110.0, 112.0]


def test_a_slow_batch_is_not_made_up_for() -> None:
    now = [0.0]
    pace = Pace(10, lambda: now[0], lambda span: now.__setitem__(0, now[0] + span))
    pace.wait()
    now[0] += 60
    pace.passed(10)
    pace.wait()
    pace.passed(10)
    pace.wait()
    assert now[0] == 61.0


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None, lambda: 0.0, lambda _: pytest.fail("waited"))
    pace.wait()
    pace.passed(10**9)
    pace.wait()
