"""`runnel group`: who reads what, how far they are, and moving them."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Group
from runnel.cli.options import (
    POSITION_HELP,
    broker_option,
    complete_groups,
    dry_run_option,
    json_option,
    position,
    yes_option,
)

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster
    from runnel.client.group_admin import GroupDescription, GroupListing, Lag, SeekStep
    from runnel.client.metadata import TopicPartition
    from runnel.client.positions import Position


@click.group(
    cls=Group,
    examples="""
runnel group ls                                  which there are
runnel group describe billing                    members, and lag of each partition
runnel group seek billing --to @2026-11-15T09:00Z --dry-run
""",
)
def group() -> None:
    """Look at consumer groups; move and delete them."""


_name = click.argument("name", metavar="GROUP", shell_complete=complete_groups)


# --- ls
@group.command(
    examples="""
runnel group ls
runnel group ls --json | jq -r 'select(.state == "Empty") | .group'
"""
)
@json_option
@broker_option
def ls(as_json: bool, broker: str) -> None:
    """List the groups."""
    from runnel.cli.output import left, note_silent, print_json, print_table
    from runnel.cli.session import run
    from runnel.client.group_admin import GroupAdmin

    async def work(cluster: "Cluster") -> "list[GroupListing]":
        admin = GroupAdmin(cluster)
        groups = await admin.groups()
        note_silent(admin.silent)
        return groups

    groups = run(broker, work)
    if as_json:
        for g in groups:
            print_json({"group": g.name, "state": g.state, "type": g.kind, "protocol": g.protocol})
        return
    print_table(
        left("GROUP", "STATE", "TYPE"), [(g.name, g.state, g.kind) for g in groups], none="There are no groups."
    )


# --- describe
@group.command(
    examples="""
runnel group describe billing
runnel group describe billing --json | jq .lag
"""
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@json_option
@broker_option
def describe(names: tuple[str, ...], as_json: bool, broker: str) -> None:
    """Show state, members, and for each partition how far the group is."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run
    from runnel.client.group_admin import GroupAdmin

    async def work(cluster: "Cluster") -> "list[tuple[GroupDescription, list[Lag]]]":
        admin = GroupAdmin(cluster)
        found = [await admin.describe(name) for name in names]
        return [(description, await admin.lags(description)) for description in found]

    for description, lags in run(broker, work):
        if as_json:
            print_json(_described_json(description, lags))
        else:
            _print_described(description, lags)


def _described_json(description: "GroupDescription", lags: "list[Lag]") -> dict[str, Any]:
    return {
        "group": description.name,
        "state": description.state,
        "type": description.kind,
        "assignor": description.assignor,
        "coordinator": description.coordinator,
        "lag": sum(lag.lag for lag in lags),
        "members": [
            {
                "member": x.id,
                "instance": x.instance_id,
                "client": x.client_id,
                "host": x.host,
                "partitions": [{"topic": w.topic, "partition": w.partition} for w in x.partitions],
            }
            for x in description.members
        ],
        "partitions": [
            {
                "topic": lag.where.topic,
                "partition": lag.where.partition,
                "committed_offset": lag.committed,
                "start_offset": lag.limits.start,
                "end_offset": lag.limits.end,
                "lag": lag.lag,
                "member": lag.member.id if lag.member else None,
            }
            for lag in lags
        ],
    }


def _print_described(description: "GroupDescription", lags: "list[Lag]") -> None:
    from runnel.cli.output import Column, left, print_table, right, say

    total = sum(lag.lag for lag in lags)
    say(f"Group {description.name}  state {description.state}  type {description.kind}  lag {total:,}")
    say(f"coordinator {description.coordinator}  assignor {description.assignor or '-'}")
    if description.members:
        click.echo()
        print_table(
            [*left("MEMBER", "CLIENT", "HOST"), *right("PARTITIONS")],
            [(x.instance_id or x.id, x.client_id, x.host, len(x.partitions)) for x in description.members],
        )
    click.echo()
    if not lags:
        click.echo("It has committed no offsets.")
        return
    print_table(
        [*left("TOPIC"), *right("PARTITION", "COMMITTED", "END", "LAG"), Column("MEMBER")],
        [
            (
                lag.where.topic,
                lag.where.partition,
                lag.committed,
                lag.limits.end,
                f"{lag.lag:,}",
                (lag.member.instance_id or lag.member.id) if lag.member else None,
            )
            for lag in lags
        ],
    )


# --- seek
@group.command(
    examples="""
runnel group seek billing --to start                       read everything again
runnel group seek billing orders --to @2026-11-15T09:00Z   one topic, from a time on
runnel group seek billing orders/0 --to stored-100         one partition, 100 back
runnel group seek billing --to end --dry-run               only show what would change
"""
)
@_name
@click.argument("targets", metavar="[TOPIC[/PARTITION]]...", nargs=-1)
@click.option("--to", "target", metavar="OFFSET", type=position, required=True, help=f"Where to: {POSITION_HELP}.")
@dry_run_option
@yes_option
@json_option
@broker_option
def seek(
    name: str, targets: tuple[str, ...], target: "Position", dry_run: bool, yes: bool, as_json: bool, broker: str
) -> None:
    """Move a group: from where its members go on reading.

    Without topics, all that the group has committed are moved. The group must have no members; a group that does not
    exist is created.
    """
    from runnel.cli.output import confirm, plural, print_json
    from runnel.cli.session import run
    from runnel.client.group_admin import GroupAdmin

    async def plan(cluster: "Cluster") -> "list[SeekStep]":
        wanted = await _seek_partitions(cluster, name, targets)
        return await GroupAdmin(cluster).plan_seek(name, dict.fromkeys(wanted, target))

    steps = run(broker, plan)
    if not as_json:
        _print_plan(steps)
    if dry_run:
        if not as_json:
            click.echo("Nothing was changed (--dry-run).")
    else:
        changed = sum(step.before != step.after for step in steps)
        confirm(f"This moves group {name} in {plural(changed, 'partition')}.", yes=yes)
        run(broker, lambda cluster: GroupAdmin(cluster).seek(name, steps))
        if not as_json:
            click.echo(f"moved group {name} in {plural(changed, 'partition')}")
    if as_json:
        print_json({"group": name, "moved": not dry_run, "partitions": [_step_json(step) for step in steps]})


def _step_json(step: "SeekStep") -> dict[str, Any]:
    return {
        "topic": step.where.topic,
        "partition": step.where.partition,
        "before": step.before,
        "after": step.after,
        "end_offset": step.limits.end,
        "lag": step.limits.end - step.after,
    }


def _print_plan(steps: "list[SeekStep]") -> None:
    from runnel.cli.output import left, print_table, right

    rows = [(s.where.topic, s.where.partition, s.before, s.after, f"{s.limits.end - s.after:,}") for s in steps]
    print_table([*left("TOPIC"), *right("PARTITION", "BEFORE", "AFTER", "LAG AFTER")], rows)


async def _seek_partitions(cluster: "Cluster", name: str, targets: tuple[str, ...]) -> "list[TopicPartition]":
    from runnel.client.admin import Admin
    from runnel.client.group_admin import GroupAdmin
    from runnel.client.metadata import TopicPartition

    if not targets:
        committed = list(await GroupAdmin(cluster).positions(name))
        if not committed:
            raise click.ClickException(f"group {name!r} has committed nothing: name the topics to seek")
        return committed
    wanted = []
    for text in targets:
        topic, slash, number = text.partition("/")
        if slash and not number.isdecimal():
            raise click.UsageError(f"{text!r} is not TOPIC or TOPIC/PARTITION")
        found = (await Admin(cluster).topics([topic]))[topic]
        numbers = [int(number)] if slash else list(found.partitions)
        for n in numbers:
            await cluster.partition(TopicPartition(topic, n))
        wanted += [TopicPartition(topic, n) for n in numbers]
    return wanted


# --- delete
@group.command(
    examples="""
runnel group delete billing
runnel group delete billing audit --yes
"""
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@yes_option
@json_option
@broker_option
def delete(names: tuple[str, ...], yes: bool, as_json: bool, broker: str) -> None:
    """Delete groups with the offsets they committed. They must have no members."""
    from runnel.cli.output import confirm, print_json
    from runnel.cli.session import run
    from runnel.client.group_admin import GroupAdmin

    async def work(cluster: "Cluster") -> None:
        for name in names:
            await GroupAdmin(cluster).delete(name)

    confirm(f"This deletes the committed offsets of {', '.join(names)}.", yes=yes)
    run(broker, work)
    for name in names:
        if as_json:
            print_json({"group": name, "deleted": True})
        else:
            click.echo(f"deleted group {name}")
