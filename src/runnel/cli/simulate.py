"""`runnel simulate`: the whole broker and its clients under faults, in one process and in virtual time."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import click

from runnel.cli.command import Command
from runnel.testing.simulation import Outcome, run
from runnel.testing.swarm import FAULTS

EXAMPLES = """
runnel simulate                                   seed 0
runnel simulate --seeds 200 --jobs 2              seeds 0 to 199, on two cores
runnel simulate --seed 117 --trace                one seed again, with all that happens in it
runnel simulate --seeds 50 --faults power,kill    with these faults only
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many, one after the other.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes that share them.")
@click.option("--faults", metavar="LIST", default="", help=f"Only these, of: {', '.join(FAULTS)}.")
@click.option("--trace", is_flag=True, help="Print everything that happens (with one job).")
def simulate(seed: int, seeds: int, jobs: int, faults: str, trace: bool) -> int:
    """Run brokers and clients under faults that a seed decides.

    The same seed gives the same run: its trace hash says so.
    Ends with 1 if anything happened that must not: a lost message, a duplicate, an offset that went back ...
    """
    kinds = tuple(kind.strip() for kind in faults.split(",") if kind.strip())
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise click.UsageError(f"there is no fault {unknown[0]!r}: allowed are {', '.join(FAULTS)}.")
    begun = time.monotonic()
    outcomes = []
    for outcome in _outcomes(range(seed, seed + seeds), jobs, kinds, trace):
        outcomes.append(outcome)
        _show(outcome, seeds)
        _progress(len(outcomes), seeds, time.monotonic() - begun)
    return _sum_up(outcomes, time.monotonic() - begun)


def _outcomes(seeds: range, jobs: int, kinds: tuple[str, ...], trace: bool) -> Iterator[Outcome]:
    if jobs == 1:
        for seed in seeds:
            yield run(seed, faults=kinds, tracer=click.echo if trace else None)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, seeds, [kinds] * len(seeds))


def _run(seed: int, kinds: tuple[str, ...]) -> Outcome:
    return run(seed, faults=kinds)


def _show(outcome: Outcome, seeds: int) -> None:
    """One line for one seed; of many, only those that went wrong."""
    if seeds == 1 or outcome.violations:
        faults = ", ".join(f"{count} {kind}" for kind, count in outcome.faults.items())
        click.echo(
            f"seed {outcome.seed}: trace {outcome.trace_hash}, {outcome.virtual_s:.1f} virtual s,"
            f" {outcome.acknowledged} of {outcome.sent} messages acknowledged, faults: {faults or 'none'}"
        )
    for violation in outcome.violations:
        click.echo(f"  VIOLATION {violation}")


def _progress(done: int, seeds: int, took_s: float) -> None:
    if seeds > 1 and sys.stderr.isatty():
        click.echo(f"\r{done} of {seeds} seeds, {60 * done / took_s:.0f} a minute ", nl=False, err=True)
        if done == seeds:
            click.echo("", err=True)


def _sum_up(outcomes: list[Outcome], took_s: float) -> int:
    bad = [outcome.seed for outcome in outcomes if outcome.violations]
    if len(outcomes) > 1:
        faults: Counter[str] = Counter()
        for outcome in outcomes:
            faults.update(outcome.faults)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
        click.echo(
            f"{len(outcomes)} seeds, {60 * len(outcomes) / took_s:.0f} a minute;"
            f" {sum(outcome.acknowledged for outcome in outcomes)} messages acknowledged;"
            f" {faults.total()} faults: {kinds}"
        )
    click.echo(f"violations in seeds {', '.join(map(str, bad))}" if bad else "no violation")
    return 1 if bad else 0
