"""`runnel queue settle` and `extend`: what becomes of leases that `receive --then nothing` left open."""

from typing import TYPE_CHECKING

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_queues, json_option, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runnel.model.calls import Failure

_queue = click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
_receipts = click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)


# --- settle
@click.command(
    cls=Command,
    examples="""
runnel queue receive jobs -c 1 --then nothing --json | jq -r .receipt
runnel queue settle jobs RECEIPT                              done
runnel queue settle jobs RECEIPT --then release --delay 5m    again, in five minutes
runnel queue settle jobs RECEIPT --then reject --reason "no such customer"
""",
)
@_queue
@_receipts
@click.option(
    "--then",
    "outcome",
    type=click.Choice(["accept", "release", "reject"]),
    default="accept",
    show_default=True,
    help="What becomes of the message: done, tried again, or dead.",
)
@click.option("--delay", metavar="SPAN", type=span, help="With release: try it again after so long.")
@click.option("--reason", default="", help="With release or reject: why, for whoever reads the dead letters.")
@json_option
@broker_option
def settle(
    name: str, receipts: tuple[str, ...], outcome: str, delay: int | None, reason: str, as_json: bool, broker: str
) -> None:
    """Say what becomes of messages that are leased, by their receipts.

    A receipt whose lease is lost (it ended, or the queue was rewound) is refused: the message is somebody else's.
    """
    from runnel.cli.session import run
    from runnel.client.calls import call_until_done
    from runnel.model.calls import QUEUE_SETTLE, Settle, Settlement

    if (delay is not None and outcome != "release") or (reason and outcome not in ("release", "reject")):
        raise click.UsageError("--delay goes with --then release, --reason with --then release or reject")
    verdicts = [Settlement(receipt, outcome, delay, reason) for receipt in receipts]  # type: ignore[arg-type]
    asked = Settle(name, verdicts)
    settled = run(broker, lambda cluster: call_until_done(cluster, QUEUE_SETTLE, asked))
    _report(receipts, settled.failures, {"accept": "accepted", "release": "released"}.get(outcome, "rejected"), as_json)


# --- extend
@click.command(
    cls=Command,
    examples="""
runnel queue extend jobs RECEIPT                 by the queue's own lease, from now on
runnel queue extend jobs RECEIPT --lease 10m
""",
)
@_queue
@_receipts
@click.option("--lease", metavar="SPAN", type=span, help="From now on so long.  [default: the queue's]")
@json_option
@broker_option
def extend(name: str, receipts: tuple[str, ...], lease: int | None, as_json: bool, broker: str) -> None:
    """Keep messages that are leased for longer."""
    from runnel.cli.session import run
    from runnel.client.calls import call_until_done
    from runnel.model.calls import QUEUE_EXTEND, Extend

    asked = Extend(name, list(receipts), lease)
    extended = run(broker, lambda cluster: call_until_done(cluster, QUEUE_EXTEND, asked))
    _report(receipts, extended.failures, "extended", as_json)


def _report(receipts: "Sequence[str]", failures: "Sequence[Failure | None]", word: str, as_json: bool) -> None:
    from runnel.cli.output import note, plural, print_json

    for receipt, failure in zip(receipts, failures, strict=True):
        if as_json:
            print_json({"receipt": receipt, word: failure is None, "failure": failure.message if failure else None})
        elif failure is not None:
            note(f"{receipt}: {failure.message}")
    done = sum(failure is None for failure in failures)
    if not as_json and done:
        click.echo(f"{word} {plural(done, 'message')}")
    if done < len(receipts):
        raise click.ClickException(f"{len(receipts) - done} of {len(receipts)} could not be {word}")
