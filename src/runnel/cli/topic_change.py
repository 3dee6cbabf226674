"""`runnel topic create`, `alter` and `partitions`."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import (
    alter_options,
    broker_option,
    check_resets,
    complete_topics,
    dry_run_option,
    json_option,
    setting,
)

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster


# --- create
@click.command(
    cls=Command,
    examples="""
runnel topic create orders
runnel topic create orders -p 12 -c retention.ms=86400000
runnel topic create users -c cleanup.policy=compact
runnel topic create clicks -c flush.mode=os --if-not-exists
""",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", metavar="N", type=click.IntRange(min=1), help="Partitions of each.  [default: the broker's]"
)
@click.option(
    "-r", "--replicas", metavar="N", type=click.IntRange(min=1), help="Copies of each.  [default: the broker's]"
)
@click.option("-c", "--config", metavar="KEY=VALUE", type=setting, multiple=True, help="A setting; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="It is no error if the topic is there.")
@dry_run_option
@json_option
@broker_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    config: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
    broker: str,
) -> None:
    """Create topics."""
    from runnel.cli.output import plural, print_json
    from runnel.cli.session import run
    from runnel.client.admin import BROKER_DEFAULT, Admin, CreatedTopic, NewTopic
    from runnel.model.errors import TopicAlreadyExists

    async def work(cluster: "Cluster") -> list[tuple[str, CreatedTopic | None]]:
        made: list[tuple[str, CreatedTopic | None]] = []
        for name in names:
            new = NewTopic(name, partitions or BROKER_DEFAULT, replicas or BROKER_DEFAULT, dict(config))
            try:
                made.append((name, (await Admin(cluster).create_topics([new], validate_only=dry_run))[0]))
            except TopicAlreadyExists:
                if not if_not_exists:
                    raise
                made.append((name, None))
        return made

    for name, created in run(broker, work):
        if as_json:
            print_json(_created_json(name, created, dry_run))
        elif created is None:
            click.echo(f"topic {name} exists already")
        else:
            would = "would create" if dry_run else "created"
            click.echo(f"{would} topic {name} with {plural(created.partitions, 'partition')}")


def _created_json(name: str, created: Any, dry_run: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": name, "created": created is not None and not dry_run}
    if created is not None:
        row |= {"id": str(created.id), "partitions": created.partitions, "replicas": created.replicas}
    return row


# --- alter
@click.command(
    cls=Command,
    examples="""
runnel topic alter orders -c retention.ms=86400000
runnel topic alter orders -c max.message.bytes=10485760 --reset retention.ms
runnel topic alter orders -c flush.mode=os --dry-run
""",
)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@alter_options
@dry_run_option
@json_option
@broker_option
def alter(
    name: str, config: tuple[tuple[str, str], ...], reset: tuple[str, ...], dry_run: bool, as_json: bool, broker: str
) -> None:
    """Change settings of a topic."""
    from runnel.cli.output import print_changes
    from runnel.cli.session import run
    from runnel.client.admin import Admin

    if not config and not reset:
        raise click.UsageError("nothing to change: give -c KEY=VALUE or --reset KEY")

    async def work(cluster: "Cluster") -> list[tuple[str, str | None, str | None]]:
        admin = Admin(cluster)
        await admin.topics([name])
        before = {c.name: c.value for c in (await admin.configs([name]))[name]}
        check_resets("topic", reset, before)
        await admin.alter_config(name, set_=dict(config), reset=reset, validate_only=dry_run)
        after = {c.name: c.value for c in (await admin.configs([name]))[name]}
        if dry_run:
            after |= dict(config) | dict.fromkeys(reset, "(default)")
        return [(key, before.get(key), after.get(key)) for key in (*dict(config), *reset)]

    print_changes({"topic": name}, run(broker, work), dry_run=dry_run, as_json=as_json)


# --- partitions
@click.command(
    cls=Command,
    examples="""
runnel topic partitions orders 12         twelve in all
runnel topic partitions orders 12 --dry-run
""",
)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("count", type=click.IntRange(min=1))
@dry_run_option
@json_option
@broker_option
def partitions(name: str, count: int, dry_run: bool, as_json: bool, broker: str) -> None:
    """Give a topic more partitions: COUNT in all.

    There is no way back, and keys move: from then on, most keys belong to another partition than before.
    """
    from runnel.cli.output import plural, print_json
    from runnel.cli.session import run
    from runnel.client.admin import Admin

    async def work(cluster: "Cluster") -> int:
        admin = Admin(cluster)
        before = len((await admin.topics([name]))[name].partitions)
        await admin.create_partitions(name, count, validate_only=dry_run)
        return before

    before = run(broker, work)
    if as_json:
        print_json({"topic": name, "changed": not dry_run, "before": before, "partitions": count})
    else:
        would = "would have" if dry_run else "has"
        click.echo(f"topic {name} {would} {plural(count, 'partition')} (before: {before})")
