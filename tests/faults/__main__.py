"""`make faults`: real brokers, real clients, real faults; prints the table, and ends with 1 if a promise was broken."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import sandbox
from tests.faults.campaign import printer, run_once
from tests.faults.copy_campaign import CopyVerdict, run_copies
from tests.faults.verdict import Verdict

from runnel.dev import zookeeper

SHOWN_MAX = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults, in each run")
    parser.add_argument("--seed", default="", help="of the first run; default: a new one")
    parser.add_argument("--replication", type=int, default=3)
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--loopback", action="store_true", help="no sandbox: no faults of network and disk")
    parser.add_argument("--transactions", action="store_true", help="workers that copy in transactions, instead")
    parser.add_argument("--keep", type=Path, help="where logs and histories are left; default: only after a failure")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if problem := zookeeper.missing():
        print(f"runnel: no ZooKeeper: {problem}", file=sys.stderr)
        return 2
    boxed = not options.loopback
    if boxed and not sandbox.inside():
        if problem := sandbox.missing():
            print(f"runnel: NO FAULTS OF NETWORK AND DISK in this run: {problem}", file=sys.stderr)
            boxed = False
        else:
            sandbox.enter("tests.faults", sys.argv[1:])
    folder = options.keep or Path(tempfile.mkdtemp(prefix="runnel-faults-"))
    first = options.seed or str(random.SystemRandom().randrange(1_000_000))
    total: Verdict | CopyVerdict = CopyVerdict() if options.transactions else Verdict()
    for number in range(options.runs):
        seed = first if number == 0 else f"{first}+{number}"
        total.add(one(folder / f"run-{number + 1}", seed, options, boxed))  # type: ignore[arg-type]  # both of one kind
    if options.runs > 1:
        print(f"\nall runs\n{total.table()}")
    if total.good and options.keep is None:
        shutil.rmtree(folder)
    else:
        print(f"\nlogs and histories are in {folder}")
    return 0 if total.good else 1


def one(folder: Path, seed: str, options: argparse.Namespace, boxed: bool) -> Verdict | CopyVerdict:
    print(f"\nrun with seed {seed}, faults for {options.seconds:.0f} s", flush=True)
    say = printer(time.monotonic())
    verdict: Verdict | CopyVerdict
    if options.transactions:
        verdict = run_copies(folder, seed, options.seconds, sandbox=boxed, say=say, only=options.only)
    else:
        verdict = run_once(
            folder, seed, options.seconds, sandbox=boxed, say=say, only=options.only, replication=options.replication
        )
    print(verdict.table())
    for line in [*map(str, verdict.anomalies), *verdict.problems][:SHOWN_MAX]:
        print(f"  {line}")
    print("  GOOD" if verdict.good else "  BROKEN", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
