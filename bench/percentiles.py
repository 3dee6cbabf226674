"""The percentiles people ask for."""

from collections.abc import Sequence

WANTED = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return {label: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for label, share in WANTED.items()}
