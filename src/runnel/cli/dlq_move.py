"""`runnel dlq redrive` and `drop`."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.dlq_show import place
from runnel.cli.options import broker_option, complete_queues, dry_run_option, json_option, setting, yes_option

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster
    from runnel.model.calls import Place, Redrive, RedriveState

LOOK_MS = 250  # a re-drive that takes long is asked so often how far it is
RUNNING, DONE = "running", "done"

_only = click.option(
    "--only", metavar="PARTITION/OFFSET", type=place, multiple=True, help="This letter alone; may be repeated."
)


# --- redrive
@click.command(
    cls=Command,
    examples="""
runnel dlq redrive jobs --dry-run                  what would be sent back
runnel dlq redrive jobs                            all that is there now
runnel dlq redrive jobs --filter "body.customer = 'acme'" --rate 100
runnel dlq redrive jobs --only 0/17 --value '{"amount": 5}'     one, repaired
runnel dlq redrive jobs --merge '{"currency": "EUR"}'           all, with a field set
runnel dlq redrive jobs --to jobs.v2 --set-header repaired=yes
runnel dlq redrive jobs --status                   how far it is; --stop ends it
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("--filter", "text", metavar="TEXT", default="", help="Only letters that pass this filter.")
@_only
@click.option("--to", "target", metavar="TOPIC", default="", help="Send them there instead of where they came from.")
@click.option("--rate", metavar="N", type=click.IntRange(min=1), help="At most so many messages a second.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most so many messages.")
@click.option("--value", help="The new value of the one letter that --only names.")
@click.option(
    "--set-header", "headers", metavar="NAME=VALUE", type=setting, multiple=True, help="Add or replace this header."
)
@click.option("--remove-header", "without", metavar="NAME", multiple=True, help="Leave this header out.")
@click.option("--merge", metavar="JSON", default="", help="Merge this into each value, which must be JSON (RFC 7396).")
@click.option("--detach", is_flag=True, help="Don't wait until it is done.")
@click.option("--status", is_flag=True, help="Say how far the last re-drive of this queue is.")
@click.option("--stop", is_flag=True, help="Stop the re-drive that runs.")
@dry_run_option
@yes_option
@json_option
@broker_option
def redrive(
    name: str,
    text: str,
    only: "tuple[Place, ...]",
    target: str,
    rate: int | None,
    limit: int | None,
    value: str | None,
    headers: tuple[tuple[str, str], ...],
    without: tuple[str, ...],
    merge: str,
    detach: bool,
    status: bool,
    stop: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    broker: str,
) -> None:
    """Send dead letters back to where they came from, each once.

    It is done by the brokers, goes on when one fails, and can be stopped. A letter that was sent back is not sent again
    by the next re-drive.
    """
    from base64 import b64encode

    from runnel.model.calls import Redrive

    if status or stop:
        _look(name, stop=stop, as_json=as_json, broker=broker)
        return
    if value is not None and len(only) != 1:
        raise click.UsageError("--value is that of one letter: name it with --only PARTITION/OFFSET")
    coded = b64encode(value.encode()).decode() if value is not None else ""
    asked = Redrive(
        name, text, target, rate or 0, limit or 0, True, list(only), coded, dict(headers), list(without), merge,
        empties=value == "",
    )  # fmt: skip
    _redrive(asked, dry_run=dry_run, detach=detach, yes=yes, as_json=as_json, broker=broker)


def _redrive(asked: "Redrive", *, dry_run: bool, detach: bool, yes: bool, as_json: bool, broker: str) -> None:
    from msgspec.structs import replace

    from runnel.cli.output import confirm, plural
    from runnel.cli.session import run

    state = run(broker, lambda cluster: _driven(cluster, asked))
    if dry_run:
        _print_plan(state, as_json=as_json)
    elif state.state == DONE and not state.moved:
        _print_nothing(replace(state, dry_run=False), as_json=as_json)
    else:
        if state.state == DONE:
            where = f"to {asked.to}" if asked.to else "back to where they came from"
            confirm(f"This sends {plural(state.moved, 'dead letter')} of {asked.queue} {where}.", yes=yes)
            state = run(broker, lambda cluster: _driven(cluster, replace(asked, dry_run=False), detach=detach))
        _print_state(state, as_json=as_json)
    if state.failure and state.state == DONE:
        raise click.ClickException(f"not all dead letters of {asked.queue} can go back; the first: {state.failure}")
    if state.failure:
        raise click.ClickException(f"the re-drive of {asked.queue} failed: {state.failure}")


async def _driven(cluster: "Cluster", asked: "Redrive", *, detach: bool = False) -> "RedriveState":
    """Begin a re-drive, under a name so that it is begun once, and follow it to its end."""
    from msgspec.structs import replace

    from runnel.cli.session import SystemRng
    from runnel.client.calls import call_until_done
    from runnel.model.calls import REDRIVE_START

    named = replace(asked, task=f"cli-{SystemRng().token(8).hex()}")
    begun = await call_until_done(cluster, REDRIVE_START, named)
    return begun if detach else await _followed(cluster, begun)


async def _followed(cluster: "Cluster", begun: "RedriveState") -> "RedriveState":
    """Show how far it is until it ends."""
    import asyncio

    from runnel.cli.output import progress
    from runnel.client.calls import call_until_done
    from runnel.model.calls import REDRIVE_STATUS, RedriveTask

    state = begun
    with progress() as display:
        task = display.add_task("redrive", total=max(begun.total, 1), rate="")
        pause_ms = 10
        while state.state == RUNNING:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, LOOK_MS)
            state = await call_until_done(cluster, REDRIVE_STATUS, RedriveTask(begun.queue, begun.task))
            display.update(task, completed=state.looked_at, total=max(state.total, 1), rate=f"{state.moved:,} sent")
    return state


def _look(name: str, *, stop: bool, as_json: bool, broker: str) -> None:
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import REDRIVE_STATUS, REDRIVE_STOP, RedriveTask

    verb = REDRIVE_STOP if stop else REDRIVE_STATUS
    state = run(broker, lambda cluster: call(cluster, verb, RedriveTask(name)))
    _print_state(state, as_json=as_json)
    if state.failure and not as_json:
        click.echo(f"what went wrong first: {state.failure}")


def _print_plan(state: "RedriveState", *, as_json: bool) -> None:
    """Print what a re-drive would do (--dry-run)."""
    from runnel.cli.output import plural

    if as_json or state.state != DONE:
        _print_state(state, as_json=as_json)
        return
    click.echo(
        f"Nothing was sent (--dry-run); it would be {plural(state.moved, 'dead letter')}"
        f" of {state.total:,} of {state.queue}."
    )


def _print_nothing(state: "RedriveState", *, as_json: bool) -> None:
    from runnel.cli.output import note, print_json

    if as_json:
        print_json(_state_row(state))
    elif not state.failure:
        note(f"There is no dead letter of {state.queue} to send back.")


def _print_state(state: "RedriveState", *, as_json: bool) -> None:
    from runnel.cli.output import plural, print_json

    if as_json:
        print_json(_state_row(state))
        return
    task, done = ("dry run", "that would be sent back") if state.dry_run else ("re-drive", "sent back")
    click.echo(
        f"{task} of {state.queue} is {'stopping' if state.stopping else state.state}:"
        f" {plural(state.moved, 'dead letter')} {done},"
        f" {state.skipped:,} passed over, {state.looked_at:,} of {state.total:,} looked at"
    )


def _state_row(state: "RedriveState") -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(state)


# --- drop
@click.command(
    cls=Command,
    examples="""
runnel dlq drop jobs                          all that are there now
runnel dlq drop jobs --until 0/17             of partition 0, those up to offset 17
runnel dlq drop jobs --dry-run
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option(
    "--until", metavar="PARTITION/OFFSET", type=place, multiple=True,
    help="Of this partition, those up to and with this one; may be repeated.  [default: all]",
)  # fmt: skip
@dry_run_option
@yes_option
@json_option
@broker_option
def drop(name: str, until: "tuple[Place, ...]", dry_run: bool, yes: bool, as_json: bool, broker: str) -> None:
    """Remove dead letters of a queue for ever, the oldest first."""
    from runnel.cli.output import confirm, plural, print_json
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import DEAD_DROP, DropDead

    only = list(until)
    count = run(broker, lambda cluster: call(cluster, DEAD_DROP, DropDead(name, only, True))).messages
    if not dry_run and count:
        confirm(f"This removes {plural(count, 'dead letter')} of {name} for ever.", yes=yes)
        count = run(broker, lambda cluster: call(cluster, DEAD_DROP, DropDead(name, only))).messages
    if as_json:
        print_json({"queue": name, "dropped": not dry_run, "messages": count})
    else:
        click.echo(f"{'would remove' if dry_run else 'removed'} {plural(count, 'dead letter')} of {name}")
