"""`runnel pipeline replay`: a slice of a lake, back into topics."""

from typing import TYPE_CHECKING

import click

from runnel.cli.command import Command
from runnel.cli.options import complete_topics, dry_run_option, moment, setting
from runnel.cli.pipeline_run import Launch, batch_job

if TYPE_CHECKING:
    from runnel.pipelines.jobs.replay import Replayed

EXAMPLES = """
runnel pipeline replay --lake lake --topic orders --to orders-again -n     what it would be
runnel pipeline replay --lake lake --topic orders --to orders-again --since 2026-03-01T00:00:00Z
runnel pipeline replay --lake lake --to repair --key car-17 --rate 1000
runnel pipeline replay --lake lake --to slow --where "speed < 3 and topic = 'cars'"
runnel pipeline replay --lake lake --map orders=orders2 --map cars=cars2
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--lake", metavar="DIR", required=True, help="The lake.")
@click.option("--to", "target", metavar="TOPIC", shell_complete=complete_topics, help="Where messages go.")
@click.option("--map", "targets", metavar="FROM=TO", type=setting, multiple=True, help="By topic; repeatable.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Of this topic; repeatable.  [all]")
@click.option("--partition", "partitions", metavar="N", type=click.IntRange(min=0), multiple=True, help="Repeatable.")
@click.option("--since", "since_ms", metavar="TIME", type=moment, help="From then on: ISO 8601 or ms since 1970.")
@click.option("--until", "until_ms", metavar="TIME", type=moment, help="Up to then, without it.")
@click.option("--key", metavar="TEXT", help="With this key.")
@click.option("--where", metavar="SQL", help="For which this holds; columns as in the lake.")
@click.option("--version", metavar="N", type=click.IntRange(min=0), help="Of the lake as it was then.  [now]")
@click.option("--by", type=click.Choice(("auto", "partition", "key")), default="auto", help="Which partition.  [auto]")
@click.option("--rate", metavar="N", type=click.IntRange(min=1), help="At most so many messages a second.")
@click.option("--id", "id_", metavar="NAME", default="", help="Go on with, or begin, the replay of this name.")
@click.option("--state", metavar="DIR", default="", help="Where its plan is kept.  [data-pipelines/replay/NAME]")
@dry_run_option
@batch_job
def replay(
    launch: Launch, lake: str, target: str | None, targets: tuple[tuple[str, str], ...], topics: tuple[str, ...],
    partitions: tuple[int, ...], since_ms: int | None, until_ms: int | None, key: str | None, where: str | None,
    version: int | None, by: str, rate: int | None, id_: str, state: str, dry_run: bool,
) -> int:  # fmt: skip
    """Send a slice of a lake to topics again: each message once, in order, with where it was in its headers.

    The same command goes on where it was stopped; when it is done, it does nothing more. For another copy, give --id.
    """
    from runnel.cli.output import note
    from runnel.pipelines.jobs.replay import ReplayConf, run

    conf = ReplayConf(
        lake=lake, target=target, targets=dict(targets), brokers=launch.brokers, topics=topics, partitions=partitions,
        since_ms=since_ms, until_ms=until_ms, key=key, where=where, version=version, by=by, rate=rate, id=id_,
        state=state, dry_run=dry_run,
    )  # fmt: skip
    done = launch.batch("replay", lambda spark: run(spark, conf, lambda text: note(f"replay: {text}")))
    _show(done, as_json=launch.as_json)
    return 0


def _show(done: "Replayed", *, as_json: bool) -> None:
    from dataclasses import asdict

    from runnel.cli.output import left, note, plural, print_json, print_table, right
    from runnel.cli.template import iso_of

    if as_json:
        print_json(asdict(done))
        return
    if done.dry_run:
        print_table(
            [
                *left("TOPIC"),
                *right("PARTITION"),
                *left("TO"),
                *right("ROWS", "FIRST", "LAST"),
                *left("SINCE", "UNTIL"),
            ],
            [
                (s.topic, s.partition, s.target, f"{s.rows:,}", s.first, s.last, iso_of(s.first_ms), iso_of(s.last_ms))
                for s in done.slices
            ],
            none="No row of the lake is in this slice.",
        )
    earlier = f"; {done.batches_before} batches were there before" if done.batches_before else ""
    if done.batches_before and not done.batches:
        earlier = "; all was sent before, and another copy needs another --id"
    said = "would be sent" if done.dry_run else "sent"
    note(f"replay {done.id}: {plural(done.rows, 'message')} {said}, by {done.by}, of version {done.version}{earlier}")
