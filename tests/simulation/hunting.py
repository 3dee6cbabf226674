"""How rules that are switched off are hunted: a simulation that does not notice proves nothing about the rule.

Rule 1: a seed counts only if it is clean with the rule on.
Rule 2: a rule that others cover for is no prey of a simulation. It has a test that shows it alone, and that test has to
        fail without the rule.
Rule 3: a rule about what must never happen dies of just that, where it has a `sign`: a run that does not get well could
        have any cause.
Rule 4: whoever survives is a failure.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from unittest import mock

Patch: TypeAlias = tuple[Any, str, Any]  # of what, its name, and what it is without the rule
ROOT = Path(__file__).parents[2]
SURVIVED = "SURVIVED"
BROKEN = 99  # the exit code of a test that could not be run


class Outcome(Protocol):
    """What came of a run."""

    @property
    def violations(self) -> list[str]: ...


@dataclass(frozen=True)
class Mutant:
    """A rule that can be switched off, and where its absence shows."""

    name: str
    rule: str
    patches: tuple[Patch, ...] = ()
    faults: tuple[str, ...] = ()  # those that bring it to light; none: whatever the seed draws
    given: Mapping[str, Any] = field(default_factory=dict)  # of the swarm, where chance alone would seldom do
    alone: str = ""  # another rule covers for it: the test that shows it by itself
    switches: Mapping[str, Any] = field(default_factory=dict)  # of the run, with the rule off
    sign: str = ""  # what it has to die of; none: of anything (rule 3)

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        started = [mock.patch.object(target, name, new) for target, name, new in self.patches]
        for patch in started:
            patch.start()
        try:
            yield
        finally:
            for patch in started:
                patch.stop()


Run: TypeAlias = Callable[..., Outcome]
_CLEAN: dict[tuple[object, ...], bool] = {}


class Death(NamedTuple):
    """What noticed that a rule is off."""

    seed: int | None  # None: a test did
    seen: str

    def __str__(self) -> str:
        return f"{'test' if self.seed is None else self.seed:<5} {self.seen[:100]}"


def hunt(mutant: Mutant, run: Run, seeds: Iterable[int]) -> Death | None:
    """The first seed that sees the mutant, and what it sees; or the test that does."""
    if mutant.alone:
        return _fails_alone(mutant)
    for seed in seeds:
        with mutant.switched_off():
            seen = _attempt(mutant, run, seed)
        if seen is not None and _is_clean(mutant, run, seed):
            return Death(seed, seen)
    return None


def _is_clean(mutant: Mutant, run: Run, seed: int) -> bool:
    """Rule 1. Many mutants are seen by the same few seeds: each is run once with every rule on."""
    named = id(run), seed, mutant.faults, repr(sorted(mutant.given.items()))
    if named not in _CLEAN:
        _CLEAN[named] = not run(seed, faults=mutant.faults, **mutant.given).violations
    return _CLEAN[named]


def _attempt(mutant: Mutant, run: Run, seed: int) -> str | None:
    """Its sign among what was violated, or how the broken code broke the run itself."""
    try:
        found = run(seed, faults=mutant.faults, **mutant.given, **mutant.switches).violations
    except Exception as error:  # noqa: BLE001  (a mutant may fail in any way)
        found = [f"crashed: {error!r}"]
    return next((each for each in found if mutant.sign in each), None)


def _fails_alone(mutant: Mutant) -> Death | None:
    """Rule 2: the test fails with the rule off, and passes with it on."""
    with mutant.switched_off():
        without = _pytest(mutant.alone)
    return Death(None, mutant.alone) if without == 1 and _pytest(mutant.alone) == 0 else None


def _pytest(test: str) -> int:
    """In a fork of this process, where the rule is on or off as it is here."""
    child = os.fork()
    if child == 0:
        try:
            _run_test(test)
        finally:
            os._exit(BROKEN)  # whatever happens: this process must never go on as the one that it was forked from
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_test(test: str) -> None:
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(ROOT)
    # What simulations left behind in this process is no fault of the test's.
    os._exit(int(pytest.main(["-x", "-p", "no:cacheprovider", "-p", "no:unraisableexception", test])))


# --- many at once


class Pack(NamedTuple):
    """The mutants of one kind of simulation."""

    name: str
    run: Run
    mutants: Sequence[Mutant]
    seeds_max: int


class Prey(NamedTuple):
    pack: Pack
    mutant: Mutant
    seeds: int


_PREY: list[Prey] = []  # forked processes find it here: functions can't be sent to them


def _fate(number: int) -> Death | None:
    pack, mutant, seeds = _PREY[number]
    return hunt(mutant, pack.run, range(seeds))


def main(packs: Sequence[Pack], arguments: Sequence[str]) -> int:
    """[SEEDS [NAME...]]: hunt on all cores, tell each fate when it is known, and return how many survived."""
    seeds, names = int(arguments[0]) if arguments else None, arguments[1:]
    known = {mutant.name for pack in packs for mutant in pack.mutants}
    if unknown := sorted({*names} - known):
        sys.exit(f"there is no mutant {unknown[0]!r}: there are {', '.join(sorted(known))}")
    _PREY[:] = [
        Prey(pack, mutant, seeds or pack.seeds_max)
        for pack in packs
        for mutant in pack.mutants
        if not names or mutant.name in names
    ]
    survivors = _hunt_all()
    print(f"{len(_PREY) - len(survivors)} of {len(_PREY)} were noticed", end="")
    print(f", not noticed: {', '.join(survivors)}" if survivors else "")
    return len(survivors)


def _hunt_all() -> list[str]:
    begun, done, survivors = time.monotonic(), 0, []
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        hunts: dict[Future[Death | None], Prey] = {pool.submit(_fate, n): prey for n, prey in enumerate(_PREY)}
        for hunt_done in as_completed(hunts):
            (pack, mutant, _), told = hunts[hunt_done], _told(hunt_done, hunts[hunt_done])
            done += 1
            if told.startswith(SURVIVED):
                survivors.append(mutant.name)
            print(f"{pack.name:8} {mutant.name:26} {mutant.rule:64} {told}", flush=True)
            print(f"{done} of {len(_PREY)} hunted in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return survivors


def _told(hunted: "Future[Death | None]", prey: Prey) -> str:
    """How it ended; a mutant that does not fit the code any more has not been noticed either."""
    try:
        death = hunted.result()
    except Exception as error:  # noqa: BLE001  (whatever it is: the others are hunted all the same)
        return f"{SURVIVED}, it can't be made: {error!r}"
    where = f"its test {prey.mutant.alone}" if prey.mutant.alone else f"{prey.seeds} seeds"
    return f"{SURVIVED} {where}" if death is None else str(death)
