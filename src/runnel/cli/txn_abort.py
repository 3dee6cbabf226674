"""`runnel txn abort`: end a transaction from outside."""

from typing import TYPE_CHECKING, NamedTuple

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_transactions, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from runnel.cli.txn_show import Written
    from runnel.client.cluster import Cluster
    from runnel.client.metadata import TopicPartition
    from runnel.client.transactions_admin import PartitionProducer, TransactionDescription

FENCES = "Its producer is fenced: it can write no more until it is started anew."
TORN = (
    "BY PARTITION: this ends the transaction in one partition alone. Only for one that no coordinator knows any more:"
    " whatever it wrote elsewhere is left as it is."
)


class Planned(NamedTuple):
    found: "TransactionDescription"
    written: "list[Written]"


@click.command(
    cls=Command,
    examples="""
runnel txn abort billing-1                      all of it, in all partitions; fences its producer
runnel txn abort billing-1 --dry-run            only show what would be aborted
runnel txn abort --partition orders/3 --producer-id 4711     one that hangs there, and that no coordinator knows
runnel txn abort sink/clicks/3 --force          though a sink holds it: better is 'runnel sink forget clicks'
""",
)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete_transactions)
@click.option("--partition", metavar="TOPIC/N", help="Abort in this partition alone: for a transaction that hangs.")
@click.option("--producer-id", metavar="N", type=int, help="With --partition: whose transaction.")
@click.option("--force", is_flag=True, help="Also what a sink holds: its batch may be torn.")
@dry_run_option
@yes_option
@json_option
@broker_option
def abort(
    ids: tuple[str, ...],
    partition: str | None,
    producer_id: int | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    broker: str,
) -> None:
    """Abort open transactions: nobody who reads committed messages will see anything of them.

    A transaction ends by itself when its producer commits or aborts it, or at its timeout. This is for not waiting: the
    coordinator gives the id a new epoch, and aborts what was open under the old one in all partitions alike.
    """
    if bool(ids) == bool(partition) or (producer_id is not None and not partition):
        raise click.UsageError("name transactional ids, or a partition with --partition and --producer-id")
    if partition is not None:
        _abort_in_partition(
            _partition_of(partition), producer_id, dry_run=dry_run, yes=yes, as_json=as_json, broker=broker
        )
    else:
        _abort_ids(ids, force=force, dry_run=dry_run, yes=yes, as_json=as_json, broker=broker)


# --- by id
def _abort_ids(ids: tuple[str, ...], *, force: bool, dry_run: bool, yes: bool, as_json: bool, broker: str) -> None:
    from runnel.cli.output import confirm, plural
    from runnel.cli.session import run
    from runnel.cli.txn_show import looked_at
    from runnel.client.transactions_admin import TransactionsAdmin

    async def plan(cluster: "Cluster") -> list[Planned]:
        return [Planned(*(await looked_at(cluster, name))) for name in ids]

    async def work(cluster: "Cluster") -> None:
        for found, _ in to_abort:
            await TransactionsAdmin(cluster).abort(found, force=force)

    planned = run(broker, plan)
    to_abort = [each for each in planned if each.found.open]
    if not as_json:
        _print_plan(planned)
    if to_abort and not dry_run:
        confirm(f"This aborts {plural(len(to_abort), 'transaction')}. {FENCES}", yes=yes)
        run(broker, work)
    _report(planned, as_json=as_json, dry_run=dry_run)


def _print_plan(planned: list[Planned]) -> None:
    from runnel.cli.output import note
    from runnel.cli.txn_show import print_described

    for found, written in planned:
        if found.open:
            print_described(found, written)
        else:
            note(f"Transactional id {found.id} has no open transaction (state {found.state}): nothing to abort.")


def _report(planned: list[Planned], *, as_json: bool, dry_run: bool) -> None:
    from runnel.cli.output import print_json
    from runnel.cli.txn_show import described_json

    for found, written in planned:
        if as_json:
            print_json({**described_json(found, written), "aborted": found.open and not dry_run})
        elif found.open and not dry_run:
            click.echo(f"aborted the transaction of {found.id}")
    if dry_run and not as_json:
        click.echo("Nothing was changed (--dry-run).")


# --- by partition
def _partition_of(text: str) -> "TopicPartition":
    from runnel.client.metadata import TopicPartition

    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not number.isdecimal():
        raise click.UsageError(f"{text!r} is not TOPIC/PARTITION")
    return TopicPartition(topic, int(number))


def _abort_in_partition(
    where: "TopicPartition", producer_id: int | None, *, dry_run: bool, yes: bool, as_json: bool, broker: str
) -> None:
    from runnel.cli.output import confirm, note, print_json
    from runnel.cli.session import run
    from runnel.client.transactions_admin import TransactionsAdmin

    found = run(broker, lambda cluster: TransactionsAdmin(cluster).producers([where]))
    chosen = _chosen([p for p in found if p.first_offset is not None], where, producer_id)
    if not as_json:
        _print_producers([chosen])
    if not dry_run:
        note(TORN)
        confirm(f"This aborts the transaction of producer {chosen.identity.producer_id} in {where}.", yes=yes)
        run(broker, lambda cluster: TransactionsAdmin(cluster).abort_in_partition(chosen))
    if as_json:
        row = {"topic": where.topic, "partition": where.partition, "producer_id": chosen.identity.producer_id}
        print_json({**row, "first_offset": chosen.first_offset, "aborted": not dry_run})
    else:
        click.echo("Nothing was changed (--dry-run)." if dry_run else f"aborted it in {where}")


def _chosen(
    hanging: "list[PartitionProducer]", where: "TopicPartition", producer_id: int | None
) -> "PartitionProducer":
    """The one that is meant; where that is not clear, the choice is shown."""
    if not hanging:
        raise click.ClickException(f"no transaction is open in {where}: nothing to abort")
    matching = [p for p in hanging if producer_id in (None, p.identity.producer_id)]
    if len(matching) != 1:
        _print_producers(hanging)
        raise click.UsageError(f"say with --producer-id which of the transactions that are open in {where} is meant")
    return matching[0]


def _print_producers(producers: "list[PartitionProducer]") -> None:
    from runnel.cli.output import left, print_table, right
    from runnel.cli.template import iso_of

    print_table(
        [*left("PARTITION"), *right("PRODUCER", "EPOCH", "FIRST OFFSET"), *left("LAST WRITE")],
        [(p.where, p.identity.producer_id, p.identity.epoch, p.first_offset, iso_of(p.last_ms)) for p in producers],
    )
