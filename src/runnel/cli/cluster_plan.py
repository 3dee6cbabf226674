"""A change of replicas, from plan to end: shown, confirmed, asked for, watched.

Rule 1: nothing is changed before somebody has said yes, or --yes was given.
Rule 2: what was asked for goes on without us; Ctrl-C ends the watching and says how to go on.
Rule 3: a throttle ends with the moves it was for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from runnel.cli.output import bytes_text, confirm, left, note, plural, print_json, print_table, right
from runnel.cli.session import run

if TYPE_CHECKING:
    from runnel.client.balancing import Move
    from runnel.client.cluster import Cluster
    from runnel.client.cluster_admin import ClusterAdmin
    from runnel.client.metadata import TopicPartition

MOVES_SHOWN = 40


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
    if started and not how.detach:
        _finish(started, how)
        _tell(how, done if not failures else "the others are done", moved=len(started), finished=True)
    elif started:
        _tell(how, f"{plural(len(started), 'partition')} on the way: {GO_ON}", moved=len(started), finished=False)
    return 1 if failures else 0


GO_ON = "'runnel cluster reassign --watch' shows how far, '--cancel' takes it back"


def _nothing(why: str, how: How) -> int:
    if how.as_json:
        print_json({"moves": [], "copied_bytes": 0})
    else:
        click.echo(why)
    return 0


def _tell(how: How, text: str, **fields: Any) -> None:
    if how.as_json:
        print_json(fields)
    else:
        click.echo(text)


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
    return dict(await admin.reassign({move.where: move.after for move in moves}))


def _print_failures(failures: "Mapping[TopicPartition, Exception]", how: How) -> None:
    for where, error in failures.items():
        if how.as_json:
            print_json({"topic": where.topic, "partition": where.partition, "error": str(error)})
        else:
            note(f"runnel: {error}")


def _finish(moves: "Sequence[Move]", how: How) -> None:
    """Watch until all is copied, then let the preferred replicas lead."""
    try:
        run(how.broker, lambda cluster: _watch(cluster, moves, how.throttle is not None))
    except KeyboardInterrupt:
        note(f"The moves go on: {GO_ON}.")
        raise


async def _watch(cluster: "Cluster", moves: "Sequence[Move]", throttled: bool) -> None:
    from runnel.cli.cluster_watch import watch
    from runnel.client.cluster_admin import ClusterAdmin

    await watch(cluster, {move.where for move in moves})
    admin = ClusterAdmin(cluster)
    if throttled:
        await end_throttle(admin, {move.where: move.adding for move in moves if move.adding})
    elect = [move.where for move in moves if move.before[:1] != move.after[:1]]
    if elect:
        await admin.elect(elect)


async def end_throttle(admin: "ClusterAdmin", adding: "Mapping[TopicPartition, Sequence[int]]") -> None:
    """Take the throttle away, unless others still move under it."""
    if not await admin.reassignments():
        topics = {where.topic for where in adding}
        await admin.unthrottle(topics, {broker for brokers in adding.values() for broker in brokers})
