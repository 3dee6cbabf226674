"""`runnel pipeline fleet show`: a broker, cars, the job and the page, started together and ended together.

Rule 1: whoever ends, all end: the cars first, then the job between two triggers, then the page, and the broker last.
Rule 2: what is kept is kept in one folder, and found again by the next run.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

import click

from runnel.cli.command import Command
from runnel.cli.output import note
from runnel.cli.pipeline_run import stop_on_signals
from runnel.dev.brokers import ANY_PORT
from runnel.dev.children import BrokerChild, State, end_with_parent

LOOK_S = 0.2
READY_S = 60.0
END_S = 90.0  # a job finishes its batch

EXAMPLES = """
make fleet                                        1,000 cars, http://127.0.0.1:8000/
runnel pipeline fleet show --cars 5000 --port 9000
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--cars", metavar="N", type=click.IntRange(1, 1_000_000), default=1000, show_default=True)
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Of the page."
)
@click.option("--every", metavar="SPAN", default="2s", show_default=True, help="How often the job looks.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="data-fleet",
    show_default=True,
    help="Where everything is kept, also the logs.",
)
def show(cars: int, port: int, every: str, data: Path) -> int:
    """Start a broker, cars, the job and the page, and end them all with Ctrl-C."""
    from runnel.pipelines.session import check_installed

    check_installed()
    with stop_on_signals() as stop:
        return _show(Plan(cars, port, every, data.resolve()), stop)


@dataclass(frozen=True, slots=True)
class Plan:
    cars: int
    port: int
    every: str
    data: Path


def _show(plan: Plan, stop: Event) -> int:
    from runnel.pipelines.jobs.fleet.page import PageConf, serving
    from runnel.pipelines.jobs.fleet.topics import Topics, make_all

    plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(_broker(plan.data))
        make_all(broker.address, Topics())
        address = stack.enter_context(serving(PageConf(broker.http, port=plan.port)))
        where = ["-b", broker.address]
        checkpoint = str(plan.data / "checkpoint")
        run = stack.enter_context(_child(["run", "--every", plan.every, "--checkpoint", checkpoint, *where], None))
        log = stack.enter_context((plan.data / "cars.log").open("ab"))
        cars = stack.enter_context(_child(["cars", "--cars", str(plan.cars), *where], log))
        note(f"fleet: the broker is at {broker.address} and http://{broker.http}, its data in {plan.data}")
        note(f"fleet: {plan.cars:,} cars drive; see them at {address} (Spark takes half a minute; stop with Ctrl-C)")
        return _watched(stop, broker, {"job": run, "cars": cars})


@contextmanager
def _broker(folder: Path) -> Iterator[BrokerChild]:
    broker = BrokerChild(1, folder, ANY_PORT, ["--log-level", "warning"])
    broker.start()
    try:
        deadline = time.monotonic() + READY_S
        while broker.look() is State.STARTING and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        if broker.state is not State.SERVING:
            raise click.ClickException(f"the broker {broker.how_it_ended()}; its log is {broker.log}")
        yield broker
    finally:
        broker.end()
        if broker.process is not None:
            broker.process.wait(END_S)


@contextmanager
def _child(command: list[str], log: IO[bytes] | None) -> "Iterator[subprocess.Popen[bytes]]":
    """A command of this program, asked to stop at the end of the block."""
    whole = [sys.executable, "-m", "runnel.cli.main", "pipeline", "fleet", *command]
    child = subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(END_S)


def _watched(stop: Event, broker: BrokerChild, children: "dict[str, subprocess.Popen[bytes]]") -> int:
    """Wait until asked to stop, or until somebody ends unasked."""
    while not stop.wait(LOOK_S):
        if broker.look() is State.ENDED:
            note(f"fleet: the broker {broker.how_it_ended()}")
            return 1
        for name, child in children.items():
            if child.poll() is not None:
                note(f"fleet: the {name} ended with code {child.returncode}: everything is stopped")
                return 1
    note("fleet: stopping; the job finishes its batch")
    return 0
