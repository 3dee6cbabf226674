"""`runnel queue send`: messages from stdin, files or arguments into a queue. Also what `produce --delay` does."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_queues, input_options, moment, span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from runnel.cli.produce import Shape
    from runnel.client.cluster import Cluster
    from runnel.model.calls import Outgoing, Placed, Sent

CALL_MESSAGES_MAX = 500
CALL_BYTES_MAX = 1 << 20  # what one call carries; one message may be larger


@click.command(
    cls=Command,
    examples=r"""
echo hello | runnel queue send jobs
runnel queue send jobs -m one -m two             messages as arguments
runnel queue send jobs -K: < jobs.txt            key and value with ':' between
runnel queue send alerts -m fire --priority 2    the higher goes first
runnel queue send jobs -m later --delay 15m
runnel queue send jobs -m pay --id order-4711    at most once, however often it is sent
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@input_options
@click.option("--priority", metavar="N", type=click.IntRange(min=0), help="The lane.  [default: the lowest]")
@click.option("--delay", metavar="SPAN", type=span, help="Deliver after so long: 30s, 5m, 2h, 7d.")
@click.option("--deliver-at", metavar="TIME", type=moment, help="Deliver then: ISO 8601 or epoch ms.")
@click.option("--ttl", metavar="SPAN", type=span, help="Do not deliver it later than this.")
@click.option("--id", "message_id", help="The name of the one message: a second one of this name is not kept.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="What ends a message.")
@click.option("--json", "as_json", is_flag=True, help="Each line is JSON: value, key, headers, timestamp_ms.")
@click.option("-v", "--verbose", is_flag=True, help="Print where each message went: TOPIC/PARTITION@OFFSET, or its id.")
@click.option("-q", "--quiet", is_flag=True, help="No summary on stderr.")
@broker_option
def send(
    name: str,
    files: tuple[str, ...],
    messages: tuple[str, ...],
    key_separator: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    priority: int | None,
    delay: int | None,
    deliver_at: int | None,
    ttl: int | None,
    message_id: str | None,
    delimiter: str,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    broker: str,
) -> None:
    """Send each line of stdin (or of FILES) to a queue as a message.

    Exits with 0 when all of them are kept.
    """
    from runnel.cli.produce import Shape, delimiter_of, unescape
    from runnel.cli.session import run
    from runnel.client.sending import send_to_queue
    from runnel.model import headers as names

    if message_id is not None and len(messages) != 1:
        raise click.UsageError("--id names one message: give it with one -m")
    listed = [(header, value.encode()) for header, value in headers]
    if ttl is not None:
        listed.append((names.TTL_MS, str(ttl).encode()))
    separator = unescape(key_separator) if key_separator else None
    all_keys = key.encode() if key is not None else None
    shape = Shape(separator, delimiter_of(delimiter), all_keys, tuple(listed), None, False, as_json)
    due_ms = due_at(delay, deliver_at)
    extra = {"priority": priority, "deliver_at_ms": due_ms, "message_id": message_id}

    async def work(cluster: "Cluster") -> int:
        if due_ms is None and message_id is None:
            return await _produce(cluster, name, shape, priority, files, messages, verbose)

        async def put(some: "Sequence[Outgoing]") -> "Sent":
            return await send_to_queue(cluster, name, some)

        return await send_all(files, messages, shape, extra, put, verbose)

    count = run(broker, work)
    if not quiet and not verbose:
        note_sent(count, name, due_ms)


async def _produce(
    cluster: "Cluster", queue: str, shape: "Shape", priority: int | None, files: tuple[str, ...],
    messages: tuple[str, ...], verbose: bool,
) -> int:  # fmt: skip
    """Send what goes into the queue at once as any producer does."""
    from runnel.cli.produce import produce_all
    from runnel.client.producer import ProducerSettings
    from runnel.client.sending import target_of

    target = await target_of(cluster, queue)
    shape = shape._replace(partition=target.partition(priority))
    return await produce_all(cluster, target.topic, shape, ProducerSettings(), files, messages, verbose)


def note_sent(count: int, name: str, due_ms: int | None) -> None:
    """Say how many messages were sent, or when they will be."""
    from runnel.cli.output import note, plural
    from runnel.cli.session import SystemClock
    from runnel.cli.template import iso_of

    messages = plural(count, "message")
    if due_ms is None or due_ms <= SystemClock().wall_ms():
        note(f"sent {messages} to {name}")
    else:
        note(f"{messages} for {name} will be sent {iso_of(due_ms)}")


def due_at(delay_ms: int | None, deliver_at_ms: int | None) -> int | None:
    """When a message is due, by the clock of this machine."""
    from runnel.cli.session import SystemClock

    if delay_ms is not None and deliver_at_ms is not None:
        raise click.UsageError("--delay and --deliver-at exclude each other: choose one")
    return deliver_at_ms if delay_ms is None else SystemClock().wall_ms() + delay_ms


async def send_all(
    files: tuple[str, ...],
    messages: tuple[str, ...],
    shape: "Shape",
    extra: dict[str, Any],
    put: "Callable[[Sequence[Outgoing]], Awaitable[Sent]]",
    verbose: bool,
) -> int:
    """Send named or timed messages in calls of some size, what was given or what stdin and files hold; returns how many
    it were."""
    from runnel.cli.source import JSON_BYTES_MAX, LINE_BYTES_MAX, given, lines
    from runnel.model.errors import RunnelError

    bytes_max = JSON_BYTES_MAX if shape.as_json else LINE_BYTES_MAX
    source = given(messages) if messages else lines(files, shape.delimiter, bytes_max=bytes_max)
    count = 0
    async for some in _batches(source, shape, extra):
        try:
            sent = await put(some)
        except RunnelError as error:
            error.add_note(f"{count} messages before were kept" if count else "it is not known that any was kept")
            raise
        _check(sent, count)
        count += len(some)
        for placed in sent.placed if verbose else ():
            click.echo(_place(placed))
    return count


async def _batches(
    source: "AsyncIterator[bytes]", shape: "Shape", extra: dict[str, Any]
) -> "AsyncIterator[list[Outgoing]]":
    from runnel.cli.produce import outgoing_of
    from runnel.model.calls import Outgoing

    batch: list[Outgoing] = []
    size = 0
    async for line in source:
        read = outgoing_of(line, shape)
        batch.append(
            Outgoing(read.value, read.key, list(read.headers), read.partition, timestamp_ms=read.timestamp_ms, **extra)
        )
        size += len(line)
        if len(batch) >= CALL_MESSAGES_MAX or size >= CALL_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check(sent: "Sent", before: int) -> None:
    """Raise the first error; those before it are kept."""
    from runnel.client.outcome import error_of_failure

    errors = [error_of_failure(failure) for failure in sent.failures]
    for number, error in enumerate(errors):
        if error is not None:
            kept = before + sum(each is None for each in errors)
            error.add_note(f"message {before + number + 1} was refused; {kept} were kept")
            raise error


def _place(placed: "Placed | None") -> str:
    if placed is None:
        return "?"
    if placed.scheduled_id:
        return placed.scheduled_id
    return f"{placed.topic}/{placed.partition}@{placed.offset}{' (there already)' if placed.duplicate else ''}"
