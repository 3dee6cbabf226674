"""`runnel simulate`: the whole broker and its clients under faults, in one process and in virtual time.

With --core, only the parts that decide about replication, in a model: a hundred times as many runs in the same time.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TypeAlias

import click

from runnel.cli.command import Command
from runnel.testing.core import simulation as cores
from runnel.testing.core.swarm import FAULTS as CORE_FAULTS
from runnel.testing.simulation import Outcome, run
from runnel.testing.swarm import FAULTS, flush_mode_beside

VIOLATIONS_SHOWN = 8  # of one seed: the first ones tell, the rest follows
SEEDS_SHOWN = 20
PROGRESS_EVERY = 100  # seeds
CHUNK = 10  # short runs go to a process together

EXAMPLES = """
runnel simulate                                   seed 0
runnel simulate --seeds 200 --jobs 2              seeds 0 to 199, on two cores
runnel simulate --seed 117 --trace                one seed again, with all that happens in it
runnel simulate --seeds 50 --faults power,kill    with these faults only
runnel simulate --seeds 50 --transactions         with clients that use transactions
runnel simulate --seeds 50 --sinks                and with drivers that publish batches
runnel simulate --seeds 50 --queues               with a queue, and workers that take from it
runnel simulate --seeds 50 --schedule             with messages that come later, some of them cancelled or moved
runnel simulate --core --seeds 10000 --jobs 2     the rules of replication alone, in a model
"""

AnyOutcome: TypeAlias = Outcome | cores.Outcome
Runner: TypeAlias = Callable[..., AnyOutcome]


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many, one after the other.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes that share them.")
@click.option("--faults", metavar="LIST", default="", help=f"Only these, of: {', '.join(FAULTS)}.")
@click.option("--core", is_flag=True, help="Only the rules of replication, in a model: many more runs a minute.")
@click.option("--transactions", is_flag=True, help="With clients that use transactions, beside all the others.")
@click.option("--sinks", is_flag=True, help="With drivers that publish batches, and transactions.")
@click.option("--queues", is_flag=True, help="With a queue and its workers, beside all the others.")
@click.option("--schedule", is_flag=True, help="With messages that come later, beside all the others.")
@click.option("--trace", is_flag=True, help="Print everything that happens (with one job).")
def simulate(
    seed: int, seeds: int, jobs: int, faults: str, core: bool, transactions: bool, sinks: bool, queues: bool,
    schedule: bool, trace: bool,
) -> int:  # fmt: skip
    """Run brokers and clients under faults that a seed decides.

    The same seed gives the same run: its trace hash says so.
    Ends with 1 if anything happened that must not: a lost message, a duplicate, an offset that went back ...
    """
    kinds, known = tuple(kind.strip() for kind in faults.split(",") if kind.strip()), CORE_FAULTS if core else FAULTS
    if unknown := [kind for kind in kinds if kind not in known]:
        raise click.UsageError(f"there is no fault {unknown[0]!r}: allowed are {', '.join(known)}.")
    if core and (transactions or sinks or queues or schedule):
        raise click.UsageError("--core has neither transactions nor queues nor a schedule: leave one of the two out.")
    short, whole = (
        partial(cores.run, faults=kinds),
        partial(
            run, faults=kinds, flush_mode=flush_mode_beside(kinds),
            transactions=transactions, sinks=sinks, queues=queues, schedule=schedule,
        ),
    )  # fmt: skip
    runner: Runner = short if core else whole
    begun = time.monotonic()
    outcomes: list[AnyOutcome] = []
    bad = 0
    for outcome in _outcomes(range(seed, seed + seeds), jobs, runner, CHUNK if core else 1, trace):
        outcomes.append(outcome)
        _show(outcome, seeds)
        bad += bool(outcome.violations)
        _progress(len(outcomes), seeds, bad, time.monotonic() - begun)
    return _sum_up(outcomes, time.monotonic() - begun)


def _outcomes(seeds: range, jobs: int, runner: Runner, chunk: int, trace: bool) -> Iterator[AnyOutcome]:
    if jobs == 1:
        for seed in seeds:
            yield runner(seed, tracer=click.echo if trace else None)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(runner, seeds, chunksize=chunk)


def _show(outcome: AnyOutcome, seeds: int) -> None:
    """One line for one seed; of many, only those that went wrong."""
    if seeds == 1 or outcome.violations:
        click.echo(
            f"seed {outcome.seed}: trace {outcome.trace_hash}, {outcome.virtual_s:.1f} virtual s,"
            f" {outcome.acknowledged} of {outcome.sent} messages acknowledged, faults: {_counts(outcome.faults)}"
        )
    for violation in outcome.violations[:VIOLATIONS_SHOWN]:
        click.echo(f"  VIOLATION {violation}")
    if (more := len(outcome.violations) - VIOLATIONS_SHOWN) > 0:
        click.echo(f"  and {more} more")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _progress(done: int, seeds: int, bad: int, took_s: float) -> None:
    """On a terminal one line that changes, in a file one now and then."""
    text = f"{done} of {seeds} seeds, {60 * done / took_s:.0f} a minute, {bad} with violations"
    if seeds > 1 and sys.stderr.isatty():
        click.echo(f"\r{text} ", nl=done == seeds, err=True)
    elif seeds > 1 and done % PROGRESS_EVERY == 0:
        click.echo(text, err=True)


def _sum_up(outcomes: list[AnyOutcome], took_s: float) -> int:
    bad = [outcome for outcome in outcomes if outcome.violations]
    if len(outcomes) > 1:
        faults, transitions = Counter[str](), Counter[str]()
        for outcome in outcomes:
            faults.update(outcome.faults)
            transitions.update(outcome.transitions)
        click.echo(f"{len(outcomes)} seeds in {took_s:.0f} s, {60 * len(outcomes) / took_s:.0f} a minute")
        click.echo(f"{sum(outcome.acknowledged for outcome in outcomes)} messages acknowledged")
        click.echo(f"{faults.total()} faults, {faults.total() / len(outcomes):.1f} a seed: {_counts(faults)}")
        click.echo(f"aimed at what had just happened: {_counts(transitions)}")
    if not bad:
        click.echo("no violation")
        return 0
    kinds = Counter(violation.partition(":")[0].partition(" ")[0] for o in bad for violation in o.violations)
    click.echo(f"violations: {_counts(kinds)}")
    click.echo(f"in {len(bad)} seeds: {', '.join(str(outcome.seed) for outcome in bad[:SEEDS_SHOWN])}")
    return 1
