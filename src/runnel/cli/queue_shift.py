"""`runnel queue purge` and `rewind`: moving a queue as a whole."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_queues, dry_run_option, json_option, position, yes_option

if TYPE_CHECKING:
    from runnel.client.positions import Position
    from runnel.model.calls import Moved, Shifted

_partition = click.option("-p", "--partition", metavar="N", type=click.IntRange(min=0), help="Only this partition.")


# --- purge
@click.command(
    cls=Command,
    examples="""
runnel queue purge jobs
runnel queue purge jobs -p 0 --dry-run
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@_partition
@dry_run_option
@yes_option
@json_option
@broker_option
def purge(name: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool, broker: str) -> None:
    """Give up all that waits in a queue, and what is leased: none of it is delivered any more.

    The messages stay in the topic, and can be delivered again by 'runnel queue rewind'.
    """
    from runnel.cli.output import confirm, plural
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import QUEUE_PURGE, Purge

    planned = run(broker, lambda cluster: call(cluster, QUEUE_PURGE, Purge(name, partition, True)))
    count = sum(moved.after - moved.before for moved in planned.partitions) + max(planned.scheduled, 0)
    if not as_json:
        _print_plan(planned)
    done = planned
    if not dry_run:
        if count or planned.scheduled < 0:
            confirm(f"This gives up {plural(count, 'message')} of {name}{_unknown(planned)}.", yes=yes)
        done = run(broker, lambda cluster: call(cluster, QUEUE_PURGE, Purge(name, partition)))
    _report(name, done, dry_run=dry_run, as_json=as_json, word="purged")


# --- rewind
@click.command(
    cls=Command,
    examples="""
runnel queue rewind jobs --to @2026-11-15T09:00Z     all since then again
runnel queue rewind jobs --to start                  everything again
runnel queue rewind jobs -p 0 --to 1500              one partition, from an offset on
runnel queue rewind jobs --to end --dry-run          skip what is there
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option(
    "--to", "target", metavar="PLACE", type=position, required=True,
    help="start, end, @TIME (ISO 8601 or epoch ms), or an offset of a partition.",
)  # fmt: skip
@_partition
@dry_run_option
@yes_option
@json_option
@broker_option
def rewind(
    name: str, target: "Position", partition: int | None, dry_run: bool, yes: bool, as_json: bool, broker: str
) -> None:
    """Have a queue go on from another place: what lies behind it is delivered (again), what lies before is done.

    Leases that are out are void: who has one can't accept it any more. What waits for another attempt does not wait any
    more: it is delivered (again) with the others, or done.
    """
    from msgspec.structs import replace

    from runnel.cli.output import confirm
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.client.positions import From
    from runnel.model.calls import QUEUE_REWIND, Rewind

    if target.anchor is From.STORED or (target.anchor in (From.START, From.END) and target.number):
        raise click.UsageError("a queue is rewound to start, end, @TIME or an offset")
    if target.anchor is From.OFFSET and partition is None:
        raise click.UsageError("an offset is that of a partition: name it with -p")
    time_ms = target.number if target.anchor is From.TIME else -1
    offset = target.number if target.anchor is From.OFFSET else -1
    asked = Rewind(name, target.anchor.value, offset, time_ms, partition)

    planned = run(broker, lambda cluster: call(cluster, QUEUE_REWIND, replace(asked, dry_run=True)))
    if not as_json:
        _print_plan(planned)
    done = planned
    if not dry_run:
        confirm(f"This moves queue {name}; leases that are out are void then.", yes=yes)
        done = run(broker, lambda cluster: call(cluster, QUEUE_REWIND, asked))
    _report(name, done, dry_run=dry_run, as_json=as_json, word="rewound")


# --- what both print
def _unknown(shifted: "Shifted") -> str:
    """The words for a count of messages that may be too low: the schedule was not asked."""
    return "" if shifted.scheduled >= 0 else ", and those that wait in the schedule, which could not be asked"


def _print_plan(shifted: "Shifted") -> None:
    from runnel.cli.output import left, note, print_table, right

    rows = [(f"{m.topic}/{m.partition}", m.before, m.after, f"{m.after - m.before:+,}") for m in _moved(shifted)]
    print_table([*left("PARTITION"), *right("BEFORE", "AFTER", "MOVED")], rows)
    if shifted.scheduled > 0:
        note(f"{shifted.scheduled:,} wait in the schedule for another attempt, and are taken out too")
    elif shifted.scheduled < 0:
        note("the schedule could not be asked: what waits in it for another attempt is taken out too")
    for moved in shifted.partitions:
        if moved.failure is not None:
            note(f"{moved.topic}/{moved.partition} can't be moved now: {moved.failure.message}")


def _moved(shifted: "Shifted") -> "list[Moved]":
    return [moved for moved in shifted.partitions if moved.failure is None]


def _report(name: str, shifted: "Shifted", *, dry_run: bool, as_json: bool, word: str) -> None:
    from runnel.cli.output import plural, print_json

    if as_json:
        rows = [_row(moved) for moved in shifted.partitions]
        print_json({"queue": name, word: not dry_run, "scheduled": shifted.scheduled, "partitions": rows})
    elif dry_run:
        click.echo("Nothing was changed (--dry-run).")
    else:
        changed = sum(moved.before != moved.after for moved in _moved(shifted))
        scheduled = f", and {shifted.scheduled:,} that waited in the schedule" if shifted.scheduled > 0 else ""
        click.echo(f"{word} queue {name} in {plural(changed, 'partition')}{scheduled}")
    if not dry_run and any(moved.failure for moved in shifted.partitions):
        raise click.ClickException("some partitions could not be moved: repeat it for them")


def _row(moved: "Moved") -> dict[str, Any]:
    row: dict[str, Any] = {"topic": moved.topic, "partition": moved.partition}
    row |= {"before": moved.before, "after": moved.after}
    return row | {"failure": moved.failure.message if moved.failure else None}
