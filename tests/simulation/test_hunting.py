"""Mutants are patches of code that moves on: each has to fit it, and a hunt has to tell who survives."""

import pytest
from tests.simulation import core_mutants, mutants, transaction_mutants
from tests.simulation.hunting import Mutant, Pack, hunt

from runnel.testing.core.simulation import run
from runnel.testing.simulation import Simulation

PACKS = (mutants.PACK, transaction_mutants.PACK, core_mutants.PACK)


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_every_mutant_fits_the_code(pack: Pack) -> None:
    names = [mutant.name for mutant in pack.mutants]
    assert len(names) == len(set(names))
    for mutant in pack.mutants:
        with mutant.switched_off():
            assert all(getattr(target, name) is not None for target, name, _ in mutant.patches)


def test_what_switches_nothing_off_survives() -> None:
    assert hunt(Mutant("none", "every rule is on"), run, range(2)) is None


def test_what_was_switched_off_is_on_again() -> None:
    before = Simulation.run
    with Mutant("off", "a simulation runs", ((Simulation, "run", len),)).switched_off():
        assert Simulation.run is not before
    assert Simulation.run is before
