"""Moving replicas: what is allowed, what is under way, how it ends, and how it is taken back."""

import pytest
from tests.cluster.rows import after, ids, image_of, row, shown

from runnel.cluster.elections import settle
from runnel.cluster.image import Delta, Image, Partition
from runnel.cluster.reassignment import Move, original, reassign
from runnel.model.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    RunnelError,
    UnknownTopic,
)
from runnel.model.topic_config import TopicConfig

BASE = TopicConfig()
ALIVE = "1 2 3 4 5"


def moved(image: Image, target: str | None, **how: bool) -> Partition:
    decision = reassign(image, [Move("t", 0, None if target is None else ids(target))], BASE, **how)
    (result,) = decision.results
    if isinstance(result, RunnelError):
        assert not decision.delta
        raise result
    assert after(image, decision.delta) == result
    return result


@pytest.mark.parametrize(
    ("before", "replicas", "target", "expected", "now"),
    [
        ("1|123|", "123", "145", "1|123||45|23", "14523"),
        ("1|123|", "123", "456", None, ""),  # 6 is not registered
        ("1|1|", "1", "12", "1|1||2|", "12"),
        ("1|123|", "123", "321", "1|123|", "321"),  # another preferred leader, nothing to move
        ("1|123|", "123", "123", "1|123|", "123"),
        ("1|123|", "123", "23", "2|23|", "23"),  # all are in sync: done at once, and another leads
        ("1|12|", "123", "13", "1|12|||2", "132"),
        # one under way is replaced: what was not there before goes at once
        ("1|123||4|3", "1243", "125", "1|123||5|3", "1253"),
        ("1|1234||45|23", "14523", "152", "1|123||5|3", "1523"),
        ("4|1234||45|23", "14523", "152", "1|123||5|3", "1523"),
        ("1|123||4|3", "1243", "123", "1|123|", "123"),  # back to where it was, by naming it
    ],
)
def test_what_a_move_begins_with(before: str, replicas: str, target: str, expected: str | None, now: str) -> None:
    image = image_of(ALIVE, row(before, replicas))
    if expected is None:
        with pytest.raises(InvalidReplicaAssignment, match=r"\[6\] are not registered"):
            moved(image, target)
        return
    found = moved(image, target)
    assert (shown(found), found.replicas) == (expected, ids(now))
    assert found.epoch == (10 if found != row(before, replicas) else 9)
    assert set(found.isr) <= set(found.replicas)


@pytest.mark.parametrize(
    ("before", "replicas", "expected", "now"),
    [
        ("1|123||45|23", "14523", "1|123|", "123"),
        ("1|1234||45|23", "14523", "1|123|", "123"),
        ("4|1234||45|23", "14523", "1|123|", "123"),  # the leader is one of those who go
        ("1|12|||2", "132", "1|12|", "132"),
    ],
)
def test_a_move_is_taken_back(before: str, replicas: str, expected: str, now: str) -> None:
    found = moved(image_of(ALIVE, row(before, replicas)), None)
    assert (shown(found), found.replicas) == (expected, ids(now))


@pytest.mark.parametrize(
    ("before", "replicas", "target", "epoch"),
    [
        ("1|123|", "123", "12", 6),  # 3 goes: what it says under the old epoch must not count any more
        ("1|123||4|3", "1243", "123", 6),  # 4 goes, before it was in sync
        ("1|123|", "123", "1234", 5),  # nobody goes
        ("1|123|", "123", "124", 5),  # 3 will go later
    ],
)
def test_whoever_goes_ends_the_leader_epoch(before: str, replicas: str, target: str, epoch: int) -> None:
    """A broker that is late may still follow in the old epoch, and remove its data after it was added again."""
    found = moved(image_of(ALIVE, row(before, replicas)), target)
    assert (found.leader, found.leader_epoch) == (1, epoch)


def test_what_alone_is_in_sync_is_not_taken_back() -> None:
    image = image_of("4 5", row("4|4||45|123", "45123"))
    for target in (None, "123"):
        with pytest.raises(InvalidReplicaAssignment, match=r"only brokers \[4\] are in sync"):
            moved(image, target)


@pytest.mark.parametrize(
    ("target", "problem"),
    [("", InvalidReplicaAssignment), ("11", InvalidReplicaAssignment), ("12", None), ("16", InvalidReplicaAssignment)],
)
def test_targets_are_checked(target: str, problem: type[RunnelError] | None) -> None:
    image = image_of(ALIVE, row("1|123|"))
    if problem is None:
        moved(image, target)
    else:
        with pytest.raises(problem):
            moved(image, target)


def test_a_replica_that_is_there_may_be_away() -> None:
    image = image_of("1 2 4", row("1|12|"))  # 3 is down
    assert shown(moved(image, "134")) == "1|12||4|2"
    with pytest.raises(InvalidReplicaAssignment, match=r"brokers \[5\] are not registered: name some of 1, 2, 4"):
        moved(image, "135")


def test_the_number_of_replicas_may_be_kept() -> None:
    moving = row("1|123||4|3", "1243")
    for partition in (row("1|123|"), moving):
        image = image_of(ALIVE, partition)
        with pytest.raises(InvalidReplicationFactor, match="has 3 replicas, 2 were asked for"):
            moved(image, "12", factor_may_change=False)
        assert moved(image, "125", factor_may_change=False).replicas == ids("1253")
    assert original(moving) == ids("123")


def test_what_is_not_there_is_named_as_such() -> None:
    image = image_of(ALIVE, row("1|123|"))
    with pytest.raises(NoReassignmentInProgress):
        moved(image, None)
    decision = reassign(image, [Move("u", 0, ids("1")), Move("t", 1, ids("1")), Move("t", 0, ids("124"))], BASE)
    assert [type(result) for result in decision.results] == [UnknownTopic, UnknownTopic, Partition]


@pytest.mark.parametrize(
    ("alive", "expected", "now"),
    [
        ("1 2 4 5", "1|12||45|23", "14523"),  # one that would go is gone
        ("2 3 4 5", "2|23||45|23", "14523"),  # the leader is gone: who is in sync leads, though it will go
        ("1 2 3 5", "1|123||45|23", "14523"),  # one that comes is gone: it is waited for
    ],
)
def test_brokers_go_while_replicas_move(alive: str, expected: str, now: str) -> None:
    image = image_of(alive, row("1|123||45|23", "14523"))
    found = after(image, settle(image, BASE).delta)
    assert (shown(found), found.replicas) == (expected, ids(now))


def test_who_comes_leads_if_it_alone_is_left() -> None:
    image = image_of("4", row("1|124||45|23", "14523"))
    found = after(image, settle(image, BASE).delta)
    assert shown(found) == "4|4||45|23"
    assert not settle(image.apply(Delta()), BASE).unclean
