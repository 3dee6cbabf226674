"""`runnel queue receive`: messages of a queue to stdout, each settled when it was printed.

Rule 1: to print into a pipe is not to be read: what goes to another program is accepted only if that was asked for.
Rule 2: when the program that reads is gone, what it was given and nobody has settled goes back to the queue, unless the
        leases were to be kept.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_queues, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runnel.client.cluster import Cluster
    from runnel.model.calls import Delivered, Receive

WAIT_MS = 10_000  # of one call; it is asked again
SPARE_MS = 10_000  # for the answer itself
MESSAGES_MAX = 100
LAST_ANSWER_S = 0.2
GIVE_BACK_MS = 10_000  # for a command that ends
READER_GONE = "the program that read the messages is gone"
LANE = "receive"  # a connection of its own: what waits there holds up nothing else


class Wanted(NamedTuple):
    """What to receive, what to say then, and when to stop."""

    queue: str
    count_max: int | None
    wait_ms: int | None  # stop when nothing came for so long; None: never
    lease_ms: int | None
    filter: str
    outcome: str | None
    keeps: bool  # the leases stay, whatever becomes of the reader
    delay_ms: int | None
    reason: str
    consumer: str  # none: one of its own


@click.command(
    cls=Command,
    examples=r"""
runnel queue receive jobs                        all there is, then what comes
runnel queue receive jobs -c 1                   one, and accept it
runnel queue receive jobs -e                     all there is, then exit
runnel queue receive jobs --then accept | worker  a line that is in the pipe is accepted, read or not
runnel queue receive jobs -c 1 --then release --delay 5m      not now
runnel queue receive jobs -c 1 --then reject --reason broken  to the dead letters
runnel queue receive jobs -c 1 --then nothing --json          keep the lease; see .receipt
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("-c", "--count", "count_max", metavar="N", type=click.IntRange(min=1), help="Exit after N messages.")
@click.option("-e", "--exit", "stop_at_end", is_flag=True, help="Exit when nothing can be leased now.")
@click.option("-w", "--wait", metavar="SPAN", type=span, help="Exit when nothing came for so long.")
@click.option("--lease", metavar="SPAN", type=span, help="How long messages are leased.  [default: the queue's]")
@click.option(
    "--then",
    "outcome",
    type=click.Choice(["accept", "release", "reject", "nothing"]),
    help="What becomes of a message that was printed: done, tried again, dead, or leased until the lease ends."
    "  [default: accept; into a pipe: nothing]",
)
@click.option("--delay", metavar="SPAN", type=span, help="With release: try it again after so long.")
@click.option("--reason", default="", help="With release or reject: why, for whoever reads the dead letters.")
@click.option(
    "--consumer", metavar="NAME", default="",
    help="Who receives, where consumers=single lets one at a time.  [default: a name of its own]",
)  # fmt: skip
@click.option("--filter", "text", metavar="TEXT", default="", help="Only what passes this filter; the rest stays.")
@click.option("-f", "--format", "template", metavar="FORMAT", help="As of 'runnel consume'.  [default: %s\\n]")
@click.option("-K", "--key-separator", metavar="SEP", help="Print KEY SEP VALUE.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON, with receipt and attempt.")
@broker_option
def receive(
    name: str,
    count_max: int | None,
    stop_at_end: bool,
    wait: int | None,
    lease: int | None,
    outcome: str | None,
    delay: int | None,
    reason: str,
    consumer: str,
    text: str,
    template: str | None,
    key_separator: str | None,
    as_json: bool,
    broker: str,
) -> None:
    """Lease messages of a queue, print them, and accept them.

    Goes on until Ctrl-C, unless -c, -e or -w says when to stop. What was printed and could not be settled is delivered
    again. Into a pipe, messages are printed and not accepted, since nobody knows what the program behind it has read:
    --then accept does it all the same.
    """
    from runnel.cli.consume import writer
    from runnel.cli.session import run

    if (delay is not None and outcome != "release") or (reason and outcome not in ("release", "reject")):
        raise click.UsageError("--delay goes with --then release, --reason with --then release or reject")
    write = _json_line if as_json and not template and not key_separator else writer(template, key_separator, as_json)
    patience = 0 if stop_at_end else wait
    becomes = outcome or _usual_outcome()
    settled = None if becomes == "nothing" else becomes
    wanted = Wanted(name, count_max, patience, lease, text, settled, outcome == "nothing", delay, reason, consumer)
    run(broker, lambda cluster: _receive(cluster, wanted, write))


def _usual_outcome() -> str:
    """Rule 1."""
    from runnel.cli.output import note
    from runnel.cli.reader import is_program

    if not is_program():
        return "accept"
    note(
        "stdout is a pipe: messages are printed and not accepted, and come again when their leases end. Say --then"
        " accept to accept each that is in the pipe, or --then nothing to settle them by 'runnel queue settle'."
    )
    return "nothing"


def _json_line(message: "Delivered") -> bytes:
    import json

    from runnel.cli.message_view import message_row

    row: dict[str, Any] = message_row(message) | {"attempt": message.attempt, "receipt": message.receipt}
    row["leased_until_ms"] = message.leased_until_ms
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


async def _receive(cluster: "Cluster", wanted: Wanted, write: "Callable[[Any], bytes]") -> None:
    from runnel.cli.reader import while_read
    from runnel.client.queue import new_consumer

    wanted = wanted._replace(consumer=wanted.consumer or new_consumer(cluster, "cli"))
    held: list[Delivered] = []
    try:
        async with while_read():
            await _print_all(cluster, wanted, write, held)
    except BrokenPipeError:
        await _give_back(cluster, wanted, held)
        raise


async def _print_all(
    cluster: "Cluster", wanted: Wanted, write: "Callable[[Any], bytes]", held: "list[Delivered]"
) -> None:
    """Print messages until it is enough; `held` is what was leased and not settled."""
    import asyncio
    import sys

    loop = asyncio.get_running_loop()
    left, heard = wanted.count_max, loop.time()
    while left is None or left > 0:
        silent_ms = int((loop.time() - heard) * 1000)
        messages = await _lease(cluster, wanted, _question(wanted, left, silent_ms), held)
        held[:] = [one for one in held if one.leased_until_ms > cluster.clock.wall_ms()] + messages
        sys.stdout.buffer.write(b"".join([write(message) for message in messages]))
        sys.stdout.buffer.flush()
        if wanted.outcome is not None and messages:
            await _settle(cluster, wanted, messages)
            held.clear()
        if messages:
            heard = loop.time()
            left = None if left is None else left - len(messages)
        elif wanted.wait_ms is not None and (loop.time() - heard) * 1000 >= wanted.wait_ms:
            return


async def _lease(cluster: "Cluster", wanted: Wanted, asked: "Receive", held: "list[Delivered]") -> "list[Delivered]":
    """Lease messages; the brokers are asked again while they are away, without end where nobody said when to stop.

    An answer that is on its way when the command ends is waited for a moment: what it leased can be given back then.
    """
    import asyncio

    from runnel.client.calls import attempt
    from runnel.model.calls import QUEUE_RECEIVE

    again = cluster.outlast if wanted.wait_ms is None else cluster.persist
    asking = asyncio.ensure_future(
        again(lambda: attempt(cluster, QUEUE_RECEIVE, asked, timeout_ms=asked.wait_ms + SPARE_MS, lane=LANE))
    )
    try:
        return (await asyncio.shield(asking)).messages
    except asyncio.CancelledError:
        await asyncio.wait([asking], timeout=LAST_ANSWER_S)
        if asking.done() and asking.exception() is None:
            held += asking.result().messages
        asking.cancel()
        raise


def _question(wanted: Wanted, left: int | None, silent_ms: int) -> "Receive":
    from runnel.model.calls import Receive

    wait_ms = WAIT_MS if wanted.wait_ms is None else min(WAIT_MS, max(0, wanted.wait_ms - silent_ms))
    count = MESSAGES_MAX if left is None else min(left, MESSAGES_MAX)
    return Receive(
        wanted.queue, count, wait_ms=wait_ms, lease_ms=wanted.lease_ms, consumer=wanted.consumer, filter=wanted.filter
    )


async def _settle(cluster: "Cluster", wanted: Wanted, messages: "Sequence[Delivered]") -> None:
    from runnel.client.calls import call_until_done
    from runnel.client.outcome import raise_for
    from runnel.model.calls import QUEUE_SETTLE, Settle, Settlement

    verdicts = [
        Settlement(message.receipt, wanted.outcome, wanted.delay_ms, wanted.reason)  # type: ignore[arg-type]
        for message in messages
    ]
    raise_for((await call_until_done(cluster, QUEUE_SETTLE, Settle(wanted.queue, verdicts))).failures)


async def _give_back(cluster: "Cluster", wanted: Wanted, messages: "Sequence[Delivered]") -> None:
    """Rule 2. Whatever the reader has settled itself meanwhile is refused, and stays as it is."""
    from contextlib import suppress

    from runnel.client.calls import call_until_done
    from runnel.model.calls import QUEUE_SETTLE, Settle, Settlement
    from runnel.model.errors import RunnelError

    if wanted.keeps or not messages:
        return
    verdicts = [Settlement(one.receipt, "release", 0, READER_GONE) for one in messages]
    with suppress(RunnelError):  # then they come again when their leases end
        await call_until_done(cluster, QUEUE_SETTLE, Settle(wanted.queue, verdicts), timeout_ms=GIVE_BACK_MS)
