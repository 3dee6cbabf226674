"""`runnel pipeline archive`: topics into a lake."""

import click

from runnel.cli.command import Command
from runnel.cli.options import complete_topics, setting, size, span
from runnel.cli.pipeline_run import StreamLaunch, stream_job

EXAMPLES = """
runnel pipeline archive orders --lake lake --once            all that is there, and no more
runnel pipeline archive orders cars --lake lake --every 1m   for ever; stop it with Ctrl-C
runnel pipeline archive --pattern 'shop-.*' --lake lake      all topics of that name, new ones too
runnel pipeline archive cars --lake lake --schema 'car string, speed double'
runnel pipeline archive cars --lake lake --compact-every 60 --vacuum-after 7d
runnel group describe archive-lake                           how far behind the log it is
"""
HOUR_MS = 3_600_000


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option("--lake", metavar="DIR", required=True, help="The lake: a folder, or a URL of an object store.")
@click.option("--pattern", metavar="REGEX", help="Instead of topics: all whose whole name matches.")
@click.option("--exclude", metavar="REGEX", help="But for those.")
@click.option("--schema", metavar="DDL", help="Fields of the JSON in values, as columns; or a file .ddl or .json.")
@click.option("--prefix", metavar="TEXT", default="", help="How the names of these columns begin.")
@click.option("--from", "starting", metavar="WHERE", default="earliest", help="Where a new lake begins.  [earliest]")
@click.option("--file-size", metavar="SIZE", type=size, default="128m", help="Where a file is cut.  [128m]")
@click.option("--batch", metavar="N", type=click.IntRange(min=1), help="At most so many messages at once.  [5000000]")
@click.option("--compact-every", metavar="N", type=click.IntRange(min=0), default=0, help="Batches.  [0: never]")
@click.option("--vacuum-after", metavar="SPAN", type=span, help="Remove replaced files, at each compaction.")
@click.option("--group", metavar="GROUP", default="", help="Where its progress is seen.  [archive-LAKE]")
@click.option("--allow-loss", is_flag=True, help="Go on where messages expired before they were archived.")
@click.option("--storage", metavar="KEY=VALUE", type=setting, multiple=True, help="For the object store; repeatable.")
@stream_job
def archive(
    launch: StreamLaunch, topics: tuple[str, ...], lake: str, pattern: str | None, exclude: str | None,
    schema: str | None, prefix: str, starting: str, file_size: int, batch: int | None, compact_every: int,
    vacuum_after: int | None, group: str, allow_loss: bool, storage: tuple[tuple[str, str], ...],
) -> int:  # fmt: skip
    """Keep the history of topics in a lake: a Delta table, which anything that reads Delta can query."""
    from runnel.pipelines.conf import StreamConf
    from runnel.pipelines.jobs.archive import ROWS_PER_TRIGGER, ArchiveConf, checkpoint_in, run

    stream = StreamConf(launch.checkpoint or checkpoint_in(lake), launch.brokers, launch.once, launch.every_ms)
    conf = ArchiveConf(
        stream=stream, lake=lake, topics=topics, pattern=pattern, exclude=exclude,
        schema=schema, prefix=prefix, starting=starting, file_bytes=file_size, group=group,
        rows_per_trigger=batch or ROWS_PER_TRIGGER, compact_every=compact_every,
        vacuum_after_h=None if vacuum_after is None else vacuum_after // HOUR_MS,
        fail_on_data_loss=not allow_loss, storage=dict(storage),
    )  # fmt: skip
    return launch.stream("archive", lambda spark: run(spark, conf))
