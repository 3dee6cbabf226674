"""`runnel pipeline fleet`: cars, what is known of them, and a page that shows it."""

import signal
from typing import TYPE_CHECKING

import click

from runnel.cli.command import Group
from runnel.cli.options import broker_option, span
from runnel.cli.pipeline_fleet_show import show
from runnel.cli.pipeline_run import StreamLaunch, stop_on_signals, stream_job

if TYPE_CHECKING:
    from runnel.pipelines.jobs.fleet.sending import SendConf

EXAMPLES = """
make fleet                                        all of it: a broker, cars, the job and the page
runnel pipeline fleet cars --cars 1000            cars that drive about, and report every 10 seconds
runnel pipeline fleet run --every 2s              work out speeds, heat and silence
runnel pipeline fleet page                        show them on a map
"""


@click.group(cls=Group, examples=EXAMPLES)
def fleet() -> None:
    """Cars on a live map: speeds, heat, and who went silent."""


fleet.add_command(show)


# --- cars
@fleet.command(
    examples="""
runnel pipeline fleet cars --cars 1000
runnel pipeline fleet cars --cars 100000 --seed 7
runnel pipeline fleet cars --for 30m --at-once    half an hour of the past, at once
"""
)
@click.option("--cars", "count", metavar="N", type=click.IntRange(1, 1_000_000), default=1000, show_default=True)
@click.option("--topic", metavar="TOPIC", default="cars", show_default=True, help="Where they report to.")
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="The same seed: the same ways.")
@click.option("--period", "period_ms", metavar="SPAN", type=span, default="10s", show_default=True, help="How often.")
@click.option("--silent", metavar="PART", type=click.FloatRange(0, 0.9), default=0.03, show_default=True)
@click.option("--late", metavar="PART", type=click.FloatRange(0, 0.9), default=0.01, show_default=True)
@click.option("--for", "for_ms", metavar="SPAN", type=span, help="End after so long.  [never]")
@click.option("--at-once", is_flag=True, help="Send the last SPAN of --for without waiting.")
@broker_option
def cars(
    count: int, topic: str, seed: int, period_ms: int, silent: float, late: float, for_ms: int | None, at_once: bool,
    broker: str,
) -> None:  # fmt: skip
    """Let cars drive through a city and report where they are. Needs no Spark."""
    from runnel.pipelines.jobs.fleet.cars import FleetPlan
    from runnel.pipelines.jobs.fleet.sending import SendConf

    if at_once and for_ms is None:
        raise click.UsageError("--at-once sends the past: say how much of it with --for SPAN")
    plan = FleetPlan(count, seed, period_ms, silent, late)
    _send(SendConf(broker, topic, plan, for_ms=for_ms, at_once=at_once))


def _send(conf: "SendConf") -> None:
    """Send until done, or until SIGINT or SIGTERM."""
    import asyncio

    from runnel.cli.output import note, plural
    from runnel.pipelines.jobs.fleet.sending import send

    async def sending() -> int:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await send(conf, stop, lambda sent: note(f"cars: {plural(sent, 'report')} sent"))

    note(f"cars: {plural(conf.plan.cars, 'car')} report to {conf.topic}")
    note(f"cars: done, {plural(asyncio.run(sending()), 'report')} sent")


# --- page
@fleet.command(
    examples="""
runnel pipeline fleet page                        http://127.0.0.1:8000/
runnel pipeline fleet page --port 9000 --http 127.0.0.1:8081
"""
)
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="A broker's HTTP door.")
@click.option("--results", metavar="NAME", default="fleet", show_default=True, help="What result topics begin with.")
def page(port: int, http: str, results: str) -> None:
    """Show the fleet on a live map, on this machine. Needs no Spark."""
    from runnel.cli.output import note
    from runnel.pipelines.jobs.fleet.page import PageConf, serving
    from runnel.pipelines.jobs.fleet.topics import Topics

    with stop_on_signals() as stop, serving(PageConf(http, port=port, topics=Topics(results=results))) as address:
        note(f"page: {address} (stop it with Ctrl-C)")
        stop.wait()


# --- run
@fleet.command(
    examples="""
runnel pipeline fleet run --every 2s
runnel pipeline fleet run --once
runnel pipeline fleet run --master spark://10.0.0.1:7077 --checkpoint /shared/fleet
"""
)
@click.option("--topic", metavar="TOPIC", default="cars", show_default=True, help="Where the cars report to.")
@click.option("--results", metavar="NAME", default="fleet", show_default=True, help="What result topics begin with.")
@click.option("--silent-after", "silent_ms", metavar="SPAN", type=span, default="60s", show_default=True)
@click.option("--late", "late_ms", metavar="SPAN", type=span, default="30s", show_default=True, help="Still counts.")
@click.option("--cell", "cell_m", metavar="METRES", type=click.IntRange(10), default=400, show_default=True)
@click.option("--begin", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
@stream_job
def run(
    launch: StreamLaunch, topic: str, results: str, silent_ms: int, late_ms: int, cell_m: int, begin: str
) -> int:  # fmt: skip
    """Work out speeds, heat and silence from the cars' reports, exactly once.

    Results go to the topics NAME.cars (the newest of each car), NAME.alerts (who went silent and came back) and
    NAME.heat (each cell and minute).
    """
    from runnel.pipelines.jobs.fleet.job import FleetConf
    from runnel.pipelines.jobs.fleet.job import run as started
    from runnel.pipelines.jobs.fleet.topics import Topics
    from runnel.pipelines.jobs.fleet.track import Rules

    conf = FleetConf(
        launch.conf("fleet"), Topics(topic, results), Rules(silent_ms), late_ms=late_ms, cell_m=cell_m, begin=begin
    )
    return launch.stream("fleet", lambda spark: started(spark, conf))
