"""What a job is told, whoever starts it: the command line, a test, or a program.

Rule 1: values alone; nothing here imports Spark, so that a job can be described where there is none.
Rule 2: a job's own conf is a frozen dataclass beside it. One that streams holds a `StreamConf`, and gives its trigger
        and its checkpoint to every query that it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_BROKERS = "127.0.0.1:9092"
DEFAULT_MASTER = "local[*]"
HOME = "data-pipelines"  # below the current folder, as ./data is a broker's
EVERY_MS = 10_000


@dataclass(frozen=True, slots=True)
class SessionConf:
    """Where Spark runs, and how."""

    app: str
    master: str = DEFAULT_MASTER
    settings: Mapping[str, str] = field(default_factory=dict)  # Spark's own; they win over ours
    ui_port: int | None = None  # None: Spark's pages are off
    log: str | None = None  # the file that gets what Spark's processes say; None: stderr

    @property
    def is_local(self) -> bool:
        """Whether all of Spark is in this machine's one process."""
        return self.master == "local" or self.master.startswith("local[")


@dataclass(frozen=True, slots=True)
class StreamConf:
    """How a job that streams goes on: up to the present end and no further (`once`), or for ever."""

    checkpoint: str  # a folder or URL; one for each job, kept between runs: it says how far the job is
    brokers: str = DEFAULT_BROKERS
    once: bool = False
    every_ms: int = EVERY_MS

    @property
    def trigger(self) -> dict[str, Any]:
        """For `writeStream.trigger(**conf.trigger)`."""
        return {"availableNow": True} if self.once else {"processingTime": f"{self.every_ms} milliseconds"}

    def checkpoint_of(self, query: str) -> str:
        """The checkpoint of one of several queries of a job."""
        return f"{self.checkpoint.rstrip('/')}/{query}"


def home_of(job: str, what: str = "checkpoint") -> str:
    """Where a job keeps something unless told otherwise; absolute: Spark's processes have folders of their own."""
    return str(Path(HOME, job, what).resolve())
