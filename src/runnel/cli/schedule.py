"""`runnel schedule`: messages that wait for their time."""

from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Group
from runnel.cli.options import broker_option, complete_topics, json_option, moment, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runnel.client.cluster import Cluster
    from runnel.model.calls import Failure, Pending, PendingCount

PAGE = 500


@click.group(
    cls=Group,
    examples="""
runnel produce reminders -m tea --delay 90s -v   send later; prints the id
runnel schedule ls                               what waits, the next first
runnel schedule cancel ID                        it is not sent
runnel schedule move ID --delay 1h               send it another time
""",
)
def schedule() -> None:
    """Messages that wait for their time: look at them, cancel and move them."""


# --- ls
@schedule.command(
    examples="""
runnel schedule ls
runnel schedule ls reminders -c 1000
runnel schedule ls --from 2026-11-20T09:00Z
runnel schedule ls --count-only
runnel schedule ls --json | jq -r .id
"""
)
@click.argument("topic", metavar="[TOPIC]", default="", shell_complete=complete_topics)
@click.option("-c", "--count", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="At most.")
@click.option("--from", "begin", metavar="TIME", type=moment, default=None, help="Those due then or later.")
@click.option("--count-only", is_flag=True, help="Only say how many there are, and when the next is due.")
@json_option
@broker_option
def ls(topic: str, count: int, begin: int | None, count_only: bool, as_json: bool, broker: str) -> None:
    """List messages that wait for their time, the next first."""
    from runnel.cli.output import note, print_json
    from runnel.cli.session import run

    if count_only:
        _print_count(topic, run(broker, lambda cluster: _counted(cluster, topic)), as_json)
        return
    found, more = run(broker, lambda cluster: _pending(cluster, topic, begin or 0, count))
    if as_json:
        for message in found:
            print_json(_row(message))
    else:
        _print_pending(found, topic)
    if more:
        note("There are more (-c N shows more of them).")


async def _counted(cluster: "Cluster", topic: str) -> "PendingCount":
    from runnel.client.calls import call
    from runnel.model.calls import SCHEDULE_COUNT, CountPending

    return await call(cluster, SCHEDULE_COUNT, CountPending(topic))


def _print_count(topic: str, counted: "PendingCount", as_json: bool) -> None:
    from runnel.cli.output import plural, print_json
    from runnel.cli.template import iso_of

    if as_json:
        next_ms = counted.next_due_ms if counted.messages else None
        print_json({"topic": topic or None, "messages": counted.messages, "next_due_ms": next_ms})
        return
    where = f" for {topic}" if topic else ""
    when = f"; the next is due {iso_of(counted.next_due_ms)}" if counted.messages else ""
    waits = "waits" if counted.messages == 1 else "wait"
    click.echo(f"{plural(counted.messages, 'message')} {waits}{where}{when}")


async def _pending(cluster: "Cluster", topic: str, begin_ms: int, count: int) -> "tuple[list[Pending], bool]":
    """So many, page by page: each goes on behind the last one of the page before."""
    from runnel.client.calls import call
    from runnel.model.calls import SCHEDULE_LIST, ListPending

    found: list[Pending] = []
    more = True
    last_id = ""
    while more and len(found) < count:
        asked = ListPending(topic, begin_ms, min(PAGE, count - len(found)), last_id, True)
        page = await call(cluster, SCHEDULE_LIST, asked)
        found += page.messages
        more = page.more
        if not page.messages:
            break
        begin_ms, last_id = page.messages[-1].due_ms, page.messages[-1].id
    return found, more


def _row(message: "Pending") -> dict[str, Any]:
    from runnel.cli.message_view import content_row
    from runnel.cli.template import iso_of

    row: dict[str, Any] = {"id": message.id, "due": iso_of(message.due_ms), "due_ms": message.due_ms}
    row |= {"topic": message.topic, "partition": message.partition}
    return row | content_row(message.key, message.value, message.headers)


def _print_pending(messages: "Sequence[Pending]", topic: str) -> None:
    from runnel.cli.message_view import preview
    from runnel.cli.output import left, print_table
    from runnel.cli.template import iso_of

    print_table(
        left("ID", "DUE", "TOPIC", "KEY", "VALUE"),
        [(x.id, iso_of(x.due_ms), f"{x.topic}/{x.partition}", preview(x.key), preview(x.value)) for x in messages],
        none=f"No message waits{f' for {topic}' if topic else ''}.",
    )


# --- show
@schedule.command(
    examples="""
runnel schedule show ID
runnel schedule show ID --json | jq -r .value
"""
)
@click.argument("message_id", metavar="ID")
@json_option
@broker_option
def show(message_id: str, as_json: bool, broker: str) -> None:
    """Show one message that waits: when it is due, where it goes, its headers and its value."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import SCHEDULE_GET, GetPending

    found = run(broker, lambda cluster: call(cluster, SCHEDULE_GET, GetPending(message_id))).messages
    if not found:
        raise click.ClickException(f"no message waits under the id {message_id!r} (any more)")
    if as_json:
        print_json(_row(found[0]))
    else:
        _print_message(found[0])


def _print_message(message: "Pending") -> None:
    from runnel.cli.message_view import print_content
    from runnel.cli.output import say
    from runnel.cli.template import iso_of

    say(f"Message {message.id}  due {iso_of(message.due_ms)}  for {message.topic}/{message.partition}")
    click.echo()
    print_content(message.key, message.value, message.headers)


# --- cancel
@schedule.command(
    examples="""
runnel schedule cancel ID
runnel schedule ls reminders --json | jq -r .id | xargs runnel schedule cancel
"""
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
@broker_option
def cancel(ids: tuple[str, ...], as_json: bool, broker: str) -> None:
    """Cancel messages: they are never sent. One that was sent already, or is being sent, is refused."""
    from runnel.cli.session import run
    from runnel.client.calls import call_until_done
    from runnel.model.calls import SCHEDULE_CANCEL, Cancel

    failures = run(broker, lambda cluster: call_until_done(cluster, SCHEDULE_CANCEL, Cancel(list(ids)))).failures
    _report(ids, failures, "cancelled", as_json)


# --- move
@schedule.command(
    examples="""
runnel schedule move ID --delay 1h
runnel schedule move ID --deliver-at 2026-11-20T09:00:00Z
"""
)
@click.argument("message_id", metavar="ID")
@click.option("--delay", metavar="SPAN", type=span, help="Send it so long from now.")
@click.option("--deliver-at", metavar="TIME", type=moment, help="Send it then: ISO 8601 or epoch ms.")
@json_option
@broker_option
def move(message_id: str, delay: int | None, deliver_at: int | None, as_json: bool, broker: str) -> None:
    """Have a message sent at another time. One that was sent already, or is being sent, is refused."""
    from runnel.cli.queue_send import due_at
    from runnel.cli.session import run
    from runnel.client.calls import call
    from runnel.model.calls import SCHEDULE_MOVE, Move

    due_ms = due_at(delay, deliver_at)
    if due_ms is None:
        raise click.UsageError("say when: --delay SPAN or --deliver-at TIME")
    failures = run(broker, lambda cluster: call(cluster, SCHEDULE_MOVE, Move(message_id, due_ms))).failures
    _report((message_id,), failures, "moved", as_json)


def _report(ids: "Sequence[str]", failures: "Sequence[Failure | None]", word: str, as_json: bool) -> None:
    from runnel.cli.output import note, print_json

    for one, failure in zip(ids, failures, strict=True):
        if as_json:
            print_json({"id": one, word: failure is None, "failure": failure.message if failure else None})
        elif failure is None:
            click.echo(f"{word} {one}")
        else:
            note(f"{one}: {failure.message}")
    refused = sum(failure is not None for failure in failures)
    if refused:
        raise click.ClickException(f"{refused} of {len(ids)} could not be {word}")
