"""Errors that nobody foresaw, as one line of the log: a client that provokes one again and again must not fill it."""

import logging
import traceback
from pathlib import PurePath


def log_failure(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Say what failed, why, and where; where the level of the log is debug, with all frames."""
    logger.error("%s: %s", what, in_one_line(error), exc_info=error if logger.isEnabledFor(logging.DEBUG) else None)


def in_one_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {'/'.join(PurePath(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {' '.join(str(error).split())[:300]}"
