"""`runnel cluster status` and `brokers`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, json_option

if TYPE_CHECKING:
    from runnel.cli.cluster_survey import Survey
    from runnel.client.cluster_admin import BrokerDescription

TROUBLES_SHOWN = 20
TROUBLES = {
    "offline": "no leader",
    "under_min": "below min.insync.replicas",
    "at_min": "at min.insync.replicas",
    "under_replicated": "under-replicated",
}


# --- status
@click.command(
    cls=Command,
    examples="""
runnel cluster status
runnel cluster status --all               every partition that lacks something
runnel cluster status --check             for scripts: fails unless all is well
runnel cluster status --json | jq .under_replicated
""",
)
@click.option("-a", "--all", "everything", is_flag=True, help="All partitions that lack something, not only the first.")
@click.option("--check", is_flag=True, help="Exit with 1 unless every partition has all its replicas in sync.")
@json_option
@broker_option
def status(everything: bool, check: bool, as_json: bool, broker: str) -> int:
    """Show how the cluster is: brokers, leaders, and what partitions lack."""
    from runnel.cli.cluster_survey import survey
    from runnel.cli.output import print_json
    from runnel.cli.session import run

    found = run(broker, survey)
    if as_json:
        print_json(_status_json(found))
    else:
        _print_status(found, everything)
    return 1 if check and not found.health.well else 0


def _status_json(found: "Survey") -> dict[str, Any]:
    health = found.health
    return {
        "cluster": found.description.id,
        "controller": found.description.controller if found.description.controller >= 0 else None,
        "brokers": list(_broker_rows(found)),
        "partitions": health.partitions,
        "well": health.well,
        "under_replicated": list(map(str, health.under_replicated)),
        "offline": list(map(str, health.offline)),
        "under_min_isr": list(map(str, health.under_min)),
        "at_min_isr": list(map(str, health.at_min)),
        "not_led_by_preferred": list(map(str, health.displaced)),
        "reassignments": [
            {"partition": str(w), "replicas": list(r.replicas), "adding": list(r.adding), "removing": list(r.removing)}
            for w, r in found.reassignments.items()
        ],
    }


def _print_status(found: "Survey", everything: bool) -> None:
    from runnel.cli.output import plural

    health = found.health
    controller = found.description.controller
    click.echo(
        f"Cluster {found.description.id}  controller {controller if controller >= 0 else 'none'}"
        f"  brokers {len(found.serving)}  partitions {health.partitions:,}"
    )
    click.echo(f"{'All is well' if health.well else 'Not all is well'}: {_summary(found)}.")
    click.echo()
    _print_brokers(list(_broker_rows(found)))
    _print_troubles(found, everything)
    if found.reassignments:
        click.echo()
        moving = plural(len(found.reassignments), "partition")
        click.echo(f"{moving} moving; 'runnel cluster reassign --watch' shows how far, '--cancel' takes them back.")
    if found.rates:
        from runnel.cli.output import bytes_text

        rates = ", ".join(f"{number}: {bytes_text(rate)}/s" for number, rate in found.rates.items())
        click.echo(f"Copying is throttled on brokers {rates}.")


def _summary(found: "Survey") -> str:
    health = found.health
    counts = (
        (len(health.under_replicated), "under-replicated"),
        (len(health.offline), "without a leader"),
        (len(health.under_min), "below min.insync.replicas"),
        (len(health.at_min), "at min.insync.replicas"),
        (len(health.displaced), "not led by the preferred replica"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in counts if count or what == "under-replicated")


def _print_troubles(found: "Survey", everything: bool) -> None:
    from runnel.cli.output import left, print_table, right

    troubles: dict[Any, list[str]] = {}
    for field, words in TROUBLES.items():
        for where in getattr(found.health, field):
            troubles.setdefault(where, []).append(words)
    if not troubles:
        return
    shown = list(troubles.items())[: None if everything else TROUBLES_SHOWN]
    rows = []
    for where, lacks in shown:
        p = found.view.topics[where.topic].partitions[where.partition]
        leader = "none" if p.leader < 0 else p.leader
        rows.append((where, leader, _list(p.replicas), _list(p.in_sync), ", ".join(lacks)))
    click.echo()
    print_table([*left("PARTITION"), *right("LEADER"), *left("REPLICAS", "IN SYNC", "TROUBLE")], rows)
    if len(troubles) > len(shown):
        click.echo(f"... and {len(troubles) - len(shown):,} more (--all shows them)")


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


# --- brokers
@click.command(
    cls=Command,
    examples="""
runnel cluster brokers
runnel cluster brokers --json | jq -r .address
""",
)
@json_option
@broker_option
def brokers(as_json: bool, broker: str) -> None:
    """List the brokers, with what they lead and hold, and the room on their disks."""
    from runnel.cli.cluster_survey import survey
    from runnel.cli.output import print_json
    from runnel.cli.session import run

    rows = list(_broker_rows(run(broker, survey)))
    if as_json:
        for row in rows:
            print_json(row)
    else:
        _print_brokers(rows)


def _broker_rows(found: "Survey") -> Iterator[dict[str, Any]]:
    """Also of brokers that are gone, and were not unregistered or still hold replicas."""
    known = found.description.brokers
    for number in sorted({*known, *found.health.shares}):
        described, share, disk = known.get(number), found.health.shares.get(number), found.disks.get(number)
        yield {
            "broker": number,
            "address": str(described.address) if described and not described.away else None,
            "rack": described.address.rack if described else None,
            "state": _state(described),
            "controller": number == found.description.controller,
            "leads": share.leads if share else 0,
            "preferred": share.preferred if share else 0,
            "holds": share.holds if share else 0,
            "behind": share.behind if share else 0,
            "size_bytes": found.size_on(number),
            "free_bytes": disk.free_bytes if disk and disk.total_bytes >= 0 else None,
            "total_bytes": disk.total_bytes if disk and disk.total_bytes >= 0 else None,
        }


def _state(described: "BrokerDescription | None") -> str:
    if described is None or described.away:
        return "gone"
    return "fenced" if described.fenced else "serving"


def _print_brokers(rows: list[dict[str, Any]]) -> None:
    from runnel.cli.output import bytes_text, left, print_table, right

    columns = [*right("BROKER"), *left("ADDRESS", "RACK", "STATE"), *right("LEADS", "HOLDS", "BEHIND", "SIZE", "FREE")]
    print_table(
        columns,
        [
            (
                row["broker"],
                row["address"],
                row["rack"],
                f"{row['state']}, controller" if row["controller"] else row["state"],
                f"{row['leads']:,}",
                f"{row['holds']:,}",
                f"{row['behind']:,}",
                bytes_text(row["size_bytes"]),
                bytes_text(row["free_bytes"]),
            )
            for row in rows
        ],
    )
