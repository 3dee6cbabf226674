"""`runnel consume`: messages to stdout."""

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from runnel.cli.command import Command
from runnel.cli.options import POSITION_HELP, broker_option, complete_groups, complete_topics, position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runnel.cli.message_view import Shown
    from runnel.client.cluster import Cluster
    from runnel.client.consumer import Message
    from runnel.client.metadata import TopicPartition
    from runnel.client.positions import Position

POLL_MS = 500
POLL_COUNT_MAX = 5_000
LAST_COMMIT_MS = 3_000  # Ctrl-C waits no longer than this for the group's coordinator


class Wanted(NamedTuple):
    """What to read, and when to stop."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    begin: "Position"
    until: "Position | None"
    count_max: int | None
    stop_at_end: bool
    group: str | None
    isolation: int


@click.command(
    cls=Command,
    examples=r"""
runnel consume orders                            all there is, then what comes
runnel consume orders -e                         all there is, then exit
runnel consume orders -o -10 -e                  the last ten of each partition
runnel consume orders -o @2026-11-15T09:00Z -c 100
runnel consume orders -f '%p/%o %k %s\n'
runnel consume orders --json | jq .value
runnel consume orders -g billing                 as a member of a group
""",
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option(
    "-o",
    "--offset",
    "begin",
    metavar="OFFSET",
    type=position,
    help=f"Where to begin: {POSITION_HELP}.  [default: start; with -g: stored]",
)
@click.option("--until", metavar="OFFSET", type=position, help="Where to end, in the same language; then exit.")
@click.option("-e", "--exit", "stop_at_end", is_flag=True, help="Exit at the end of all partitions.")
@click.option("-c", "--count", "count_max", metavar="N", type=click.IntRange(min=1), help="Exit after N messages.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be repeated.",
)
@click.option(
    "-g", "--group", shell_complete=complete_groups, help="Read as a member of this group, and commit what was printed."
)
@click.option(
    "-f",
    "--format",
    "template",
    metavar="FORMAT",
    help="%t topic, %p partition, %o offset, %k key, %s value, %h headers, %T time in ms, %I time in ISO "
    "8601, %K and %S bytes of key and value, \\n \\t \\xHH.  [default: %s\\n]",
)
@click.option("-K", "--key-separator", metavar="SEP", help="Print KEY SEP VALUE.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="Of transactions: what was committed, and wait for the open ones; or all as it comes, aborted or not.",
)
@broker_option
def consume(
    topics: tuple[str, ...],
    begin: "Position | None",
    until: "Position | None",
    stop_at_end: bool,
    count_max: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    template: str | None,
    key_separator: str | None,
    as_json: bool,
    isolation: str,
    broker: str,
) -> None:
    """Print messages of topics, in order within each partition.

    Goes on until Ctrl-C, unless -e, -c or --until says when to stop. Without -g it changes nothing on the broker.
    """
    from runnel.cli.session import run
    from runnel.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
    from runnel.client.positions import START

    _check_usage(begin, until, partitions, group)
    write = writer(template, key_separator, as_json)
    level = READ_COMMITTED if isolation == "committed" else READ_UNCOMMITTED
    wanted = Wanted(topics, partitions, begin or START, until, count_max, stop_at_end, group, level)
    run(broker, lambda cluster: _consume(cluster, wanted, write))


def _check_usage(
    begin: "Position | None", until: "Position | None", partitions: tuple[int, ...], group: str | None
) -> None:
    from runnel.client.positions import From

    if group is None and begin is not None and begin.anchor is From.STORED:
        raise click.UsageError("-o stored means what a group committed: name the group with -g")
    if group is not None and (partitions or until is not None):
        raise click.UsageError("a member of a group reads what the group gives it: -g goes with neither -p nor --until")
    if group is not None and begin is not None and begin.anchor not in (From.START, From.END, From.STORED, From.TIME):
        raise click.UsageError("with -g, -o says where partitions begin that have no committed offset: use start, end "
                               "or @TIME ('runnel group seek' moves a group)")  # fmt: skip


# --- what is printed
def writer(template: str | None, separator: str | None, as_json: bool) -> "Callable[[Any], bytes]":
    """How messages are printed, as -f, -K and --json say."""
    from runnel.cli.produce import unescape
    from runnel.cli.template import compile_template

    if sum((template is not None, separator is not None, as_json)) > 1:
        raise click.UsageError("-f, -K and --json exclude each other: choose one")
    if as_json:
        return json_line
    if separator is not None:
        between = unescape(separator)
        return lambda x: (x.key or b"") + between + (x.value or b"") + b"\n"
    try:
        return compile_template(template if template is not None else "%s\\n")
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="'-f'") from None


def json_line(message: "Shown") -> bytes:
    """One message as a line of JSON."""
    import json

    from runnel.cli.message_view import message_row

    return json.dumps(message_row(message), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class _Printer:
    """Writes messages to stdout, a poll at a time, and counts them."""

    def __init__(self, write: "Callable[[Message], bytes]", count_max: int | None) -> None:
        import sys

        self._write = write
        self._out = sys.stdout.buffer
        self._left = count_max

    @property
    def full(self) -> bool:
        return self._left == 0

    def room(self) -> int:
        return POLL_COUNT_MAX if self._left is None else min(self._left, POLL_COUNT_MAX)

    def print(self, messages: "list[Message]") -> None:
        self._out.write(b"".join([self._write(message) for message in messages]))
        self._out.flush()
        if self._left is not None:
            self._left -= len(messages)


# --- reading
async def _consume(cluster: "Cluster", wanted: Wanted, write: "Callable[[Message], bytes]") -> None:
    from runnel.client.fetcher import FetchSettings

    settings = FetchSettings(isolation=wanted.isolation)
    printer = _Printer(write, wanted.count_max)
    if wanted.group is not None:
        await _consume_as_member(cluster, wanted, settings, printer)
    else:
        await _consume_alone(cluster, wanted, settings, printer)


async def _consume_alone(cluster: "Cluster", wanted: Wanted, settings: Any, printer: _Printer) -> None:
    from runnel.cli.reader import while_read
    from runnel.client.consumer import Consumer

    partitions = await _partitions(cluster, wanted)
    stops = await _stops(cluster, wanted, partitions)
    async with Consumer(cluster, settings) as consumer:
        await consumer.assign(dict.fromkeys(partitions, wanted.begin))
        _say_waiting(consumer.positions, wanted, stops)
        async with while_read():
            while not printer.full and not _all_reached(consumer.positions, stops):
                messages = await consumer.poll(count_max=printer.room(), timeout_ms=POLL_MS)
                if stops is not None:
                    messages = [x for x in messages if x.offset < stops[x.topic, x.partition]]  # type: ignore[index]
                printer.print(messages)


def _say_waiting(positions: "Mapping[TopicPartition, int]", wanted: Wanted, stops: object) -> None:
    """A person who sees nothing should know that it is not for lack of trying."""
    import sys

    from runnel.cli.output import note, plural
    from runnel.client.positions import END

    if stops is None and wanted.begin == END and sys.stdout.isatty():
        note(f"Waiting for new messages in {plural(len(positions), 'partition')}; Ctrl-C ends it.")


async def _partitions(cluster: "Cluster", wanted: Wanted) -> "list[TopicPartition]":
    from runnel.client.admin import Admin
    from runnel.client.metadata import TopicPartition

    found = await Admin(cluster).topics(wanted.topics)
    if not wanted.partitions:
        return [TopicPartition(name, n) for name, topic in found.items() for n in topic.partitions]
    chosen = [TopicPartition(name, n) for name in found for n in wanted.partitions]
    for where in chosen:
        await cluster.partition(where)
    return chosen


async def _stops(
    cluster: "Cluster", wanted: Wanted, partitions: "list[TopicPartition]"
) -> "dict[TopicPartition, int] | None":
    """Where reading ends in each partition; None: nowhere."""
    from runnel.client.positions import END, resolve

    if wanted.until is None and not wanted.stop_at_end:
        return None
    return await resolve(cluster, dict.fromkeys(partitions, wanted.until or END), isolation=wanted.isolation)


def _all_reached(positions: "Mapping[TopicPartition, int]", stops: "Mapping[TopicPartition, int] | None") -> bool:
    return stops is not None and all(positions[where] >= stop for where, stop in stops.items() if where in positions)


async def _consume_as_member(cluster: "Cluster", wanted: Wanted, settings: Any, printer: _Printer) -> None:
    import asyncio

    from runnel.cli.reader import while_read
    from runnel.client.admin import Admin
    from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
    from runnel.client.positions import START, From

    await Admin(cluster).topics(wanted.topics)
    assert wanted.group is not None
    begin = START if wanted.begin.anchor is From.STORED else wanted.begin
    joined = GroupConsumerSettings(fetch=settings, begin=begin)
    async with GroupConsumer(cluster, wanted.group, wanted.topics, joined) as consumer:
        ends = _Ends(cluster, wanted.isolation)
        try:
            async with while_read():
                while not printer.full and not (wanted.stop_at_end and await ends.reached(consumer)):
                    printer.print(await consumer.poll(count_max=printer.room(), timeout_ms=POLL_MS))
        except asyncio.CancelledError:  # Ctrl-C: all that was handed out was printed
            await consumer.commit(timeout_ms=LAST_COMMIT_MS)
            raise


class _Ends:
    """The ends of the partitions that a member has, looked up anew after each rebalance."""

    def __init__(self, cluster: "Cluster", isolation: int) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._seen = 0
        self._stops: dict[TopicPartition, int] = {}

    async def reached(self, consumer: Any) -> bool:
        from runnel.client.positions import END, resolve

        if not consumer.membership.joined:
            return False
        if self._seen != consumer.rebalances:
            self._seen = consumer.rebalances
            wanted = dict.fromkeys(consumer.assignment, END)
            self._stops = await resolve(self._cluster, wanted, isolation=self._isolation)
        return _all_reached(consumer.positions, self._stops)
