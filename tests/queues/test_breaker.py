"""The circuit breaker: it opens when most deliveries fail, lets a few through after a pause, and decides again."""

from typing import Any

from tests.queues.rig import Rig

from runnel.queues.breaker import PROBES, SAMPLE


def rig_of(**more: Any) -> Rig:
    return Rig(
        end=10_000, breaker_percent=50, breaker_window_ms=10_000, breaker_pause_ms=30_000, attempts_max=0, **more
    )


def fail(rig: Rig, count: int) -> None:
    for offset, attempt in rig.lease("a", count):
        rig.release(offset, attempt=attempt, delay_ms=1)


def succeed(rig: Rig, count: int) -> None:
    for offset, attempt in rig.lease("a", count):
        rig.accept(offset, attempt=attempt)


def opened(**more: Any) -> Rig:
    rig = rig_of(**more)
    fail(rig, SAMPLE)
    assert rig.describe().breaker == "open"
    return rig


def test_nothing_is_delivered_while_it_is_open() -> None:
    rig = opened()
    assert rig.wants() == []
    rig.pass_time(29_000)
    assert rig.wants() == []
    assert rig.available == 0
    rig.pass_time(1_100)
    assert rig.available == 1
    assert rig.wants() != []


def test_a_few_failures_say_nothing() -> None:
    rig = rig_of()
    fail(rig, SAMPLE - 1)
    assert rig.describe().breaker == "closed"


def test_it_is_the_share_that_counts() -> None:
    rig = rig_of()
    succeed(rig, SAMPLE + 1)
    fail(rig, SAMPLE)
    assert rig.describe().breaker == "closed"
    fail(rig, 1)
    assert rig.describe().breaker == "open"


def test_old_failures_are_forgotten() -> None:
    rig = rig_of()
    fail(rig, SAMPLE - 1)
    rig.pass_time(11_000)
    fail(rig, SAMPLE - 1)
    assert rig.describe().breaker == "closed"


def test_after_the_pause_a_trickle_passes_and_decides() -> None:
    rig = opened()
    rig.pass_time(30_000)
    got = rig.lease("a", 100)
    assert len(got) == PROBES
    assert rig.wants() == []
    assert rig.describe().breaker == "half-open"
    for offset, attempt in got:
        rig.accept(offset, attempt=attempt)
    assert rig.describe().breaker == "closed"
    assert rig.available == 1
    assert len(rig.lease("a", 100)) == 100


def test_a_trickle_that_fails_opens_it_again() -> None:
    rig = opened()
    rig.pass_time(30_000)
    fail(rig, 100)
    assert rig.describe().breaker == "open"
    assert rig.wants() == []
    rig.pass_time(30_000)
    succeed(rig, 100)
    assert rig.describe().breaker == "closed"


def test_a_trickle_that_ends_with_its_connection_is_sent_again() -> None:
    rig = opened()
    rig.pass_time(30_000)
    assert len(rig.lease("a", 100, lease_ms=0)) == PROBES
    rig.gone("a")
    assert rig.describe().breaker == "half-open"
    assert len(rig.lease("b", 100)) == PROBES


def test_leases_that_run_out_are_failures() -> None:
    rig = rig_of(lease_ms=1_000, retry_backoff_ms=1)
    rig.lease("a", SAMPLE)
    rig.pass_time(1_100)
    assert rig.describe().breaker == "open"


def test_it_is_off_unless_asked_for() -> None:
    rig = Rig(end=1_000, attempts_max=0)
    fail(rig, 10 * SAMPLE)
    assert rig.describe().breaker == "closed"
    assert rig.wants() != []
