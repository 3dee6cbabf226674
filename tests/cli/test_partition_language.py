"""How partitions are named."""

from pathlib import Path

import click
import pytest
from tests.client.views import view

from runnel.cli.partition_language import assignments, named, parse, placed, read_plan
from runnel.client.metadata import TopicPartition

VIEW = view([1], {"a": [(1, [1], [1]), (1, [1], [1])], "b": [(1, [1], [1])]})


def test_a_topic_stands_for_all_its_partitions() -> None:
    assert named(["a", "b/0"], VIEW) == [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    assert parse("a/0") == TopicPartition("a", 0)
    assert [parse(text) for text in ("a", "a/", "/0", "a/x")] == [None, None, None, None]


@pytest.mark.parametrize("text", ["c", "c/0", "a/2"])
def test_what_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(click.ClickException, match="there is no"):
        named([text], VIEW)


def test_replicas_are_written_behind_a_sign() -> None:
    assert assignments(["a/0=1,2", "a/1=3"]) == {TopicPartition("a", 0): (1, 2), TopicPartition("a", 1): (3,)}
    for wrong in ("a/0", "a=1", "a/0=", "a/0=x"):
        with pytest.raises(click.UsageError):
            assignments([wrong])


@pytest.mark.parametrize(
    ("text", "why"),
    [("a/0=1,7", "7: the cluster has brokers 1, 3"), ("a/0=1,1", "each once"), ("a/2=1", "no partition a/2")],
)
def test_what_no_replica_can_lie_on_is_refused_before_anything_is_planned(text: str, why: str) -> None:
    with pytest.raises(click.ClickException, match=why):
        placed(assignments([text]), VIEW, [1, 3])


def test_a_broker_that_is_away_may_keep_what_it_has() -> None:
    targets = assignments(["a/0=3,1"])
    assert placed(targets, VIEW, [2, 3]) == targets


def test_a_plan_without_any_broker_is_refused() -> None:
    with pytest.raises(click.UsageError, match="at least one broker"):
        placed({TopicPartition("a", 0): ()}, VIEW, [1])


def test_a_plan_of_kafkas_tools_is_read(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        '{"version":1,"partitions":[{"topic":"a","partition":1,"replicas":[2,3],"log_dirs":["any","any"]}]}'
    )
    assert read_plan(plan) == {TopicPartition("a", 1): (2, 3)}
    plan.write_text("no json")
    with pytest.raises(click.UsageError, match="can't be read as a plan"):
        read_plan(plan)
