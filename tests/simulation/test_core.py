"""The pure cores under simulation: a sample for every change. `make simulate-core SEEDS=N` runs more."""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.simulation.core_mutants import MUTANTS
from tests.simulation.hunting import hunt

from runnel.testing.core.rules import Rules
from runnel.testing.core.simulation import Outcome, run

SEEDS = int(os.environ.get("RUNNEL_CORE_SEEDS", "1000"))
REPLAYS = 20
JOBS = min(2, os.cpu_count() or 1)
QUICK_MUTANTS = [
    "ack1",
    "dedupe_stale",
    "elr_ignored",
    "elr_unheeded",
    "fast_restart",
    "hw_trunc",
    "local_shrink",
    "min_isr_ignored",
    "no_correlation",
    "no_maximal",
    "read_leo",
    "unclean",
    "unsynced_held",
]


@pytest.mark.timeout(1_200)  # a minute on two idle cores; other work may take most of them
def test_no_invariant_is_violated_by_any_seed() -> None:
    with ProcessPoolExecutor(JOBS) as pool:
        outcomes: list[Outcome] = list(pool.map(run, range(SEEDS), chunksize=10))
    assert [(outcome.seed, outcome.violation) for outcome in outcomes if outcome.violations] == []
    faults = sum(sum(outcome.faults.values()) for outcome in outcomes)
    assert faults >= 15 * SEEDS
    assert sum(outcome.acknowledged for outcome in outcomes) >= 50 * SEEDS


def test_a_seed_is_replayed_exactly_whatever_the_hashes_are() -> None:
    program = (
        "from runnel.testing.core.simulation import run\n"
        f"for seed in range({REPLAYS}): print(seed, run(seed).trace_hash)"
    )
    runs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        runs.add(done.stdout)
    assert len(runs) == 1
    assert len(set(runs.pop().split("\n"))) == REPLAYS + 1


@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_rule_that_is_switched_off_is_missed(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert hunt(mutant, run, range(60)) is not None


def test_a_run_tells_what_happened() -> None:
    lines: list[str] = []
    outcome = run(0, rules=Rules(read_to_high=False), tracer=lines.append)
    assert outcome.violation is not None
    assert outcome.violation.startswith("Readers")
    assert outcome.violation in lines[-1]
