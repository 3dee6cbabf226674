"""What a view says about a cluster's health."""

from tests.client.views import view

from runnel.client.health import Share, health_of
from runnel.client.metadata import TopicPartition

A0, A1, A2 = (TopicPartition("a", n) for n in range(3))


def test_a_cluster_that_lacks_nothing() -> None:
    health = health_of(view([1, 2, 3], {"a": [(1, [1, 2, 3], [1, 2, 3]), (2, [2, 3, 1], [3, 2, 1])]}), minimum={"a": 2})
    assert health.well
    assert health.partitions == 2
    assert health.shares == {1: Share(1, 2, 0, 1), 2: Share(1, 2, 0, 1), 3: Share(0, 2, 0, 0)}
    assert (health.under_replicated, health.at_min, health.displaced) == ((), (), ())


def test_each_lack_has_a_name() -> None:
    gone = view([2, 3], {"a": [(2, [1, 2, 3], [2, 3]), (3, [2, 3, 1], [3]), (-1, [1], [1])]})
    health = health_of(gone, minimum={"a": 2})
    assert not health.well
    assert health.under_replicated == (A0, A1)
    assert health.offline == (A2,)
    assert health.under_min == (A1,)
    assert health.at_min == (A0,)
    assert health.shares[1] == Share(0, 3, 2, 2)


def test_a_preferred_leader_that_is_not_in_sync_is_not_displaced() -> None:
    health = health_of(view([1, 2], {"a": [(2, [1, 2], [2]), (2, [1, 2], [1, 2])]}))
    assert health.displaced == (A1,)


def test_replicas_that_are_being_added_are_not_missed() -> None:
    moving = view([1, 2, 3], {"a": [(1, [1, 2, 3], [1, 2])]})
    assert health_of(moving).under_replicated == (A0,)
    assert health_of(moving, adding={A0: (3,)}).under_replicated == ()


def test_a_topic_with_fewer_replicas_than_the_minimum_needs_all_of_them() -> None:
    health = health_of(view([1], {"a": [(1, [1], [1])]}), minimum={"a": 2})
    assert (health.under_min, health.at_min) == ((), ())
