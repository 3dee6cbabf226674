"""One sink in a small world, where anything may happen at any time: readers see every batch once, whole, and in the end
all of them. Each rule that makes it so is switched off in turn, and somebody notices."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.examples import EXAMPLES
from tests.simulation.hunting import Mutant, hunt
from tests.transactions import sink_mutants
from tests.transactions.sink_world import run


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_every_batch_is_seen_once_and_whole(chance: random.Random) -> None:
    run(chance.randrange, steps=200)


@pytest.mark.parametrize("seed", range(1_000, 1_060))
def test_every_batch_is_seen_once_and_whole_by_chance(seed: int) -> None:
    run(random.Random(seed).randrange)


@pytest.mark.parametrize("mutant", sink_mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_rule_that_is_switched_off_is_missed(mutant: Mutant) -> None:
    found = hunt(mutant, sink_mutants.run, range(sink_mutants.SEEDS_MAX))
    assert found is not None, f"nobody misses the rule: {mutant.rule}"
