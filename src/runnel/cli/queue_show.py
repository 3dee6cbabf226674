"""`runnel queue ls`, `describe` and `peek`."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_queues, json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runnel.client.cluster import Cluster
    from runnel.model.calls import DeliveryState, QueueDescription, Read

DESCRIBED_AT_ONCE = 16


# --- ls
@click.command(
    cls=Command,
    examples="""
runnel queue ls
runnel queue ls orders.                  those whose name begins so
runnel queue ls -q | xargs runnel queue describe
runnel queue ls --json | jq -r 'select(.dead > 0) | .queue'
""",
)
@click.argument("prefix", metavar="[PREFIX]", default="", shell_complete=complete_queues)
@click.option("-q", "--quiet", is_flag=True, help="Only names.")
@json_option
@broker_option
def ls(prefix: str, quiet: bool, as_json: bool, broker: str) -> None:
    """List queues, with what waits in them."""
    from runnel.cli.output import left, print_json, print_table, right
    from runnel.cli.session import run

    if quiet:
        for name in run(broker, lambda cluster: _names(cluster, prefix)):
            click.echo(name)
        return
    rows = [_summary(described) for described in run(broker, lambda cluster: _all(cluster, prefix))]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        [*left("QUEUE", "TOPIC"), *right("BACKLOG", "LEASED", "WAITING", "DEAD")],
        [
            (r["queue"], r["topic"], *(number(r[name]) for name in ("backlog", "leased", "waiting", "dead")))
            for r in rows
        ],
        none="There are no queues. Create one with 'runnel queue create NAME'.",
    )


async def _names(cluster: "Cluster", prefix: str) -> list[str]:
    from runnel.client.queue import queues

    return [each.queue for each in await queues(cluster, prefix)]


async def _all(cluster: "Cluster", prefix: str) -> "list[QueueDescription]":
    import asyncio

    names = await _names(cluster, prefix)
    found: list[QueueDescription] = []
    for start in range(0, len(names), DESCRIBED_AT_ONCE):
        some = names[start : start + DESCRIBED_AT_ONCE]
        found += await asyncio.gather(*(described(cluster, name) for name in some))
    return found


async def described(cluster: "Cluster", name: str) -> "QueueDescription":
    from runnel.client.calls import call_until_done
    from runnel.model.calls import QUEUE_DESCRIBE, NamedQueue

    return await call_until_done(cluster, QUEUE_DESCRIBE, NamedQueue(name))


def _summary(queue: "QueueDescription") -> dict[str, Any]:
    parts = queue.partitions
    return {
        "queue": queue.queue,
        "topic": queue.topic,
        "backlog": sum(map(backlog_of, parts)),
        "leased": sum(part.leased for part in parts),
        "waiting": sum(part.waiting for part in parts) + max(0, queue.scheduled),
        "dead": queue.dead_letters if queue.dead_letters >= 0 else None,
        "died": sum(part.dead for part in parts),
    }


def number(count: int | None) -> str | None:
    """A count as people read it; None where nobody could tell."""
    return None if count is None else f"{count:,}"


def backlog_of(part: "DeliveryState") -> int:
    """Messages of a partition that are not done."""
    return max(0, part.end - part.first_open - part.done_above)


# --- describe
@click.command(
    cls=Command,
    examples="""
runnel queue describe jobs
runnel queue describe jobs --all              with the settings that nobody changed
runnel queue describe jobs --json | jq .backlog
""",
)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@click.option("-a", "--all", "all_settings", is_flag=True, help="All settings, also those at their default.")
@json_option
@broker_option
def describe(names: tuple[str, ...], all_settings: bool, as_json: bool, broker: str) -> None:
    """Show what waits in each partition, what is leased and what failed, and the settings."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run

    async def work(cluster: "Cluster") -> "list[QueueDescription]":
        return [await described(cluster, name) for name in names]

    for queue in run(broker, work):
        if as_json:
            print_json(_described_json(queue))
        else:
            _print_described(queue, all_settings)


def _described_json(queue: "QueueDescription") -> dict[str, Any]:
    import msgspec

    partitions = []
    for part in queue.partitions:
        row = msgspec.structs.asdict(part) | {"backlog": backlog_of(part)}
        row["failure"] = part.failure.message if part.failure else None
        partitions.append(row)
    settings = {each.name: {"value": each.value, "default": each.default} for each in queue.settings}
    return _summary(queue) | {"defined": queue.defined, "partitions": partitions, "settings": settings}


def _print_described(queue: "QueueDescription", all_settings: bool) -> None:
    from runnel.cli.output import left, note, print_table, right

    total = _summary(queue)
    click.echo(
        f"Queue {queue.queue}  topic {queue.topic}  backlog {total['backlog']:,}  leased {total['leased']:,}"
        f"  dead {number(total['dead']) or 'not known'}"
    )
    click.echo()
    print_table(
        [
            *left("PARTITION"),
            *right("LEADER", "BACKLOG", "LEASED", "READY", "WAITING", "BLOCKED", "ACCEPTED", "DIED"),
            *left("OLDEST", "BREAKER"),
        ],
        [_partition_row(part) for part in queue.partitions],
        none="Its topic is not there: nothing is delivered.",
    )
    if queue.scheduled > 0:
        note(f"{queue.scheduled:,} more wait in the schedule for another attempt: runnel schedule ls shows them.")
    elif queue.scheduled < 0:
        note("The schedule could not be asked: more may wait in it for another attempt.")
    for part in queue.partitions:
        if part.failure is not None:
            note(f"{part.topic}/{part.partition} could not be asked: {part.failure.message}")
    shown = [each for each in queue.settings if all_settings or not each.default]
    click.echo()
    if shown:
        print_table(left("SETTING", "VALUE"), [(each.name, each.value) for each in shown])
    else:
        click.echo("All settings are at their defaults (--all shows them).")


def _partition_row(part: "DeliveryState") -> tuple[object, ...]:
    from runnel.cli.template import iso_of

    where = f"{part.topic}/{part.partition}"
    if part.failure is not None:
        return (where, part.leader if part.leader >= 0 else "none", *[None] * 9)
    counts = (backlog_of(part), part.leased, part.ready, part.waiting, part.blocked, part.accepted, part.dead)
    return (where, part.leader, *(f"{count:,}" for count in counts), iso_of(part.oldest_ms), part.breaker)


# --- peek
@click.command(
    cls=Command,
    examples=r"""
runnel queue peek jobs                        the first ten that are not done
runnel queue peek jobs -c 100 --filter "body.amount > 1000"
runnel queue peek jobs -p 0 -o 1500 -f '%o %k %s\n'
runnel queue peek jobs --json | jq .state
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("-c", "--count", metavar="N", type=click.IntRange(min=1), default=10, show_default=True, help="At most.")
@click.option("-p", "--partition", metavar="N", type=click.IntRange(min=0), help="Only this partition.")
@click.option("-o", "--offset", metavar="N", type=click.IntRange(min=0), help="From this offset on, of a partition.")
@click.option("--retries", is_flag=True, help="Those that wait in the queue's retry topic.")
@click.option("--filter", "text", metavar="TEXT", default="", help="Only what passes this filter.")
@click.option("-f", "--format", "template", metavar="FORMAT", help="As of 'runnel consume'.  [default: a table]")
@json_option
@broker_option
def peek(
    name: str,
    count: int,
    partition: int | None,
    offset: int | None,
    retries: bool,
    text: str,
    template: str | None,
    as_json: bool,
    broker: str,
) -> None:
    """Print messages of a queue that are not done, without leasing them."""
    from runnel.cli.session import run
    from runnel.client.calls import call_until_done
    from runnel.model.calls import QUEUE_PEEK, Peek

    if offset is not None and partition is None:
        raise click.UsageError("an offset is that of a partition: name it with -p")

    async def work(cluster: "Cluster") -> "list[Read]":
        topic = await _retry_topic(cluster, name) if retries else ""
        asked = Peek(name, count, partition, offset, text, topic)
        return (await call_until_done(cluster, QUEUE_PEEK, asked)).messages

    print_read(run(broker, work), template, as_json, none=f"No message waits in {name}.")


async def _retry_topic(cluster: "Cluster", name: str) -> str:
    from runnel.cli.queue_define import settings_of
    from runnel.model.queue_config import config_of

    topic = config_of(frozenset(settings_of(await described(cluster, name)).items())).retry_topic_of(name)
    if not topic:
        raise click.ClickException(f"queue {name!r} has no retry topic: its messages wait in place")
    return topic


def print_read(messages: "Sequence[Read]", template: str | None, as_json: bool, *, none: str) -> None:
    """Messages as a table, as JSON, or as a format says."""
    import sys

    from runnel.cli.consume import writer
    from runnel.cli.message_view import message_row, preview
    from runnel.cli.output import left, print_json, print_table, right

    if as_json:
        for message in messages:
            print_json(message_row(message) | {"attempts": message.attempts, "state": message.state})
    elif template is not None:
        write = writer(template, None, False)
        sys.stdout.buffer.write(b"".join([write(message) for message in messages]))
    else:
        rows = [
            (f"{m.topic}/{m.partition}@{m.offset}", m.state, m.attempts, preview(m.key), preview(m.value))
            for m in messages
        ]
        print_table([*left("MESSAGE", "STATE"), *right("ATTEMPTS"), *left("KEY", "VALUE")], rows, none=none)
