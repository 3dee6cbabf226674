"""`runnel txn ls` and `describe`: which transactions there are."""

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_transactions, json_option

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster
    from runnel.client.metadata import TopicPartition
    from runnel.client.transactions_admin import TransactionDescription, TransactionListing

STATES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


class Written(NamedTuple):
    """A partition that a transaction has written to."""

    where: "TopicPartition"
    first_offset: int | None  # None: the partition does not know (offsets of groups, or it has ended there)


# --- ls
@click.command(
    cls=Command,
    examples="""
runnel txn ls
runnel txn ls --state Ongoing --open-for 60
runnel txn ls --json | jq -r 'select(.state == "Ongoing") | .id'
""",
)
@click.option(
    "-s", "--state", "states", type=click.Choice(STATES), multiple=True, help="Only in this state; may be repeated."
)
@click.option(
    "--open-for", metavar="SECONDS", type=click.IntRange(min=0), help="Only those that are open for longer than this."
)
@click.option("--producer-id", "producer_ids", metavar="N", type=int, multiple=True, help="Only of this producer.")
@json_option
@broker_option
def ls(
    states: tuple[str, ...], open_for: int | None, producer_ids: tuple[int, ...], as_json: bool, broker: str
) -> None:
    """List the transactional ids that the cluster knows, with the state of their last transaction."""
    from runnel.cli.output import left, note_silent, print_json, print_table, right
    from runnel.cli.session import run
    from runnel.client.transactions_admin import TransactionsAdmin

    async def work(cluster: "Cluster") -> "list[TransactionListing]":
        admin = TransactionsAdmin(cluster)
        open_for_ms = -1 if open_for is None else open_for * 1000
        listed = await admin.transactions(states=states, producer_ids=producer_ids, open_for_ms=open_for_ms)
        note_silent(admin.silent)
        return listed

    found = run(broker, work)
    if as_json:
        for t in found:
            print_json({"id": t.id, "state": t.state, "producer_id": t.producer_id, "coordinator": t.coordinator})
        return
    print_table(
        [*left("TRANSACTIONAL ID", "STATE"), *right("PRODUCER", "COORDINATOR")],
        [(t.id, t.state, t.producer_id, t.coordinator) for t in found],
        none="There are no such transactions.",
    )


# --- describe
@click.command(
    cls=Command,
    examples="""
runnel txn describe billing-1
runnel txn describe billing-1 --json | jq .partitions
""",
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_transactions)
@json_option
@broker_option
def describe(ids: tuple[str, ...], as_json: bool, broker: str) -> None:
    """Show the transaction of a transactional id: state, producer, since when it is open, and where it wrote."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run

    for name in ids:
        found, written = run(broker, lambda cluster, name=name: looked_at(cluster, name))  # type: ignore[misc]
        if as_json:
            print_json(described_json(found, written))
        else:
            print_described(found, written)


async def looked_at(cluster: "Cluster", name: str) -> "tuple[TransactionDescription, list[Written]]":
    """What the coordinator knows of an id, and where its transaction begins in each partition."""
    from runnel.client.transactions_admin import TransactionsAdmin

    found = await TransactionsAdmin(cluster).describe(name)
    return found, [Written(where, await _first_offset(cluster, found, where)) for where in found.partitions]


async def _first_offset(cluster: "Cluster", found: "TransactionDescription", where: "TopicPartition") -> int | None:
    from runnel.client.transactions_admin import TransactionsAdmin
    from runnel.model.errors import RunnelError

    try:
        producers = await TransactionsAdmin(cluster).producers([where])
    except RunnelError:
        return None  # it was deleted, or has no leader: the rest is worth telling
    of_it = [p.first_offset for p in producers if p.identity.producer_id == found.identity.producer_id]
    return of_it[0] if of_it else None


def described_json(found: "TransactionDescription", written: list[Written]) -> dict[str, Any]:
    return {
        "id": found.id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.identity.producer_id,
        "producer_epoch": found.identity.epoch,
        "timeout_ms": found.timeout_ms,
        "began_ms": found.began_ms,
        "holder": found.holder or None,
        "partitions": [
            {"topic": w.where.topic, "partition": w.where.partition, "first_offset": w.first_offset} for w in written
        ],
    }


def print_described(found: "TransactionDescription", written: list[Written]) -> None:
    from runnel.cli.output import left, print_table, right, say

    say(f"Transactional id {found.id}  state {found.state}{_age(found)}")
    who = f"producer {found.identity.producer_id} epoch {found.identity.epoch}"
    click.echo(f"{who}  timeout {found.timeout_ms / 1000:g} s  coordinator {found.coordinator}")
    if found.holder:
        say(f"held by sink {found.holder}: 'runnel sink describe {found.holder}' shows its batch")
    if written:
        click.echo()
        print_table(
            [*left("TOPIC"), *right("PARTITION", "FIRST OFFSET")],
            [(w.where.topic, w.where.partition, w.first_offset) for w in written],
        )


def _age(found: "TransactionDescription") -> str:
    from runnel.cli.session import SystemClock
    from runnel.cli.template import iso_of

    if not found.open or found.began_ms is None:
        return ""
    age_s = max(0, SystemClock().wall_ms() - found.began_ms) // 1000
    return f"  open since {iso_of(found.began_ms)} ({age_s:,} s)"
