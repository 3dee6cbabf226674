"""`runnel cluster reassign`, `balance` and `drain`: plan, confirm, watch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runnel.cli.command import Command
from runnel.cli.options import (
    broker_option,
    complete_brokers,
    complete_topics,
    dry_run_option,
    json_option,
    size,
    yes_option,
)

if TYPE_CHECKING:
    from runnel.cli.cluster_plan import How
    from runnel.cli.cluster_survey import Survey
    from runnel.client.balancing import Ground, Move
    from runnel.client.cluster import Cluster
    from runnel.client.metadata import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])


def _plan_options(function: F) -> F:
    """What every change of replicas can be told."""
    for option in (
        broker_option,
        json_option,
        yes_option,
        dry_run_option,
        click.option("-d", "--detach", is_flag=True, help="Don't wait until it is done."),
        click.option(
            "--throttle",
            metavar="SIZE",
            type=size,
            help="Copy at most so many bytes a second to each broker, e.g. 50m.",
        ),
    ):
        function = option(function)
    return function


def _how(options: dict[str, Any]) -> "How":
    from runnel.cli.cluster_plan import How

    return How(**options)


# --- balance
@click.command(
    cls=Command,
    examples="""
runnel cluster balance --dry-run          only the plan
runnel cluster balance --throttle 50m     copy with at most 50 MiB/s to each broker
runnel cluster balance orders clicks      only these topics
""",
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@_plan_options
def balance(topics: tuple[str, ...], **options: Any) -> int:
    """Spread replicas and leaders over all brokers, with as few moves as that takes.

    A partition is kept on as many racks as there are. The plan is shown before anything moves.
    """
    from runnel.cli.cluster_plan import carry_out
    from runnel.client.balancing import balance as plan

    how = _how(options)
    moves = _planned(how, lambda found: plan(_restricted(found, topics)))
    return carry_out(
        moves, how, nothing="The cluster is balanced: nothing has to move.", done="the cluster is balanced"
    )


# --- drain
@click.command(
    cls=Command,
    examples="""
runnel cluster drain 3                    then stop it: nobody will miss it
runnel cluster drain 3 --throttle 20m --yes
runnel cluster drain 3 --dry-run
""",
)
@click.argument("number", metavar="BROKER", type=click.IntRange(min=0), shell_complete=complete_brokers)
@_plan_options
def drain(number: int, **options: Any) -> int:
    """Move all replicas of a BROKER to others, also of one that is gone for good.

    Nothing keeps new replicas away from it as long as it runs: stop it when it is drained.
    """
    from runnel.cli.cluster_plan import carry_out
    from runnel.client.balancing import drain as plan

    how = _how(options)
    stay: list[TopicPartition] = []

    def moves_of(found: "Survey") -> "list[Move]":
        if number not in found.description.brokers and number not in found.health.shares:
            known = ", ".join(map(str, found.description.brokers))
            raise click.ClickException(f"there is no broker {number}: the cluster has {known}.")
        ground = found.ground()
        stay.extend(where for where in ground.fixed if number in ground.held[where])
        return plan(ground, number)

    moves = _planned(how, moves_of)
    free = "it can be stopped (as long as it runs, new topics may get replicas on it)"
    rest = f"it still holds {', '.join(map(str, sorted(stay)))}" if stay else free
    nothing = f"Broker {number} holds nothing that could be moved: {rest}."
    return carry_out(moves, how, nothing=nothing, done=f"broker {number} is drained: {rest}")


def _planned(how: "How", plan: "Callable[[Survey], list[Move]]") -> "list[Move]":
    """Look at the cluster, then plan; partitions that no plan can move are named."""
    from runnel.cli.cluster_survey import survey
    from runnel.cli.output import note, plural
    from runnel.cli.session import run

    found = run(how.broker, survey)
    if found.health.offline:
        note(f"{plural(len(found.health.offline), 'partition')} without a leader can't be copied now, and will stay.")
    if found.reassignments:
        note(f"{plural(len(found.reassignments), 'partition')} moving already; they count where they go to.")
    return plan(found)


def _restricted(found: "Survey", topics: Sequence[str]) -> "Ground":
    """The ground on which only these topics move (none named: all)."""
    from dataclasses import replace

    from runnel.cli.partition_language import named

    ground = found.ground()
    if not topics:
        return ground
    return replace(ground, fixed={*ground.fixed, *(ground.held.keys() - set(named(topics, found.view)))})


# --- reassign
@click.command(
    cls=Command,
    examples="""
runnel cluster reassign orders/0=1,2,3 orders/1=2,3,1      these replicas, the first one preferred
runnel cluster reassign orders --replicas 3                as many copies; where is planned
runnel cluster reassign --file plan.json --throttle 50m    as kafka-reassign-partitions writes it
runnel cluster reassign --watch                            how far what was begun is
runnel cluster reassign --cancel                           take all moves back
runnel cluster reassign --cancel orders/0                  one of them
""",
)
@click.argument("what", metavar="[TOPIC/N=B,B...]...", nargs=-1, shell_complete=complete_topics)
@click.option("-r", "--replicas", metavar="N", type=click.IntRange(min=1), help="Give topics or partitions so many.")
@click.option("--file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="A plan.")
@click.option("-w", "--watch", "only_watch", is_flag=True, help="Watch the moves that are under way.")
@click.option("--cancel", is_flag=True, help="Take moves back: all, or those named.")
@_plan_options
def reassign(
    what: tuple[str, ...], replicas: int | None, file: Path | None, only_watch: bool, cancel: bool, **options: Any
) -> int:
    """Move replicas to other brokers; change how many there are; watch or cancel that."""
    how = _how(options)
    if sum((replicas is not None, file is not None, only_watch, cancel)) > 1:
        raise click.UsageError("--replicas, --file, --watch and --cancel exclude each other")
    if only_watch:
        return _watch(how)
    if cancel:
        return _cancel(what, how)
    return _reassign(what, replicas, file, how)


def _reassign(what: tuple[str, ...], replicas: int | None, file: Path | None, how: "How") -> int:
    from runnel.cli.cluster_plan import carry_out
    from runnel.cli.partition_language import assignments, named, placed, read_plan
    from runnel.client.balancing import assign, replicate

    if not what and file is None:
        raise click.UsageError("nothing to move: give TOPIC/N=BROKER,BROKER..., TOPIC --replicas N, or --file FILE")
    targets = {} if replicas is not None else read_plan(file) if file is not None else assignments(what)

    def moves_of(found: "Survey") -> "list[Move]":
        if replicas is not None:
            return replicate(found.ground(), named(what, found.view), replicas)
        return assign(found.ground(), placed(targets, found.view, found.description.brokers))

    moves = _planned(how, moves_of)
    return carry_out(moves, how, nothing="All of them lie there already.", done="all replicas are where they should be")


# --- watch and cancel
def _watch(how: "How") -> int:
    from runnel.cli.cluster_plan import GO_ON, end_throttle
    from runnel.cli.cluster_watch import watch
    from runnel.cli.output import note, plural, print_json
    from runnel.cli.session import run
    from runnel.client.cluster_admin import ClusterAdmin

    async def work(cluster: "Cluster") -> int:
        count = await watch(cluster, None)
        await end_throttle(ClusterAdmin(cluster), {})
        return count

    try:
        count = run(how.broker, work)
    except KeyboardInterrupt:
        note(f"The moves go on: {GO_ON}.")
        raise
    if how.as_json:
        print_json({"moved": count, "finished": True})
    else:
        click.echo(f"{plural(count, 'partition')} moved" if count else "nothing is moving")
    return 0


def _cancel(what: tuple[str, ...], how: "How") -> int:
    from runnel.cli.cluster_plan import end_throttle
    from runnel.cli.output import confirm, left, note, plural, print_json, print_table
    from runnel.cli.session import run
    from runnel.client.cluster_admin import ClusterAdmin

    moving = run(how.broker, lambda cluster: ClusterAdmin(cluster).reassignments())
    chosen = {where: r for where, r in moving.items() if not what or where.topic in what or str(where) in what}
    if not how.as_json:
        rows = [
            (w, *(",".join(map(str, part)) for part in (r.replicas, r.adding, r.removing))) for w, r in chosen.items()
        ]
        print_table(left("PARTITION", "REPLICAS", "NOT ADDED", "NOT REMOVED"), rows, none="Nothing of that is moving.")
    if chosen and not how.dry_run:
        confirm(f"This takes back the move of {plural(len(chosen), 'partition')}.", yes=how.yes)

    async def work(cluster: "Cluster") -> "dict[TopicPartition, Any]":
        admin = ClusterAdmin(cluster)
        failures = dict(await admin.reassign(dict.fromkeys(chosen)))
        await end_throttle(admin, {where: moving.adding for where, moving in chosen.items()})
        return failures

    failures = run(how.broker, work) if chosen and not how.dry_run else {}
    for error in failures.values():
        note(f"runnel: {error}")
    cancelled = 0 if how.dry_run else len(chosen) - len(failures)
    if how.as_json:
        print_json({"cancelled": cancelled})
    elif chosen:
        click.echo("Nothing was changed (--dry-run)." if how.dry_run else f"{plural(cancelled, 'move')} taken back")
    return 1 if failures else 0
