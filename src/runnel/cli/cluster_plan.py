"""A change of replicas, from plan to end: shown, confirmed, asked for, watched.

Rule 1: nothing is changed before somebody has said yes, or --yes was given.
Rule 2: what was asked for goes on without us; Ctrl-C ends the watching and says how to go on.
Rule 3: a throttle ends with the moves it was for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from runnel.cli.output import bytes_text, confirm, left, note, plural, print_json, print_table, right
from runnel.cli.session import run

if TYPE_CHECKING:
    from runnel.client.balancing import Move
    from runnel.client.cluster import Cluster
    from runnel.client.cluster_admin import ClusterAdmin
    from runnel.client.metadata import Topic, TopicPartition

MOVES_SHOWN = 40
LOOKS_MAX, LOOK_S = 10, 0.2  # a broker may hear of the end a little later than another


@dataclass(frozen=True, slots=True)
class How:
    """What the options said."""

    broker: str
    throttle: int | None
    dry_run: bool
    yes: bool
    detach: bool
    as_json: bool


def carry_out(moves: "Sequence[Move]", how: How, *, nothing: str, done: str) -> int:
    """Take a plan to its end; returns the exit code."""
    if not moves:
        return _nothing(nothing, how)
    _show(moves, how)
    if how.dry_run:
        if not how.as_json:
            click.echo("Nothing was changed (--dry-run).")
        return 0
    confirm(f"This changes the replicas of {plural(len(moves), 'partition')}.", yes=how.yes)
    failures = run(how.broker, lambda cluster: _start(cluster, moves, how.throttle))
    _print_failures(failures, how)
    started = [move for move in moves if move.where not in failures]
    missed = _finish(started, how) if started and not how.detach else []
    _report(started, missed, how, done if not failures else "the others are where they should be")
    return 1 if failures or missed else 0


def _report(started: "Sequence[Move]", missed: "Sequence[TopicPartition]", how: How, done: str) -> None:
    if not started:
        return
    if how.as_json:
        fields = {"missed": list(map(str, missed))} if missed else {}
        print_json({"moved": len(started) - len(missed), "finished": not how.detach, **fields})
    elif how.detach:
        stays = "; the throttle stays until that has seen the end" if how.throttle else ""
        click.echo(f"{plural(len(started), 'partition')} on the way: {GO_ON}{stays}")
    elif missed:
        note(f"runnel: {plural(len(missed), 'move')} taken back or replaced meanwhile: {', '.join(map(str, missed))}")
    else:
        click.echo(done)


GO_ON = "'runnel cluster reassign --watch' shows how far, '--cancel' takes it back"


def _nothing(why: str, how: How) -> int:
    if how.as_json:
        print_json({"moves": [], "copied_bytes": 0})
    else:
        click.echo(why)
    return 0


# --- the plan
def _show(moves: "Sequence[Move]", how: How) -> None:
    if how.as_json:
        rows = [
            {
                "topic": move.where.topic,
                "partition": move.where.partition,
                "before": list(move.before),
                "after": list(move.after),
                "copy_to": list(move.adding),
                "copied_bytes": move.bytes_moved,
            }
            for move in moves
        ]
        print_json({"moves": rows, "copied_bytes": sum(move.bytes_moved for move in moves)})
        return
    table = [
        (move.where, _list(move.before), _list(move.after), _list(move.adding), bytes_text(move.bytes_moved))
        for move in moves[:MOVES_SHOWN]
    ]
    print_table([*left("PARTITION", "REPLICAS", "WILL BE", "COPY TO"), *right("BYTES")], table)
    if len(moves) > MOVES_SHOWN:
        click.echo(f"... and {len(moves) - MOVES_SHOWN:,} more (--json shows all)")
    click.echo(_sum_of(moves, how.throttle))


def _sum_of(moves: "Sequence[Move]", throttle: int | None) -> str:
    copies = sum(len(move.adding) for move in moves)
    total = sum(move.bytes_moved for move in moves)
    leaders = sum(move.before[:1] != move.after[:1] for move in moves)
    words = [f"{copies:,} {'replica' if copies == 1 else 'replicas'} to copy, {bytes_text(total)}"]
    words += [f"another preferred leader for {plural(leaders, 'partition')}"] if leaders else []
    if throttle and total:
        words.append(f"at {bytes_text(throttle)}/s on each broker at least {_seconds(moves, throttle)} s")
    return "; ".join(words)


def _seconds(moves: "Sequence[Move]", throttle: int) -> int:
    """As long as the broker needs that gets most."""
    incoming: dict[int, int] = {}
    for move in moves:
        for broker in move.adding:
            incoming[broker] = incoming.get(broker, 0) + move.size_bytes
    return round(max(incoming.values(), default=0) / throttle)


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


# --- doing it
async def _start(
    cluster: "Cluster", moves: "Sequence[Move]", throttle: int | None
) -> "dict[TopicPartition, Exception]":
    from runnel.client.cluster_admin import ClusterAdmin

    admin = ClusterAdmin(cluster)
    adding = {move.where: move.adding for move in moves if move.adding}
    if throttle and adding:
        await admin.throttle(adding, throttle)
    failures = await admin.reassign({move.where: move.after for move in moves})
    if throttle and len(failures) == len(moves):
        await end_throttle(admin, adding)
    return dict(failures)


def _print_failures(failures: "Mapping[TopicPartition, Exception]", how: How) -> None:
    for where, error in failures.items():
        if how.as_json:
            print_json({"topic": where.topic, "partition": where.partition, "error": str(error)})
        else:
            note(f"runnel: {error}")


def _finish(moves: "Sequence[Move]", how: How) -> "list[TopicPartition]":
    """Watch until all is copied, then let the preferred replicas lead; returns what did not come to its end."""
    try:
        return run(how.broker, lambda cluster: _watch(cluster, moves, how.throttle is not None))
    except KeyboardInterrupt:
        note(f"The moves go on: {GO_ON}.")
        raise


async def _watch(cluster: "Cluster", moves: "Sequence[Move]", throttled: bool) -> "list[TopicPartition]":
    from runnel.cli.cluster_watch import watch
    from runnel.client.cluster_admin import ClusterAdmin

    await watch(cluster, {move.where for move in moves})
    admin = ClusterAdmin(cluster)
    if throttled:
        await end_throttle(admin, {move.where: move.adding for move in moves if move.adding})
    missed = await _missed(admin, moves)
    elect = [m.where for m in moves if m.before[:1] != m.after[:1] and m.where not in missed]
    if elect:
        await admin.elect(elect)
    return missed


async def _missed(admin: "ClusterAdmin", moves: "Sequence[Move]") -> "list[TopicPartition]":
    """The partitions that do not lie where they should: somebody else decided otherwise. News may take a moment."""
    import asyncio

    missed: list[TopicPartition] = []
    for _ in range(LOOKS_MAX):
        topics = (await admin.admin.view({move.where.topic for move in moves})).topics
        missed = [move.where for move in moves if not _lies(topics.get(move.where.topic), move)]
        if not missed:
            break
        await asyncio.sleep(LOOK_S)
    return missed


def _lies(topic: "Topic | None", move: "Move") -> bool:
    partition = topic.partitions.get(move.where.partition) if topic is not None else None
    return partition is not None and set(partition.replicas) == set(move.after)


async def end_throttle(admin: "ClusterAdmin", adding: "Mapping[TopicPartition, Sequence[int]]") -> None:
    """Take the throttle away, unless others still move under it."""
    if not await admin.reassignments():
        topics = {where.topic for where in adding}
        await admin.unthrottle(topics, {broker for brokers in adding.values() for broker in brokers})
