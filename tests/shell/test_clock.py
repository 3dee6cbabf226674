"""The bodies of Clock and Rng: the machine's, and those that a test controls."""

import pytest

from runnel.model.seams import Clock, Rng
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.clock import ManualClock, SeededRng


def test_the_monotonic_clock_of_the_machine_never_goes_back() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic_ms() for _ in range(1000)]
    assert readings == sorted(readings)


def test_the_wall_clock_counts_milliseconds_since_1970() -> None:
    year_2020_ms, year_2100_ms = 1_577_836_800_000, 4_102_444_800_000
    assert year_2020_ms < SystemClock().wall_ms() < year_2100_ms


def test_a_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock()
    begin = clock.wall_ms()
    clock.advance(250)
    assert (clock.monotonic_ms(), clock.wall_ms() - begin) == (250, 250)
    clock.jump_wall(-1_000)
    assert (clock.monotonic_ms(), clock.wall_ms() - begin) == (250, -750)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


@pytest.mark.parametrize("rng", [SystemRng(), SeededRng(1)])
def test_chance_stays_in_its_bounds(rng: Rng) -> None:
    assert {rng.below(3) for _ in range(200)} == {0, 1, 2}
    assert len(rng.token(16)) == 16
    assert rng.token(16) != rng.token(16)


def test_a_seed_repeats_its_numbers() -> None:
    first, second, other = SeededRng(7), SeededRng(7), SeededRng(8)
    numbers = [first.below(1000) for _ in range(20)]
    assert numbers == [second.below(1000) for _ in range(20)]
    assert numbers != [other.below(1000) for _ in range(20)]
    assert first.token(8) == second.token(8)
