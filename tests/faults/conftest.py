"""What the tests with real faults share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # what they share is imported as tests.faults.*
