"""`runnel pipeline audit`: log, lake and replays against each other."""

from typing import TYPE_CHECKING

import click

from runnel.cli.command import Command
from runnel.cli.options import complete_topics
from runnel.cli.pipeline_run import Launch, batch_job

if TYPE_CHECKING:
    from runnel.pipelines.jobs.audit.job import Report

EXAMPLES = """
runnel pipeline audit --lake lake                              what the log holds, against the lake
runnel pipeline audit --lake lake --topic orders --to committed --group archive-lake
runnel pipeline audit --lake lake --alone                      the lake against its own commits
runnel pipeline audit --topic orders --replayed orders-again   a topic against its replay
runnel pipeline audit --lake lake --replayed repair --where "key = X'6b'"
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--lake", metavar="DIR", help="The lake.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, shell_complete=complete_topics, help="Repeatable.")
@click.option("--replayed", metavar="TOPIC", shell_complete=complete_topics, help="A topic that a replay filled.")
@click.option("--alone", is_flag=True, help="The lake and nothing else: no broker is asked.")
@click.option(
    "--from", "first", metavar="WHERE", default="earliest", help="A time, -N, or JSON of offsets.  [earliest]"
)
@click.option("--to", "end", metavar="WHERE", default="latest", help="The same, or committed, with --group.  [latest]")
@click.option("--group", metavar="GROUP", default="", help="Whose committed offsets are meant.")
@click.option("--where", metavar="SQL", help="The rows of the lake that were replayed.")
@click.option("--version", metavar="N", type=click.IntRange(min=0), help="Of the lake as it was then.  [now]")
@batch_job
def audit(
    launch: Launch, lake: str | None, topics: tuple[str, ...], replayed: str | None, alone: bool, first: str, end: str,
    group: str, where: str | None, version: int | None,
) -> int:  # fmt: skip
    """Prove that nothing is lost, doubled or out of order between two points; or say where it is.

    Exit code 0: proven. 1: something is wrong. 3: nothing is wrong, and not all of it can be proven.
    """
    from runnel.pipelines.jobs.audit.job import AuditConf, run

    conf = AuditConf(
        brokers=launch.brokers, topics=topics, lake=lake, version=version, alone=alone, replayed=replayed,
        first=first, end=end, group=group, where=where,
    )  # fmt: skip
    report = launch.batch("audit", lambda spark: run(spark, conf))
    _show(report, as_json=launch.as_json)
    return report.verdict


def _show(report: "Report", *, as_json: bool) -> None:
    from runnel.cli.output import left, note, print_json, print_table, right
    from runnel.pipelines.jobs.audit.job import lines

    told = report.as_json()
    if as_json:
        print_json(told)
        return
    print_table(
        [*left("TOPIC"), *right("PARTITION", "OUGHT", "THERE", "GAPS"), *left("FOUND")],
        [
            (
                each["topic"], each["partition"], f"{each['left']:,}", f"{each['right']:,}",
                sum(each["gaps"].values()), ", ".join(f"{f['count']} {f['kind']}" for f in each["findings"]) or None,
            )
            for each in told["partitions"]
        ],
        none="There is nothing to look at.",
    )  # fmt: skip
    for line in lines(report):
        click.echo(line)
    note(f"audit of {report.left} against {report.right}: {told['verdict']}")
