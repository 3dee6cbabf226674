"""Waiting for a condition: never for a time."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = 60.0) -> None:
    """Return as soon as the condition holds; fail with `what` when it does not for a very long time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s:.0f} s in vain: {what}")
        time.sleep(0.02)
