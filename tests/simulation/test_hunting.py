"""Mutants are patches of code that moves on: each has to fit it, and a hunt has to tell who survives."""

from dataclasses import replace
from inspect import Parameter, isfunction, signature
from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulation import core_mutants, mutants, queue_mutants, schedule_mutants, transaction_mutants
from tests.simulation.hunting import Death, Mutant, Pack, hunt
from tests.transactions import sink_mutants

from runnel.cluster import membership
from runnel.testing.core.simulation import run
from runnel.testing.simulation import Simulation

PACKS = (
    mutants.PACK, transaction_mutants.PACK, sink_mutants.PACK, queue_mutants.PACK, schedule_mutants.PACK,
    core_mutants.PACK,
)  # fmt: skip
POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_every_mutant_fits_the_code(pack: Pack) -> None:
    names = [mutant.name for mutant in pack.mutants]
    assert len(names) == len(set(names))
    for mutant in pack.mutants:
        with mutant.switched_off():
            assert all(getattr(target, name) is not None for target, name, _ in mutant.patches)


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_every_mutant_is_called_as_the_rule_is(pack: Pack) -> None:
    """One that can't be called breaks everything, and is noticed for that alone."""
    for mutant in pack.mutants:
        for target, name, new in mutant.patches:
            old = getattr(target, name)
            if isfunction(old) and callable(new):
                assert _takes(new, old), f"{mutant.name}: {name}{signature(old)} became {signature(new)}"


def _takes(new: Any, old: Any) -> bool:
    """Whether it can be given all that the other one takes."""
    wanted = signature(old).parameters.values()
    positional = [each for each in wanted if each.kind in POSITIONAL]
    named = {each.name: None for each in wanted if each.kind is Parameter.KEYWORD_ONLY}
    try:
        signature(new).bind(*positional, **named)
    except TypeError:
        return False
    return True


def test_what_switches_nothing_off_survives() -> None:
    assert hunt(Mutant("none", "every rule is on"), run, range(2)) is None


def test_what_was_switched_off_is_on_again() -> None:
    before = Simulation.run
    with Mutant("off", "a simulation runs", ((Simulation, "run", len),)).switched_off():
        assert Simulation.run is not before
    assert Simulation.run is before


def test_a_rule_with_a_sign_dies_of_nothing_else() -> None:
    """The same mutant, in the same run, by what it breaks and by something else."""
    unread = next(mutant for mutant in core_mutants.MUTANTS if mutant.name == "said_again")
    fitting = replace(unread, sign="Liveness")
    assert hunt(fitting, _never_gets_well, range(1)) == Death(0, "Liveness: nothing was decided")
    assert hunt(replace(unread, sign="Acked"), _never_gets_well, range(1)) is None


def _never_gets_well(seed: int, **_: Any) -> Any:
    """A run that is ill while the rule is off."""
    off = membership.declare is not DECLARE
    return SimpleNamespace(violations=["Liveness: nothing was decided"] if off else [])


DECLARE = membership.declare
