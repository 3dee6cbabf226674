"""`runnel pipeline traffic`: what goes through topics, measured."""

import click

from runnel.cli.command import Command
from runnel.cli.options import complete_topics, span
from runnel.cli.pipeline_run import StreamLaunch, stream_job

EXAMPLES = """
runnel pipeline traffic                               all topics, minute by minute, into runnel.traffic
runnel pipeline traffic orders payments --every 1m    these topics, told once a minute
runnel pipeline traffic --from earliest --once        all that is kept, then end
runnel pipeline traffic --table lake/traffic          into Delta tables, too
runnel consume runnel.traffic -f '%s\\n'               what it tells
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option("--output", metavar="TOPIC", default="runnel.traffic", show_default=True, help="Where it is told.")
@click.option("--table", metavar="DIR", default="", help="Keep it in Delta tables there, too.")
@click.option("--from", "start", metavar="WHERE", default="latest", help="Where to begin: earliest, latest.  [latest]")
@click.option("--window", "window_ms", metavar="SPAN", type=span, default="1m", help="What is told together.  [1m]")
@click.option("--late", "late_ms", metavar="SPAN", type=span, default="10m", help="How late messages count.  [10m]")
@click.option("--keys", metavar="N", type=click.IntRange(1, 1_000), default=10, help="Busiest keys to name.  [10]")
@click.option("--no-lag", is_flag=True, help="Don't ask how far groups are.")
@stream_job
def traffic(
    launch: StreamLaunch, topics: tuple[str, ...], output: str, table: str, start: str, window_ms: int, late_ms: int,
    keys: int, no_lag: bool,
) -> int:  # fmt: skip
    """Rates, sizes, latency, hot keys and skew of topics, and the lag of groups: into a topic, and into tables."""
    from runnel.pipelines.jobs.traffic.job import TrafficConf, run

    conf = TrafficConf(
        stream=launch.conf("traffic"), topics=",".join(topics), output=output, table=table, start=start,
        window_ms=window_ms, late_ms=late_ms, keys=keys, lag=not no_lag,
    )  # fmt: skip
    return launch.stream("traffic", lambda spark: run(spark, conf))
