"""Single active consumer."""

from typing import Any

from tests.queues.rig import Rig


def rig_of(**more: Any) -> Rig:
    return Rig(consumers="single", lease_ms=10_000, **more)


def test_one_consumer_has_the_partition_while_it_asks() -> None:
    rig = rig_of()
    assert len(rig.lease("a", 2)) == 2
    assert rig.lease("b", 2) == []
    rig.accept(0, 1)
    for _ in range(10):
        rig.pass_time(15_000)
        assert rig.wants("b") == []
        assert rig.wants("a") != []
    assert rig.describe().holder == "a"


def test_the_place_falls_free_when_its_holder_is_silent_and_has_nothing() -> None:
    rig = rig_of()
    rig.lease("a", 1)
    rig.accept(0)
    assert rig.wants("b") == []
    rig.pass_time(20_001)
    assert rig.available == 1
    assert rig.lease("b", 1) == [(1, 1)]
    assert rig.wants("a") == []


def test_who_has_leases_keeps_the_place() -> None:
    rig = rig_of()
    rig.lease("a", 1, lease_ms=60_000)
    rig.lease("a", 1, lease_ms=1_000)
    assert rig.wants("b") == []
    rig.pass_time(50_000)
    assert rig.wants("b") == []
    rig.accept(0)
    assert rig.wants("b") != []


def test_the_place_ends_with_the_connection() -> None:
    rig = rig_of()
    rig.lease("a", 2, lease_ms=0)
    rig.accept(0, 1)
    rig.pass_time(10_000_000)
    assert rig.wants("b") == []
    rig.gone("c")
    assert rig.wants("b") == []
    rig.gone("a")
    assert rig.available == 1
    assert rig.lease("b", 1) == [(2, 1)]


def test_a_new_leader_knows_the_holder_and_gives_it_time() -> None:
    rig = rig_of()
    rig.lease("a", 1)
    rig.accept(0)
    rig.wake()
    assert rig.wants("b") == []
    assert rig.lease("a", 1) == [(1, 1)]
    rig.accept(1)
    rig.wake()
    rig.pass_time(20_001)
    assert rig.wants("b") != []


def test_many_consumers_share_where_nobody_asked_for_one() -> None:
    rig = Rig()
    assert len(rig.lease("a", 1)) == 1
    assert len(rig.lease("b", 1)) == 1
    assert rig.describe().holder == ""
