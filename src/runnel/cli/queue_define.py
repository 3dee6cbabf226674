"""`runnel queue create`, `alter` and `delete`."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import (
    alter_options,
    broker_option,
    check_resets,
    complete_queues,
    complete_topics,
    dry_run_option,
    json_option,
    setting,
    span,
    yes_option,
)

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster
    from runnel.model.calls import QueueDefined, QueueDescription


# --- create
@click.command(
    cls=Command,
    examples="""
runnel queue create jobs
runnel queue create jobs --lease 1m --attempts 3 --backoff 5s
runnel queue create alerts --lanes 3                 three priorities
runnel queue create payments --order key             one message of a key at a time
runnel queue create big --topic orders --filter "body.amount > 1000"
runnel queue create jobs -c max.length=100000 -c overflow=refuse --if-not-exists
""",
)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "-t", "--topic", shell_complete=complete_topics, help="Deliver the messages of this topic.  [default: its own]"
)
@click.option("-p", "--partitions", metavar="N", type=click.IntRange(min=1), help="Of its topic, if that is made.")
@click.option("-r", "--replicas", metavar="N", type=click.IntRange(min=1), help="Copies of its topic, if that is made.")
@click.option("--lanes", metavar="N", type=click.IntRange(min=1), help="Priorities, 0 to N-1: the higher goes first.")
@click.option("--lease", metavar="SPAN", type=span, help="How long a message is leased.  [default: 30s]")
@click.option("--attempts", metavar="N", type=click.IntRange(min=0), help="Deliveries of a message.  [default: 5]")
@click.option(
    "--backoff", metavar="SPAN", type=span, help="Pause before the second attempt; it doubles.  [default: 1s]"
)
@click.option("--order", type=click.Choice(["none", "key"]), help="key: one message of a key at a time, in order.")
@click.option("--filter", "text", metavar="TEXT", help="Only deliver what passes this filter.")
@click.option("--dead-letters", metavar="TOPIC", help="Where what failed goes; '' drops it.  [default: QUEUE.dead]")
@click.option("-c", "--config", metavar="KEY=VALUE", type=setting, multiple=True, help="A setting; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="It is no error if the queue is there.")
@dry_run_option
@json_option
@broker_option
def create(
    names: tuple[str, ...],
    topic: str | None,
    partitions: int | None,
    replicas: int | None,
    lanes: int | None,
    lease: int | None,
    attempts: int | None,
    backoff: int | None,
    order: str | None,
    text: str | None,
    dead_letters: str | None,
    config: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
    broker: str,
) -> None:
    """Create queues. The topic of a queue is made if it is not there."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import QUEUE_CREATE, CreateQueue
    from runnel.model.errors import QueueAlreadyExists

    given = {
        "topic": topic, "lanes": lanes, "lease.ms": lease, "attempts.max": attempts, "retry.backoff.ms": backoff,
        "order": order, "filter": text, "dead.letter.topic": dead_letters,
    }  # fmt: skip
    settings = {name: str(value) for name, value in given.items() if value is not None} | dict(config)

    async def work(cluster: "Cluster") -> "list[tuple[str, QueueDefined | None]]":
        made: list[tuple[str, QueueDefined | None]] = []
        for name in names:
            asked = CreateQueue(name, settings, partitions or -1, replicas or -1, dry_run)
            try:
                defined = await call(cluster, QUEUE_CREATE, asked)
                made.append((name, defined))
            except QueueAlreadyExists:
                if not if_not_exists:
                    raise
                made.append((name, None))
        return made

    for name, defined in run(broker, work):
        if as_json:
            print_json(_created_json(name, defined, dry_run))
        elif defined is None:
            click.echo(f"queue {name} exists already")
        else:
            where = f"a new topic {defined.topic}" if defined.created_topic else f"topic {defined.topic}"
            click.echo(f"{'would create' if dry_run else 'created'} queue {name} on {where}")


def _created_json(name: str, defined: "QueueDefined | None", dry_run: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"queue": name, "created": defined is not None and not dry_run}
    if defined is not None:
        row |= {"topic": defined.topic, "created_topic": defined.created_topic}
    return row


# --- alter
@click.command(
    cls=Command,
    examples="""
runnel queue alter jobs -c lease.ms=60000 -c attempts.max=10
runnel queue alter jobs --reset attempts.max
runnel queue alter jobs -c "filter=body.amount > 1000" --dry-run
""",
)
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@alter_options
@dry_run_option
@json_option
@broker_option
def alter(
    name: str, config: tuple[tuple[str, str], ...], reset: tuple[str, ...], dry_run: bool, as_json: bool, broker: str
) -> None:
    """Change settings of a queue. 'runnel queue describe QUEUE --all' lists them."""
    from runnel.cli.output import print_changes
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import QUEUE_ALTER, QUEUE_DESCRIBE, AlterQueue, NamedQueue

    if not config and not reset:
        raise click.UsageError("nothing to change: give -c KEY=VALUE or --reset KEY")
    wanted: dict[str, str | None] = dict(config) | dict.fromkeys(reset)

    async def settings(cluster: "Cluster") -> dict[str, str]:
        return settings_of(await call(cluster, QUEUE_DESCRIBE, NamedQueue(name)))

    async def work(cluster: "Cluster") -> list[tuple[str, str | None, str | None]]:
        before = await settings(cluster)
        check_resets("queue", map(_canonical, reset), before)
        await call(cluster, QUEUE_ALTER, AlterQueue(name, wanted, dry_run))
        after = await settings(cluster) | (dict(config) | dict.fromkeys(reset, "(default)") if dry_run else {})
        return [(key, before.get(key), after.get(key)) for key in map(_canonical, wanted)]

    print_changes({"queue": name}, run(broker, work), dry_run=dry_run, as_json=as_json)


def settings_of(described: "QueueDescription") -> dict[str, str]:
    return {setting.name: setting.value for setting in described.settings}


def _canonical(name: str) -> str:
    from runnel.model.queue_config import canonical

    return canonical(name)


# --- delete
@click.command(
    cls=Command,
    examples="""
runnel queue delete jobs                 its settings, and what it knew of its messages
runnel queue delete jobs --topics        with its topic, its retries and its dead letters
runnel queue delete jobs --topics --dry-run
""",
)
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@click.option("--topics", is_flag=True, help="Also its topics with all their messages, unless other queues use them.")
@dry_run_option
@yes_option
@json_option
@broker_option
def delete(names: tuple[str, ...], topics: bool, dry_run: bool, yes: bool, as_json: bool, broker: str) -> None:
    """Delete queues. Messages stay in their topics, unless --topics says otherwise."""
    from runnel.cli.output import confirm, print_json
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import QUEUE_DELETE, DeleteQueue

    async def plan(cluster: "Cluster") -> dict[str, list[str]]:
        asked = [await call(cluster, QUEUE_DELETE, DeleteQueue(name, topics, True)) for name in names]
        return {deleted.queue: deleted.topics for deleted in asked}

    async def work(cluster: "Cluster") -> None:
        for name in names:
            await call(cluster, QUEUE_DELETE, DeleteQueue(name, topics))

    planned = run(broker, plan)
    lost = "; ".join(f"queue {name}" + (f" with {', '.join(gone)}" if gone else "") for name, gone in planned.items())
    if not dry_run:
        confirm(f"This deletes {lost} for ever.", yes=yes)
        run(broker, work)
    for name, gone in planned.items():
        if as_json:
            print_json({"queue": name, "deleted": not dry_run, "topics": gone})
        else:
            also = f" and {', '.join(gone)}" if gone else ""
            click.echo(f"{'would delete' if dry_run else 'deleted'} queue {name}{also}")
