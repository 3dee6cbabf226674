"""`runnel dlq ls` and `show`."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_queues, json_option

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster
    from runnel.model.calls import DeadLetter, DeadLetters, DeadQueue, DeadQueues, ListDead, Place

PAGE = 500  # letters, or queues, that are asked for at once


def place(text: str) -> "Place":
    """PARTITION/OFFSET of a dead letter."""
    from runnel.model.calls import Place

    partition, slash, offset = text.partition("/")
    if not slash or not partition.isdecimal() or not offset.isdecimal():
        raise click.BadParameter(f"{text!r} is not PARTITION/OFFSET, as 'runnel dlq ls' shows it")
    return Place(int(partition), int(offset))


# --- ls
@click.command(
    cls=Command,
    examples="""
runnel dlq ls                                 queues, and how many dead letters each has: the first hundred
runnel dlq ls --from jobs                     the next hundred queues, as the page before says
runnel dlq ls jobs                            the first hundred of one
runnel dlq ls jobs --from 2/17                the next hundred, as the page before says
runnel dlq ls jobs -c 5000 --filter "body.customer = 'acme'"
runnel dlq ls jobs --json | jq -r .reason | sort | uniq -c
""",
)
@click.argument("name", metavar="[QUEUE]", default="", shell_complete=complete_queues)
@click.option("-c", "--count", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="At most.")
@click.option("-p", "--partition", metavar="N", type=click.IntRange(min=0), help="Only this partition.")
@click.option("-o", "--offset", metavar="N", type=click.IntRange(min=0), help="From this offset on, of a partition.")
@click.option("--from", "since", metavar="PLACE", default="", help="Go on there: see the page before.")
@click.option("--filter", "text", metavar="TEXT", default="", help="Only what passes this filter.")
@json_option
@broker_option
def ls(
    name: str, count: int, partition: int | None, offset: int | None, since: str, text: str, as_json: bool, broker: str
) -> None:  # fmt: skip
    """List dead letters of a queue; without a queue, which queues have some."""
    from runnel.cli.output import note, print_json
    from runnel.cli.session import run
    from runnel.model.calls import ListDead

    if not name:
        if partition is not None or offset is not None or text:
            raise click.UsageError("partitions, offsets and filters are of one queue: name it")
        _list_queues(count, since, as_json, broker)
        return
    if offset is not None and partition is None:
        raise click.UsageError("an offset is that of a partition: name it with -p")
    asked = ListDead(name, count, partition, offset, text, place(since) if since else None)
    found = run(broker, lambda cluster: letters_of(cluster, asked))
    if as_json:
        for letter in found.letters:
            print_json(letter_row(letter))
    else:
        print_letters(found.letters, none=f"Queue {name} has no dead letters.")
    if found.next is not None:
        note(f"There are more: go on with --from {found.next.partition}/{found.next.offset}, or show more with -c N.")


async def letters_of(cluster: "Cluster", asked: "ListDead") -> "DeadLetters":
    """As many as are asked for, page by page; `next` says where those begin that were not."""
    from msgspec.structs import replace

    from runnel.client.calls import call_until_done
    from runnel.model.calls import DEAD_LIST, DeadLetters

    found: list[DeadLetter] = []
    since = asked.since
    while True:
        page = replace(asked, messages_max=min(asked.messages_max - len(found), PAGE), since=since)
        answer = await call_until_done(cluster, DEAD_LIST, page)
        found += answer.letters
        since = answer.next
        if since is None or len(found) >= asked.messages_max:
            return DeadLetters(found, answer.more, since)


def print_letters(letters: "list[DeadLetter]", *, none: str) -> None:
    from runnel.cli.message_view import preview
    from runnel.cli.output import left, print_table, right
    from runnel.cli.template import iso_of

    print_table(
        [*left("LETTER", "DIED"), *right("ATTEMPTS"), *left("REASON", "FROM", "KEY", "VALUE")],
        [
            (
                f"{x.message.partition}/{x.message.offset}",
                iso_of(x.died_ms),
                x.attempts,
                x.reason,
                f"{x.origin_topic}/{x.origin_partition}@{x.origin_offset}" if x.origin_topic else None,
                preview(x.message.key),
                preview(x.message.value),
            )
            for x in letters
        ],
        none=none,
    )


def letter_row(letter: "DeadLetter") -> dict[str, Any]:
    from runnel.cli.message_view import message_row
    from runnel.cli.template import iso_of

    return message_row(letter.message) | {
        "reason": letter.reason,
        "attempts": letter.attempts,
        "died": iso_of(letter.died_ms),
        "died_ms": letter.died_ms,
        "origin": {
            "topic": letter.origin_topic,
            "partition": letter.origin_partition,
            "offset": letter.origin_offset,
            "timestamp_ms": letter.origin_timestamp_ms,
        },
    }


# --- which queues have some
def _list_queues(count: int, since: str, as_json: bool, broker: str) -> None:
    from msgspec.structs import asdict

    from runnel.cli.output import left, note, print_json, print_table, right
    from runnel.cli.session import run

    found = run(broker, lambda cluster: _dead_queues(cluster, count, since))
    if as_json:
        for each in found.queues:
            print_json(asdict(each))
    else:
        print_table(
            [*left("QUEUE", "TOPIC"), *right("DEAD LETTERS")],
            [(each.queue, each.topic, f"{each.messages:,}") for each in found.queues],
            none="No queue has dead letters.",
        )
    if found.next is not None:
        note(f"There may be more: go on with --from {found.next}, or show more with -c N.")


async def _dead_queues(cluster: "Cluster", count: int, since: str) -> "DeadQueues":
    """As many as are asked for, page by page; `next` says where those begin that were not."""
    from runnel.client.calls import call_until_done
    from runnel.model.calls import DEAD_QUEUES, DeadQueues, ListDeadQueues

    found: list[DeadQueue] = []
    while True:
        page = await call_until_done(cluster, DEAD_QUEUES, ListDeadQueues(min(count - len(found), PAGE), since))
        found += page.queues
        if page.next is None or len(found) >= count:
            return DeadQueues(found, page.next)
        since = page.next


# --- show
@click.command(
    cls=Command,
    examples="""
runnel dlq show jobs 0/17
runnel dlq show jobs 0/17 --json | jq -r .value
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.argument("where", metavar="PARTITION/OFFSET", type=place)
@json_option
@broker_option
def show(name: str, where: "Place", as_json: bool, broker: str) -> None:
    """Show one dead letter: why it died, where it came from, its headers and its value."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run
    from runnel.model.calls import ListDead

    asked = ListDead(name, 1, where.partition, where.offset)
    found = run(broker, lambda cluster: letters_of(cluster, asked)).letters
    if not found or found[0].message.offset != where.offset:
        raise click.ClickException(f"queue {name!r} has no dead letter {where.partition}/{where.offset} (any more)")
    if as_json:
        print_json(letter_row(found[0]))
    else:
        _print_letter(found[0])


def _print_letter(letter: "DeadLetter") -> None:
    from runnel.cli.message_view import print_content
    from runnel.cli.output import plural, say
    from runnel.cli.template import iso_of

    origin = f"{letter.origin_topic}/{letter.origin_partition}@{letter.origin_offset}"
    click.echo(f"Dead letter {letter.message.partition}/{letter.message.offset}  of {letter.message.topic}")
    say(f"died    {iso_of(letter.died_ms)}, after {plural(letter.attempts, 'attempt')}: {letter.reason}")
    say(f"was     {origin}, of {iso_of(letter.origin_timestamp_ms)}")
    click.echo()
    print_content(letter.message.key, letter.message.value, letter.message.headers)
