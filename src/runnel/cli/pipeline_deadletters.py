"""`runnel pipeline deadletters`: a report of a queue's dead letters, and their repair."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import complete_queues, dry_run_option
from runnel.cli.pipeline_run import StreamLaunch, stream_job

if TYPE_CHECKING:
    from runnel.pipelines.jobs.deadletters.job import DeadLettersConf, Group

EXAMPLES = """
runnel pipeline deadletters jobs                              what died, grouped by reason
runnel pipeline deadletters jobs --repair fixes.py:fix -n     what a function would make of it
runnel pipeline deadletters jobs --repair fixes.py:fix --once repair what is there, and send it back
runnel pipeline deadletters jobs --repair fixes.py:fix --rate 100
runnel consume jobs.repairs -e                                what happened to each
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("--repair", metavar="MODULE:FUNCTION", default="", help="What repairs a letter; also FILE.py:FUNCTION.")
@click.option("--rounds", metavar="N", type=click.IntRange(min=1), default=3, help="Repairs of one message.  [3]")
@click.option("--park", metavar="TOPIC", help="Where what comes back too often goes; '' leaves it.  [QUEUE.parked]")
@click.option("--accounts", metavar="TOPIC", help="Where it is told what happened to each.  [QUEUE.repairs]")
@click.option("--rate", metavar="N", type=click.IntRange(min=1), help="At most so many messages a second.")
@click.option("--batch", metavar="N", type=click.IntRange(min=1), default=5_000, help="Letters at once.  [5000]")
@click.option("--error-header", metavar="NAME", default="error", help="A header to group by, too.  [error]")
@dry_run_option
@stream_job
def deadletters(
    launch: StreamLaunch, name: str, repair: str, rounds: int, park: str | None, accounts: str | None,
    rate: int | None, batch: int, error_header: str, dry_run: bool,
) -> int:  # fmt: skip
    """Group the dead letters of a queue by reason; repair them, and send them back to where they came from."""
    from runnel.pipelines.jobs.deadletters.job import DeadLettersConf, run

    conf = DeadLettersConf(
        stream=launch.conf(f"deadletters-{name}"), queue=name, repair=repair, rounds_max=rounds, parking=park,
        accounts=accounts, rate_max=rate or 0, batch_max=batch, error_header=error_header,
    )  # fmt: skip
    conf.check()
    if dry_run or not repair:
        return _report(launch, conf)
    told: Counter[str] = Counter()
    code = launch.stream("deadletters", lambda spark: run(spark, conf, told))
    _summarize(conf, told, as_json=launch.as_json)
    return code


def _summarize(conf: "DeadLettersConf", told: Counter[str], *, as_json: bool) -> None:
    from runnel.cli.output import note, print_json

    if as_json:
        print_json({"job": "deadletters", "outcomes": dict(told)})
    else:
        shown = ", ".join(f"{count:,} {outcome}" for outcome, count in told.most_common()) or "no letters"
        note(f"deadletters: {shown}; 'runnel consume {conf.accounts_topic} -e' tells of each")


def _report(launch: StreamLaunch, conf: "DeadLettersConf") -> int:
    from runnel.cli.output import print_json
    from runnel.pipelines.jobs.deadletters.job import report

    groups = launch.batch("deadletters", lambda spark: report(spark, conf))
    if launch.as_json:
        for group in groups:
            print_json(group._asdict())
    else:
        _print(groups, conf.queue)
    return 0


def _print(groups: "list[Group]", queue: str) -> None:
    from runnel.cli.output import left, print_table, right

    print_table(
        [*right("LETTERS"), *left("OUTCOME", "REASON", "ERROR", "FROM", "AGE", "OLDEST", "EXAMPLE", "WHY")],
        [_cells(group) for group in groups],
        none=f"Queue {queue} has no dead letters.",
    )


def _cells(group: "Group") -> tuple[Any, ...]:
    from runnel.cli.template import iso_of

    oldest = iso_of(group.oldest_ms)
    return (
        f"{group.letters:,}", group.outcome, group.reason, group.error or None, group.topic or None, group.age, oldest,
        group.example, group.why or None,
    )  # fmt: skip
