"""What all jobs of `runnel pipeline` share: their options, a session, how they are shown, and how they end.

    @click.command(cls=Command, examples=EXAMPLES)
    @click.option("--lake", ...)
    @stream_job                              # or batch_job: the function gets a Launch first
    def archive(launch: StreamLaunch, lake: str) -> int:
        from runnel.pipelines.jobs.archive import ArchiveConf, run

        conf = ArchiveConf(stream=launch.conf("archive"), lake=lake)
        return launch.stream("archive", lambda spark: run(spark, conf))

Exit codes: 0 done, or stopped when asked; 1 failed; 2 wrong usage; 130 a batch job was interrupted.

Rule 1: nothing of Spark is imported before a job starts.
Rule 2: stdout has what the job says, stderr what is said of it.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from threading import Event
from types import FrameType
from typing import Any, TypeVar

import click

from runnel.cli.options import broker_option, json_option, setting, span

T = TypeVar("T")
F = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a job was asked for: where it runs, and how it is shown."""

    brokers: str
    master: str
    settings: tuple[tuple[str, str], ...]
    ui_port: int | None
    as_json: bool

    def batch(self, job: str, work: Callable[[Any], T]) -> T:
        """Do the work with a session, to its end, and say now and then how far it is."""
        from runnel.cli.output import note
        from runnel.pipelines.progress import Tasks, watching

        def tell(tasks: Tasks) -> None:
            note(f"{job}: {tasks.done:,} of {tasks.all:,} tasks of this step are done")

        with self._session(job) as spark, _interrupted_by_sigterm(), watching(spark.sparkContext.statusTracker(), tell):
            return work(spark)

    @contextmanager
    def _session(self, job: str) -> Iterator[Any]:
        from runnel.cli.output import note
        from runnel.pipelines.conf import SessionConf, home_of
        from runnel.pipelines.progress import plainly
        from runnel.pipelines.session import session

        note(f"{job}: starting Spark on {self.master}")
        log = home_of(job, "spark.log")
        conf = SessionConf(job, self.master, dict(self.settings), self.ui_port, log)
        with plainly(), session(conf) as spark:
            yield spark


@dataclass(frozen=True, slots=True)
class StreamLaunch(Launch):
    """The same, for a job that streams."""

    once: bool
    every_ms: int
    checkpoint: str | None

    def conf(self, job: str) -> Any:
        """The job's `StreamConf`."""
        from runnel.pipelines.conf import StreamConf, home_of

        return StreamConf(self.checkpoint or home_of(job), self.brokers, self.once, self.every_ms)

    def stream(self, job: str, start: Callable[[Any], Any]) -> int:
        """Start its query, or queries, and follow them to their end; the exit code."""
        from runnel.cli.pipeline_view import screen
        from runnel.pipelines.progress import follow

        with self._session(job) as spark, stop_on_signals() as stop:
            started = start(spark)
            queries: Sequence[Any] = started if isinstance(started, list | tuple) else [started]
            with screen(job, as_json=self.as_json) as shown:
                follow(queries, shown.tell, stop)
                shown.end()
        return 0


# --- signals
@contextmanager
def stop_on_signals() -> Iterator[Event]:
    """Set by SIGINT and SIGTERM, as often as they come."""
    stop = Event()
    with _handling(lambda *_: stop.set()):
        yield stop


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a batch job the way Ctrl-C does."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


# --- options
def batch_job(function: F) -> F:
    """Options of a job that works once on what there is; the function gets a `Launch` first."""

    @wraps(function)
    def command(**values: Any) -> Any:
        _check_installed()
        return function(Launch(**_taken(values)), **values)

    return _job_options(command)


def stream_job(function: F) -> F:
    """Options of a job that streams; the function gets a `StreamLaunch` first."""

    @wraps(function)
    def command(**values: Any) -> Any:
        _check_installed()
        own = {name: values.pop(name) for name in ("once", "every_ms", "checkpoint")}
        return function(StreamLaunch(**_taken(values), **own), **values)

    return _stream_options(_job_options(command))


def _check_installed() -> None:
    """Refuse before the job's module is loaded: it may import what is not there."""
    from runnel.pipelines.session import check_installed

    check_installed()


def _taken(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "brokers": values.pop("broker"),
        "master": values.pop("master"),
        "settings": tuple(values.pop("settings")),
        "ui_port": values.pop("ui_port"),
        "as_json": values.pop("as_json"),
    }


def _stream_options(function: F) -> F:
    options = (
        click.option("--checkpoint", metavar="DIR", help="Where it keeps how far it is.  [data-pipelines/JOB]"),
        click.option("--every", "every_ms", metavar="SPAN", type=span, default="10s", help="How often to look.  [10s]"),
        click.option("--once", is_flag=True, help="Go up to the present end, and no further."),
    )
    return _with(function, options)


def _job_options(function: F) -> F:
    master = click.option(
        "--master",
        metavar="URL",
        envvar="RUNNEL_SPARK_MASTER",
        default="local[*]",
        show_default=True,
        show_envvar=True,
        help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://URL.",
    )
    own = click.option(
        "--set", "settings", metavar="KEY=VALUE", type=setting, multiple=True, help="A setting of Spark's; repeatable."
    )
    port = click.IntRange(0, 65535)
    pages = click.option("--ui", "ui_port", metavar="PORT", type=port, help="Serve Spark's own pages there.  [off]")
    return _with(function, (broker_option, json_option, pages, own, master))


def _with(function: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in options:
        function = option(function)
    return function
