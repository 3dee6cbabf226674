"""`runnel topic ls` and `describe`."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_topics, json_option

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster
    from runnel.client.metadata import Topic, TopicPartition
    from runnel.client.positions import Bounds


# --- ls
@click.command(
    cls=Command,
    examples="""
runnel topic ls
runnel topic ls --json | jq -r .topic
""",
)
@click.option("-i", "--internal", is_flag=True, help="Also topics that Runnel keeps for itself.")
@json_option
@broker_option
def ls(internal: bool, as_json: bool, broker: str) -> None:
    """List topics, with the messages and bytes they hold."""
    from runnel.cli.output import Column, bytes_text, left, note, print_json, print_table, right
    from runnel.cli.session import run

    rows, blind = run(broker, lambda cluster: _list(cluster, internal))
    for name in blind:
        note(f"{name} is a view whose source was deleted: nobody can read it, 'runnel topic delete {name}' removes it")
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns: list[Column] = [*left("TOPIC"), *right("PARTITIONS", "REPLICAS", "MESSAGES", "SIZE")]
    print_table(
        columns,
        [(r["topic"], r["partitions"], r["replicas"], f"{r['messages']:,}", bytes_text(r["size_bytes"])) for r in rows],
        none="There are no topics. Create one with 'runnel topic create NAME'.",
    )


async def _list(cluster: "Cluster", internal: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """What there is to tell of each topic; and the views whose source is gone."""
    from runnel.client.admin import Admin
    from runnel.wire.kafka.error_codes import ErrorCode

    admin = Admin(cluster)
    view = await admin.view()
    topics = [t for name, t in sorted(view.topics.items()) if internal or not t.internal]
    messages: Counter[str] = Counter()
    for where, held in (await limits_of(cluster, topics)).items():
        messages[where.topic] += held.end - held.start
    sizes: Counter[str] = Counter()
    for where, size in (await admin.sizes([t.name for t in topics]) if topics else {}).items():
        sizes[where.topic] += size
    blind = sorted(name for name, code in view.errors.items() if code == ErrorCode.INVALID_TOPIC_EXCEPTION)
    rows = [
        {
            "topic": t.name,
            "id": str(t.id),
            "internal": t.internal,
            "partitions": len(t.partitions),
            "replicas": max((len(p.replicas) for p in t.partitions.values()), default=0),
            "messages": messages[t.name],
            "size_bytes": sizes[t.name],
        }
        for t in topics
    ]
    return rows, blind


# --- describe
@click.command(
    cls=Command,
    examples="""
runnel topic describe orders
runnel topic describe orders --all            with the settings that nobody changed
runnel topic describe orders --groups         and who reads it
runnel topic describe orders --json | jq .config
""",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-a", "--all", "all_settings", is_flag=True, help="All settings, also those at their default.")
@click.option("-g", "--groups", "with_groups", is_flag=True, help="Also the groups that read it, with their lag.")
@json_option
@broker_option
def describe(names: tuple[str, ...], all_settings: bool, with_groups: bool, as_json: bool, broker: str) -> None:
    """Show partitions, offsets, sizes and settings of topics."""
    from runnel.cli.output import print_json
    from runnel.cli.session import run

    async def work(cluster: "Cluster") -> list[dict[str, Any]]:
        return [await _describe(cluster, name, with_groups) for name in names]

    for row in run(broker, work):
        if as_json:
            print_json(row)
        else:
            _print_description(row, all_settings)


async def _describe(cluster: "Cluster", name: str, with_groups: bool) -> dict[str, Any]:
    from runnel.client.admin import Admin
    from runnel.client.metadata import TopicPartition

    admin = Admin(cluster)
    found = (await admin.topics([name]))[name]
    limits = await limits_of(cluster, [found])
    sizes = await admin.sizes([name])
    config = (await admin.configs([name]))[name]
    partitions = []
    for p in found.partitions.values():
        where = TopicPartition(name, p.number)
        held = limits.get(where)
        partitions.append(
            {
                "partition": p.number,
                "leader": p.leader if p.leader >= 0 else None,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "in_sync": list(p.in_sync),
                "start_offset": held.start if held else None,
                "end_offset": held.end if held else None,
                "size_bytes": sizes.get(where),
            }
        )
    row: dict[str, Any] = {
        "topic": name,
        "id": str(found.id),
        "internal": found.internal,
        "partitions": partitions,
        "config": {c.name: {"value": c.value, "source": c.source} for c in config},
    }
    if with_groups:
        row["groups"] = await _groups_of(cluster, name)
    return row


async def _groups_of(cluster: "Cluster", name: str) -> list[dict[str, Any]]:
    from runnel.client.group_admin import GroupAdmin

    admin = GroupAdmin(cluster)
    rows = []
    for listed in await admin.groups():
        description = await admin.describe(listed.name)
        lags = [lag for lag in await admin.lags(description) if lag.where.topic == name]
        if lags:
            total = sum(lag.lag for lag in lags)
            members = len(description.members)
            rows.append({"group": listed.name, "state": description.state, "members": members, "lag": total})
    return rows


def _print_description(row: dict[str, Any], all_settings: bool) -> None:
    from runnel.cli.output import bytes_text, left, print_table, right

    messages = sum((p["end_offset"] or 0) - (p["start_offset"] or 0) for p in row["partitions"])
    size = bytes_text(sum(p["size_bytes"] or 0 for p in row["partitions"]))
    click.echo(f"Topic {row['topic']}  id {row['id']}  messages {messages:,}  size {size}")
    click.echo()
    print_table(
        [
            *right("PARTITION", "LEADER", "EPOCH"),
            *left("REPLICAS", "IN SYNC"),
            *right("START", "END", "MESSAGES", "SIZE"),
        ],
        [_partition_row(p) for p in row["partitions"]],
    )
    shown = [(k, v) for k, v in sorted(row["config"].items()) if all_settings or v["source"] != "default"]
    click.echo()
    if shown:
        print_table(left("SETTING", "VALUE", "FROM"), [(k, v["value"], v["source"]) for k, v in shown])
    else:
        click.echo("All settings are at their defaults (--all shows them).")
    if "groups" in row:
        click.echo()
        groups = [(g["group"], g["state"], g["members"], f"{g['lag']:,}") for g in row["groups"]]
        print_table([*left("GROUP", "STATE"), *right("MEMBERS", "LAG")], groups)


def _partition_row(p: dict[str, Any]) -> tuple[object, ...]:
    from runnel.cli.output import bytes_text

    known = p["end_offset"] is not None
    return (
        p["partition"],
        "none" if p["leader"] is None else p["leader"],
        p["leader_epoch"],
        ",".join(map(str, p["replicas"])),
        ",".join(map(str, p["in_sync"])),
        p["start_offset"],
        p["end_offset"],
        f"{p['end_offset'] - p['start_offset']:,}" if known else None,
        bytes_text(p["size_bytes"]),
    )


# --- what both need
async def limits_of(cluster: "Cluster", topics: "list[Topic]") -> "dict[TopicPartition, Bounds]":
    """The offsets that partitions hold: one without a leader, or whose leader does not know it yet, is left out."""
    from runnel.client.metadata import TopicPartition
    from runnel.client.positions import known_bounds

    led = [TopicPartition(t.name, p.number) for t in topics for p in t.partitions.values() if cluster.knows(p.leader)]
    return await known_bounds(cluster, led) if led else {}
