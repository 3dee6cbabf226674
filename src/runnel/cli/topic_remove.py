"""`runnel topic delete` and `trim`: what can't be undone."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import (
    POSITION_HELP,
    broker_option,
    complete_topics,
    dry_run_option,
    json_option,
    position,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runnel.client.cluster import Cluster
    from runnel.client.positions import Position
    from runnel.client.trimming import TrimStep


ORPHAN = "a view whose source is gone"


# --- delete
@click.command(
    cls=Command,
    examples="""
runnel topic delete orders
runnel topic delete orders clicks --yes
""",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@yes_option
@json_option
@broker_option
def delete(names: tuple[str, ...], yes: bool, as_json: bool, broker: str) -> None:
    """Delete topics with all their messages."""
    from runnel.cli.output import confirm, plural, print_json
    from runnel.cli.session import run
    from runnel.client.admin import Admin
    from runnel.model.limits import topic_name_problem

    for name in names:
        if problem := topic_name_problem(name):
            raise click.UsageError(f"nothing was deleted: {problem}")
    counts = run(broker, lambda cluster: _held(cluster, names))
    lost = ", ".join(f"{name} ({ORPHAN if n is None else plural(n, 'message')})" for name, n in counts.items())
    confirm(f"This deletes {lost} for ever.", yes=yes)
    run(broker, lambda cluster: Admin(cluster).delete_topics(names))
    for name in names:
        if as_json:
            print_json({"topic": name, "deleted": True})
        else:
            click.echo(f"deleted topic {name}")


async def _held(cluster: "Cluster", names: "Sequence[str]") -> dict[str, int | None]:
    """How many messages each topic has; None for a view whose source is gone, which has none to be counted."""
    from runnel.cli.topic_show import limits_of
    from runnel.client.admin import Admin
    from runnel.model.errors import InvalidTopicName

    counts: dict[str, int | None] = dict.fromkeys(names)
    for name in names:
        try:
            topics = await Admin(cluster).topics([name])
        except InvalidTopicName:
            continue
        limits = await limits_of(cluster, list(topics.values()))
        counts[name] = sum(each.end - each.start for each in limits.values())
    return counts


# --- trim
@click.command(
    cls=Command,
    examples="""
runnel topic trim orders --before @2026-11-01         all that is older
runnel topic trim orders --before end                 everything
runnel topic trim orders -p 0 --before 1500 --dry-run
runnel topic trim orders --before -1000 --yes         keep the last 1000 of each partition
""",
)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "--before", "target", metavar="OFFSET", type=position, required=True, help=f"Up to here: {POSITION_HELP}."
)
@click.option(
    "-p", "--partition", "numbers", metavar="N", type=click.IntRange(min=0), multiple=True, help="Only this partition."
)
@dry_run_option
@yes_option
@json_option
@broker_option
def trim(
    name: str, target: "Position", numbers: tuple[int, ...], dry_run: bool, yes: bool, as_json: bool, broker: str
) -> None:
    """Remove the oldest messages of a topic, for ever."""
    from runnel.cli.output import confirm, plural, print_json, print_table, right
    from runnel.cli.session import run
    from runnel.client.positions import From
    from runnel.client.trimming import trim as remove

    if target.anchor is From.STORED:
        raise click.UsageError("what a group stored is no place to trim to: use an offset, end, +N, -N or @TIME")
    plan = run(broker, lambda cluster: _plan_trim(cluster, name, target, numbers))
    lost = sum(step.removed for step in plan)
    if not as_json:
        rows = [(step.where.partition, step.before, step.after, step.removed) for step in plan]
        print_table(right("PARTITION", "START", "NEW START", "REMOVED"), rows)
    if dry_run:
        if as_json:
            print_json({"topic": name, "trimmed": False, "partitions": [_trim_row(step) for step in plan]})
        else:
            click.echo(f"Nothing was removed (--dry-run); it would be {plural(lost, 'message')}.")
        return
    if lost:
        confirm(f"This removes {plural(lost, 'message')} of {name} for ever.", yes=yes)
        run(broker, lambda cluster: remove(cluster, plan))
    if as_json:
        print_json({"topic": name, "trimmed": lost > 0, "partitions": [_trim_row(step) for step in plan]})
    else:
        click.echo(f"removed {plural(lost, 'message')} of {name}")


async def _plan_trim(cluster: "Cluster", name: str, target: "Position", numbers: tuple[int, ...]) -> "list[TrimStep]":
    from runnel.client.admin import Admin
    from runnel.client.metadata import TopicPartition
    from runnel.client.trimming import plan_trim

    if source := await _viewed(cluster, name):
        raise click.ClickException(f"{name} is a view and has no messages of its own: trim {source}, its source")
    found = (await Admin(cluster).topics([name]))[name]
    return await plan_trim(cluster, [TopicPartition(name, n) for n in (numbers or found.partitions)], target)


def _trim_row(step: "TrimStep") -> dict[str, Any]:
    return {
        "partition": step.where.partition, "start_offset": step.before, "new_start_offset": step.after,
        "removed": step.removed,
    }  # fmt: skip


async def _viewed(cluster: "Cluster", name: str) -> str | None:
    """The topic that a view is of; None if it is no view."""
    from runnel.client.admin import Admin

    settings = (await Admin(cluster).configs([name], ["view.of"]))[name]
    return next((setting.value for setting in settings if setting.value), None)
