"""`runnel sink`: those who publish batches exactly once, such as streaming queries that write to topics."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Group
from runnel.cli.options import DEFAULT_BROKER, broker_option, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from runnel.model.sinks import ListedSink, OpenAttempt, SinkDescription

COMPLETION_TIMEOUT_MS = 500
FORGETS = (
    "All that it has open is aborted, and which batches it published is not known any more: a query that replays one"
    " publishes it again."
)


def complete_sinks(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    from runnel.cli.session import run
    from runnel.client.sinks import Sinks
    from runnel.model.errors import RunnelError

    broker = context.params.get("broker") or DEFAULT_BROKER
    try:
        listed = run(broker, lambda cluster: Sinks(cluster).list(begun), timeout_ms=COMPLETION_TIMEOUT_MS)
    except (RunnelError, OSError):
        return []
    return [each.sink for each in listed]


@click.group(
    cls=Group,
    examples="""
runnel sink ls                        all sinks, and the last batch of each
runnel sink describe clicks           what it does now, and what it has open
runnel sink forget clicks             abort what is open, and forget it
""",
)
def sink() -> None:
    """Sinks: they publish batches exactly once, such as queries of Spark that write to topics."""


# --- ls
@sink.command(
    examples="""
runnel sink ls
runnel sink ls spark-
runnel sink ls --json | jq -r 'select(.attempts > 0) | .sink'
"""
)
@click.argument("prefix", metavar="[PREFIX]", default="")
@json_option
@broker_option
def ls(prefix: str, as_json: bool, broker: str) -> None:
    """List the sinks that the cluster knows, with the last batch that each has published."""
    from runnel.cli.output import left, print_json, print_table, right
    from runnel.cli.session import run
    from runnel.cli.template import iso_of
    from runnel.client.sinks import Sinks

    found = run(broker, lambda cluster: Sinks(cluster).list(prefix))
    if as_json:
        for each in found:
            print_json(_listed_json(each))
        return
    print_table(
        [*left("SINK", "PHASE"), *right("LAST BATCH", "OPEN ATTEMPTS"), *left("CHANGED")],
        [(each.sink, each.phase, _batch(each.last_batch), each.attempts, iso_of(each.changed_ms)) for each in found],
        none="There are no such sinks.",
    )


def _listed_json(each: "ListedSink") -> dict[str, Any]:
    return {
        "sink": each.sink,
        "phase": each.phase,
        "last_batch": _batch(each.last_batch),
        "attempts": each.attempts,
        "changed_ms": each.changed_ms,
    }


def _batch(number: int) -> int | None:
    return None if number < 0 else number


# --- describe
@sink.command(
    examples="""
runnel sink describe clicks
runnel sink describe clicks --json | jq .attempts
"""
)
@click.argument("name", metavar="SINK", shell_complete=complete_sinks)
@json_option
@broker_option
def describe(name: str, as_json: bool, broker: str) -> None:
    """Show a sink: its last batch, what is being done with the next one, and the attempts that are open.

    Readers of committed messages wait behind what is open. An attempt that nobody ends is aborted when the next batch
    is published, or when its transaction has taken too long; one that is chosen is not, until its batch is done with.
    """
    from runnel.cli.output import print_json
    from runnel.cli.session import run
    from runnel.client.sinks import Sinks

    found = run(broker, lambda cluster: Sinks(cluster).describe(name))
    if as_json:
        print_json(_described_json(found))
    else:
        _print_described(found)


def _described_json(found: "SinkDescription") -> dict[str, Any]:
    return {
        "sink": found.sink,
        "query": found.query or None,
        "phase": found.phase,
        "last_batch": _batch(found.last_batch),
        "batch": _batch(found.batch),
        "changed_ms": found.changed_ms,
        "attempts": [_attempt_json(each) for each in found.attempts],
    }


def _attempt_json(each: "OpenAttempt") -> dict[str, Any]:
    return {
        "transactional_id": each.handle.transactional_id,
        "producer_id": each.handle.producer_id,
        "epoch": each.handle.epoch,
        "batch": each.batch,
        "partition": each.partition,
        "attempt": each.attempt,
        "began_ms": each.began_ms,
        "chosen": each.chosen,
    }


def _print_described(found: "SinkDescription") -> None:
    from runnel.cli.output import left, print_table, right, say
    from runnel.cli.template import iso_of

    doing = f"  {found.phase} batch {found.batch}" if found.batch >= 0 else f"  {found.phase}"
    last = "none yet" if found.last_batch < 0 else str(found.last_batch)
    say(f"Sink {found.sink}{doing}  since {iso_of(found.changed_ms)}")
    say(f"last batch {last}  query {found.query or 'not said'}")
    click.echo()
    print_table(
        [*left("TRANSACTIONAL ID"), *right("BATCH", "PARTITION", "ATTEMPT"), *left("BEGAN", "CHOSEN")],
        [
            (a.handle.transactional_id, a.batch, a.partition, a.attempt, iso_of(a.began_ms), "yes" if a.chosen else "")
            for a in found.attempts
        ],
        none="No attempt is open.",
    )


# --- forget
@sink.command(
    examples="""
runnel sink forget clicks
runnel sink forget clicks --dry-run
"""
)
@click.argument("name", metavar="SINK", shell_complete=complete_sinks)
@dry_run_option
@yes_option
@json_option
@broker_option
def forget(name: str, dry_run: bool, yes: bool, as_json: bool, broker: str) -> None:
    """End a sink that is of no use any more: what it has open is aborted, and it is forgotten.

    A batch that is decided is published first. Do this when the query is over for good, or began with a new checkpoint.
    """
    from runnel.cli.output import confirm, plural, print_json
    from runnel.cli.session import run
    from runnel.client.sinks import Sinks

    found = run(broker, lambda cluster: Sinks(cluster).describe(name))
    if not as_json:
        _print_described(found)
    if not dry_run:
        confirm(f"This forgets the sink {name}. {FORGETS}", yes=yes)
        run(broker, lambda cluster: Sinks(cluster).forget(name))
    if as_json:
        print_json({**_described_json(found), "forgotten": not dry_run})
    elif dry_run:
        click.echo("Nothing was changed (--dry-run).")
    else:
        click.echo(f"forgot {name}; {plural(len(found.attempts), 'open attempt')} ended")
