"""The whole broker under simulation: a sample for every change. `runnel simulate --seeds N` runs more."""

import os
import subprocess
import sys

import pytest
from tests.simulation.hunting import hunt
from tests.simulation.mutants import MUTANTS, PACK
from tests.simulation.queue_mutants import MUTANTS as QUEUE_MUTANTS
from tests.simulation.queue_mutants import PACK as QUEUE_PACK
from tests.simulation.schedule_mutants import MUTANTS as SCHEDULE_MUTANTS
from tests.simulation.schedule_mutants import PACK as SCHEDULE_PACK
from tests.simulation.transaction_mutants import MUTANTS as TRANSACTION_MUTANTS
from tests.simulation.transaction_mutants import PACK as TRANSACTION_PACK

from runnel.testing.simulation import run

TRANSACTION_SEEDS = 8
SINK_SEEDS = 6
QUEUE_SEEDS = 8
SCHEDULE_SEEDS = 10
QUICK_SEEDS = 30  # of those that are hunted here, the last needs 24
SEEDS = int(os.environ.get("RUNNEL_SIMULATION_SEEDS", "70"))
QUICK_MUTANTS = [
    "hold-written", "read-end", "no-rollback", "no-sync-dir", "cut-too-much", "no-dedup", "local-shrink", "no-maximal",
    "below-minimum", "unclean", "same-epoch", "ask-unsynced", "cut-to-high", "always-clean",
]  # fmt: skip
QUICK_TRANSACTION_MUTANTS = ["lso-at-high", "none-aborted", "no-fencing", "no-group-marker"]
QUICK_QUEUE_MUTANTS = ["unkept", "any-receipt", "uncounted", "no-key-order"]
QUICK_SCHEDULE_MUTANTS = ["append-anyway", "front-unkept", "cancel-in-memory", "change-anything"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_happens_that_must_not(seed: int) -> None:
    outcome = run(seed)
    assert outcome.violations == []
    assert outcome.acknowledged > 0
    assert sum(outcome.faults.values()) > 0


def test_a_seed_is_replayed_exactly_whatever_the_hashes_are() -> None:
    program = "from runnel.testing.simulation import run; print(*[run(s).trace_hash for s in (4, 7, 4, 7)])"
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        hashes.update(done.stdout.split())
    assert len(hashes) == 2


def test_other_seeds_are_other_runs() -> None:
    assert run(1).trace_hash != run(4).trace_hash


@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_rule_that_is_switched_off_is_missed(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert hunt(mutant, PACK.run, range(QUICK_SEEDS)) is not None


@pytest.mark.parametrize("seed", range(TRANSACTION_SEEDS))
def test_transactions_hold(seed: int) -> None:
    outcome = run(seed, transactions=True)
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("seed", range(SINK_SEEDS))
def test_batches_are_published_once_and_whole(seed: int) -> None:
    outcome = run(seed, sinks=True)
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("name", QUICK_TRANSACTION_MUTANTS)
def test_a_rule_of_transactions_that_is_switched_off_is_missed(name: str) -> None:
    mutant = next(mutant for mutant in TRANSACTION_MUTANTS if mutant.name == name)
    assert hunt(mutant, TRANSACTION_PACK.run, range(20)) is not None


@pytest.mark.parametrize("seed", range(QUEUE_SEEDS))
def test_queues_hold(seed: int) -> None:
    outcome = run(seed, queues=True)
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("name", QUICK_QUEUE_MUTANTS)
def test_a_rule_of_queues_that_is_switched_off_is_missed(name: str) -> None:
    mutant = next(mutant for mutant in QUEUE_MUTANTS if mutant.name == name)
    assert hunt(mutant, QUEUE_PACK.run, range(20)) is not None


@pytest.mark.parametrize("seed", range(SCHEDULE_SEEDS))
def test_the_schedule_holds(seed: int) -> None:
    outcome = run(seed, schedule=True)
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("name", QUICK_SCHEDULE_MUTANTS)
def test_a_rule_of_the_schedule_that_is_switched_off_is_missed(name: str) -> None:
    mutant = next(mutant for mutant in SCHEDULE_MUTANTS if mutant.name == name)
    assert hunt(mutant, SCHEDULE_PACK.run, range(20)) is not None
