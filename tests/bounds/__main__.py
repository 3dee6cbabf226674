"""`make bounds`: floods a broker with all that it has to bear, and prints what its memory did meanwhile."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bounds.floods import CASES, Case
from tests.bounds.rig import Seen, under

from runnel.testing.process import BrokerProcess

COLUMNS = "{:<32} {:>9} {:>9} {:>9} {:>16}   {}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bounds", description=__doc__)
    parser.add_argument("--only", default="", help="floods whose name has this in it")
    only = parser.parse_args().only
    print(COLUMNS.format("flood", "before MB", "peak MB", "after MB", "others (slowest)", "sent"))
    broken = [case.name for case in CASES if only in case.name and not holds(case)]
    for name in broken:
        print(f"runnel: {name}: memory went beyond its bound, or nobody else was served", file=sys.stderr)
    return 1 if broken else 0


def holds(case: Case) -> bool:
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data", environment=case.environment) as broker,
    ):
        seen = under(case.large, broker, case.kept_mb)
    memory = (f"{size:.0f}" for size in (seen.before.now, seen.peak_mb, seen.after_mb))
    print(COLUMNS.format(case.name, *memory, others(seen), seen.sent), flush=True)
    return seen.grown_mb < case.grown_mb and seen.after_mb - seen.before.now < case.kept_mb and seen.served > 0


def others(seen: Seen) -> str:
    failed = f", {seen.failed} failed" if seen.failed else ""
    return f"{seen.served} ({seen.slowest_s:.1f} s){failed}"


if __name__ == "__main__":
    sys.exit(main())
