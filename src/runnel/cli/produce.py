"""`runnel produce`: messages from stdin, files or arguments."""

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_topics, compress_option, input_options, moment, size, span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from runnel.client.cluster import Cluster
    from runnel.client.producer import Delivery, Producer
    from runnel.model.calls import Outgoing as Message
    from runnel.model.calls import Sent

WINDOW = 10_000  # deliveries of which the report is still to be printed
TOLD_PAUSES_MS = (5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)


class Outgoing(NamedTuple):
    """One message to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Shape(NamedTuple):
    """How input becomes messages."""

    separator: bytes | None
    delimiter: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    null_if_empty: bool
    as_json: bool


@click.command(
    cls=Command,
    examples=r"""
echo hello | runnel produce orders
runnel produce orders -m one -m two              messages as arguments
runnel produce orders -K: < orders.txt           key and value with ':' between
runnel produce orders -H source=test -p 0 a.log b.log
runnel produce orders --transaction < orders.txt all of them at once, or none
runnel produce reminders -m tea --delay 90s -v   later; prints the id under which it waits
runnel consume old --json -e | runnel produce new --json
""",
)
@click.argument("topic", shell_complete=complete_topics)
@input_options
@click.option("-p", "--partition", metavar="N", type=click.IntRange(min=0), help="The partition.  [default: by key]")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="What ends a message.")
@click.option("-Z", "--null", "null_if_empty", is_flag=True, help="Empty values are null (tombstones).")
@click.option(
    "--json", "as_json", is_flag=True, help="Each line is JSON: value, key, headers, partition, timestamp_ms."
)
@compress_option
@click.option(
    "-a",
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Whose acknowledgement is awaited: nobody's, the leader's, all replicas'.",
)
@click.option("--delay", metavar="SPAN", type=span, help="Send after so long: 30s, 5m, 2h, 7d.")
@click.option("--deliver-at", metavar="TIME", type=moment, help="Send then: ISO 8601 or epoch ms.")
@click.option("--transaction", is_flag=True, help="All in one transaction: readers see all of them, or none.")
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Likewise, under this id: what an earlier run under it left open is aborted.  [default: a new one]",
)
@click.option(
    "--transaction-timeout-ms",
    metavar="MS",
    type=click.IntRange(min=1),
    default=900_000,
    show_default=True,
    help="A transaction that takes longer is aborted.",
)
@click.option(
    "--linger-ms",
    metavar="MS",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Wait so long for company: more throughput, more latency.",
)
@click.option("--batch-bytes", metavar="SIZE", type=size, default="256k", show_default=True, help="Largest batch.")
@click.option("-v", "--verbose", is_flag=True, help="Print where each message went: TOPIC/PARTITION@OFFSET.")
@click.option("-q", "--quiet", is_flag=True, help="No summary on stderr.")
@broker_option
def produce(
    topic: str,
    files: tuple[str, ...],
    messages: tuple[str, ...],
    key_separator: str | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    delimiter: str,
    null_if_empty: bool,
    as_json: bool,
    compress: str,
    acks: str,
    delay: int | None,
    deliver_at: int | None,
    transaction: bool,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    linger_ms: int,
    batch_bytes: int,
    verbose: bool,
    quiet: bool,
    broker: str,
) -> None:
    """Send each line of stdin (or of FILES) to a topic as a message.

    Exits with 0 when the broker has acknowledged all of them.
    """
    from runnel.cli.queue_send import due_at, note_sent
    from runnel.cli.session import run
    from runnel.client.producer import ACKS_ALL, ProducerSettings
    from runnel.record.compression import Compression

    shape = Shape(
        unescape(key_separator) if key_separator else None,
        delimiter_of(delimiter),
        key.encode() if key is not None else None,
        tuple((name, value.encode()) for name, value in headers),
        partition,
        null_if_empty,
        as_json,
    )
    due_ms = due_at(delay, deliver_at)
    _check_usage(acks, transaction or transactional_id is not None, due_ms)
    if due_ms is not None:
        _produce_later(topic, shape, due_ms, files, messages, verbose, quiet, broker)
        return
    settings = ProducerSettings(
        acks=ACKS_ALL if acks == "all" else int(acks),
        idempotent=acks == "all",
        transactional_id=transactional_id or (_new_id() if transaction else None),
        transaction_timeout_ms=transaction_timeout_ms,
        linger_ms=linger_ms,
        batch_bytes=batch_bytes,
        compression=Compression[compress.upper()],
    )
    count = run(broker, lambda cluster: produce_all(cluster, topic, shape, settings, files, messages, verbose))
    if not quiet and not verbose:
        note_sent(count, topic, None)


def _check_usage(acks: str, in_transaction: bool, due_ms: int | None) -> None:
    if in_transaction and due_ms is not None:
        raise click.UsageError("what is sent later can't be in a transaction")
    if (in_transaction or due_ms is not None) and acks != "all":
        raise click.UsageError(f"{'a transaction' if in_transaction else 'what is sent later'} needs --acks all")


def _produce_later(
    topic: str, shape: Shape, due_ms: int, files: tuple[str, ...], messages: tuple[str, ...],
    verbose: bool, quiet: bool, broker: str,
) -> None:  # fmt: skip
    """Park the messages with the schedule until they are due."""
    from runnel.cli.queue_send import note_sent, send_all
    from runnel.cli.session import run
    from runnel.client.sending import send_to_topic

    async def work(cluster: "Cluster") -> int:
        async def put(some: "Sequence[Message]") -> "Sent":
            return await send_to_topic(cluster, topic, some)

        return await send_all(files, messages, shape, {"deliver_at_ms": due_ms}, put, verbose)

    count = run(broker, work)
    if not quiet and not verbose:
        note_sent(count, topic, due_ms)


def _new_id() -> str:
    from runnel.cli.session import SystemRng

    return f"runnel-produce-{SystemRng().token(8).hex()}"


def unescape(text: str) -> bytes:
    r"""Characters as typed, with \n, \t, \0 and \xHH understood."""
    try:
        return text.encode().decode("unicode_escape").encode("latin-1") if "\\" in text else text.encode()
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise click.BadParameter(f"{text!r} can't be read: use plain characters, \\n, \\t, \\0 or \\xHH") from None


def delimiter_of(text: str) -> bytes:
    """What ends a message, which can't be nothing."""
    if not text:
        raise click.BadParameter("messages need something that ends them, e.g. \\n or \\0", param_hint="'-D'")
    return unescape(text)


async def produce_all(
    cluster: "Cluster",
    topic: str,
    shape: Shape,
    settings: Any,
    files: tuple[str, ...],
    messages: tuple[str, ...],
    verbose: bool,
) -> int:
    """Send what was given, or what stdin and files hold, by a producer; returns how many messages it were."""
    from runnel.cli.source import JSON_BYTES_MAX, LINE_BYTES_MAX, given, lines
    from runnel.client.producer import Producer
    from runnel.model.errors import RunnelError

    bytes_max = JSON_BYTES_MAX if shape.as_json else LINE_BYTES_MAX
    source = given(messages) if messages else lines(files, shape.delimiter, bytes_max=bytes_max)
    async with Producer(cluster, settings) as producer:
        if settings.transactional_id is None:
            report = _Report(verbose, WINDOW)
            try:
                await _send_all(producer, topic, source, shape, report)
            except RunnelError:
                report.note_kept(producer)
                raise
        else:
            report = _Report(verbose, None)
            async with producer.transaction():
                await _send_all(producer, topic, source, shape, report)
            await _told(cluster, settings.transactional_id)
        await report.rest()
        return producer.delivered


async def _told(cluster: "Cluster", transactional_id: str) -> None:
    """Wait until the partitions know of the commit, so that whoever reads next sees it; it stands in any case."""
    import asyncio

    from runnel.client.transactions_admin import UNFINISHED, TransactionsAdmin

    for pause_ms in TOLD_PAUSES_MS:
        if (await TransactionsAdmin(cluster).describe(transactional_id)).state not in UNFINISHED:
            return
        await asyncio.sleep(pause_ms / 1000)


async def _send_all(
    producer: "Producer", topic: str, source: "AsyncIterator[bytes]", shape: Shape, report: "_Report"
) -> None:
    async for line in source:
        value, key, headers, partition, when = outgoing_of(line, shape)
        delivery = await producer.send(topic, value, key=key, partition=partition, headers=headers, timestamp_ms=when)
        await report.add(delivery)
        if producer.failed:
            break  # the flush says why: reading on would only lose more
    await producer.flush()


class _Report:
    """Where messages went, in the order they were sent; of a transaction (no window), once it is committed."""

    def __init__(self, wanted: bool, window: int | None) -> None:
        self._wanted = wanted
        self._window = window
        self._pending: list[Delivery] = []
        self._count = 0
        self._under_way: deque[tuple[int, Delivery]] = deque()  # and what failed

    async def add(self, delivery: "Delivery") -> None:
        self._count += 1
        self._under_way.append((self._count, delivery))
        self._drop_kept()
        if self._wanted:
            self._pending.append(delivery)
        if self._window is not None and len(self._pending) >= self._window:
            await self.rest()

    def _drop_kept(self) -> None:
        while self._under_way and self._under_way[0][1].kept():
            self._under_way.popleft()

    def note_kept(self, producer: "Producer") -> None:
        """Say of which message the failure is, and how many there are to be sent again."""
        from runnel.cli.output import note

        self._drop_kept()
        if producer.failed and self._under_way:
            kept = f"{producer.delivered:,} of {self._count:,} were kept"
            note(f"message {self._under_way[0][0]:,} of the input is the first that was not kept; {kept}")

    async def rest(self) -> None:
        pending, self._pending = self._pending, []
        for delivery in pending:
            done = await delivery
            offset = done.offset if done.offset >= 0 else "?"
            click.echo(f"{done.topic}/{done.partition}@{offset}")


# --- from bytes to messages
def outgoing_of(line: bytes, shape: Shape) -> Outgoing:
    if shape.as_json:
        return _from_json(line, shape)
    key: bytes | None = shape.key
    value: bytes | None = line
    if shape.separator is not None:
        found, between, rest = line.partition(shape.separator)
        if between:
            key, value = found, rest
    if shape.null_if_empty and not value:
        value = None
    return Outgoing(value, key, shape.headers, shape.partition)


def _from_json(line: bytes, shape: Shape) -> Outgoing:
    from runnel.cli.message_input import read_json

    read = read_json(line)
    return Outgoing(
        read.value,
        read.key if shape.key is None else shape.key,
        (*shape.headers, *read.headers),
        read.partition if shape.partition is None else shape.partition,
        read.timestamp_ms,
    )
