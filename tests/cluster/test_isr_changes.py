"""What leaders say about their replicas: heard from who leads, of the partition as it is, in the lives they saw."""

from uuid import UUID

import pytest
from tests.cluster.rows import T, after, ids, image_of, row, shown

from runnel.cluster.image import Image, Partition
from runnel.cluster.isr_changes import IsrChange, alter_partitions
from runnel.model.errors import (
    FencedEpoch,
    IneligibleReplica,
    InvalidRequest,
    NotController,
    RunnelError,
    StaleBrokerEpoch,
    StalePartitionEpoch,
    UnknownTopic,
    UnknownTopicId,
)
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.model.topic_config import TopicConfig

BASE = TopicConfig()
ONE, TWO, THREE = ids("123")
TWO_NEEDED = {"min.insync.replicas": "2"}
WHERE = PartitionKey(T, 0)


def change(isr: str, *, leader_epoch: int = 5, epoch: int = 9, lives: dict[int, int] | None = None) -> IsrChange:
    members = tuple((broker, Epoch((lives or {}).get(broker, 10 * broker))) for broker in ids(isr))
    return IsrChange(WHERE, Epoch(leader_epoch), Epoch(epoch), members)


def told(image: Image, asked: IsrChange, broker: BrokerId = ONE, life: int = 10) -> Partition | RunnelError:
    decision = alter_partitions(image, broker, Epoch(life), [asked], BASE)
    (result,) = decision.results
    if isinstance(result, RunnelError):
        assert not decision.delta
    else:
        assert after(image, decision.delta) == result
    return result


@pytest.mark.parametrize(
    ("before", "asked", "expected"),
    [
        ("1|123|", "12", "1|12|"),
        ("1|12|", "123", "1|123|"),
        ("1|12|", "1", "1|1|2"),  # below the minimum who leaves is eligible
        ("1|123|", "1", "1|1|23"),
        ("1|1|2", "12", "1|12|"),
        ("1|1|2", "13", "1|13|"),  # and forgotten once the minimum is reached without it
        ("1|1|2", "1", "1|1|2"),
        # a leader that leaves itself out has resigned
        ("1|123|", "23", "2|23|"),
        ("1|12|", "2", "2|2|"),
        ("1|12|", "", "2|2|"),  # whom it left out, below the minimum, has all that was committed
        ("1|1|", "", "-||"),
        ("1|1|2", "", "2|2|"),
    ],
)
def test_who_is_in_sync(before: str, asked: str, expected: str) -> None:
    image = image_of("1 2 3", row(before), config=TWO_NEEDED)
    found = told(image, change(asked))
    assert isinstance(found, Partition)
    assert shown(found) == expected
    assert found.epoch == 10  # also if nothing else changes: an earlier try can't be done any more
    assert found.leader_epoch == (5 if expected[0] == "1" else 6)


@pytest.mark.parametrize(
    ("asked", "broker", "expected"),
    [
        (change("12", leader_epoch=4), ONE, FencedEpoch),
        (change("12"), TWO, FencedEpoch),
        (change("12", epoch=8), ONE, StalePartitionEpoch),
        (change("12", leader_epoch=6), ONE, NotController),
        (change("12", epoch=10), ONE, NotController),
        (change("14"), ONE, InvalidRequest),
        (change("112"), ONE, InvalidRequest),
        (change("123", lives={3: 29}), ONE, IneligibleReplica),  # it was started again since it caught up (KIP-903)
        (change("123", lives={3: -1}), ONE, IneligibleReplica),
        (change("12")._replace(key=PartitionKey(T, 1)), ONE, UnknownTopic),
        (change("12")._replace(key=PartitionKey(TopicId(UUID(int=9)), 0)), ONE, UnknownTopicId),
    ],
)
def test_what_is_refused(asked: IsrChange, broker: BrokerId, expected: type[RunnelError]) -> None:
    image = image_of("1 2 3", row("1|12|"), config=TWO_NEEDED)
    assert type(told(image, asked, broker, 10 * broker)) is expected


@pytest.mark.parametrize("alive", ["1 2", "1 2 3*", "1 2 3+", "1 2 3!"])
def test_who_does_not_serve_is_not_added(alive: str) -> None:
    assert type(told(image_of(alive, row("1|12|")), change("123"))) is IneligibleReplica


def test_who_stays_need_not_be_named_with_its_life() -> None:
    found = told(image_of("1 2 3", row("1|12|")), change("123", lives={1: -1, 2: -1}))
    assert isinstance(found, Partition)


def test_a_member_that_is_gone_by_now_does_not_stay_by_the_leaders_word() -> None:
    found = told(image_of("1 3", row("1|12|"), config=TWO_NEEDED), change("12"))
    assert isinstance(found, Partition)
    assert shown(found) == "1|1|2"


def test_an_earlier_life_is_not_heard() -> None:
    image = image_of("1 2 3", row("1|12|"))
    for broker, life in ((ONE, 9), (ONE, 11), (BrokerId(4), 40)):
        with pytest.raises(StaleBrokerEpoch):
            alter_partitions(image, broker, Epoch(life), [change("1")], BASE)


def test_who_stops_still_keeps_its_isr() -> None:
    found = told(image_of("1! 3", row("1|1|")), change("13"))
    assert isinstance(found, Partition)
    assert shown(found) == "3|3|"  # and then another can lead


def test_many_partitions_in_one_change() -> None:
    rows = [row("1|123|") for _ in range(4)]
    image = image_of("1 2 3", *rows)
    changes = [change("12")._replace(key=PartitionKey(T, number)) for number in (0, 2)]
    stale = change("12", epoch=1)._replace(key=PartitionKey(T, 3))
    twice = change("1")._replace(key=PartitionKey(T, 0))
    decision = alter_partitions(image, ONE, Epoch(10), [*changes, stale, twice], BASE)
    assert [type(result) for result in decision.results] == [
        Partition,
        Partition,
        StalePartitionEpoch,
        StalePartitionEpoch,
    ]
    found = image.apply(decision.delta).topic_named("t")
    assert [shown(each) for each in found.partitions] == ["1|12|", "1|123|", "1|12|", "1|123|"]
    assert found.version == 4


# --- reassignments end here


@pytest.mark.parametrize(
    ("before", "replicas", "asked", "expected", "now"),
    [
        ("1|12||34|12", "3412", "123", "1|123||34|12", "3412"),
        ("1|123||34|12", "3412", "1234", "3|34|", "34"),
        ("1|123||4|1", "2341", "1234", "2|234|", "234"),
        ("1|12||3|", "123", "123", "1|123|", "123"),
    ],
)
def test_a_move_ends_when_everyone_it_is_meant_for_is_in_sync(
    before: str, replicas: str, asked: str, expected: str, now: str
) -> None:
    found = told(image_of("1 2 3 4", row(before, replicas)), change(asked))
    assert isinstance(found, Partition)
    assert (shown(found), found.replicas) == (expected, ids(now))
