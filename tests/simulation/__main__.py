"""`make mutants`: switch off every rule, one by one, and see whether anything notices."""

import sys

from tests.simulation import core_mutants, mutants, queue_mutants, schedule_mutants, transaction_mutants
from tests.simulation.hunting import main
from tests.transactions import sink_mutants

PACKS = [
    mutants.PACK, transaction_mutants.PACK, sink_mutants.PACK, queue_mutants.PACK, schedule_mutants.PACK,
    core_mutants.PACK,
]  # fmt: skip
sys.exit(main(PACKS, sys.argv[1:]))
