"""The benchmarks, which know how to have Spark's own connector, are imported from the repository."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
