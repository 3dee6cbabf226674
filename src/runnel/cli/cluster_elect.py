"""`runnel cluster elect`: let the preferred replicas lead, or any that is left."""

from typing import TYPE_CHECKING, NamedTuple

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, complete_topics, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from runnel.cli.cluster_survey import Survey
    from runnel.client.cluster import Cluster
    from runnel.client.metadata import TopicPartition
    from runnel.model.errors import RunnelError

LOSS = (
    "UNCLEAN: a replica that may lack messages will lead. Those that only the others have are lost for ever,"
    " also if they were acknowledged."
)


class Election(NamedTuple):
    """Who leads a partition, and who is to."""

    where: "TopicPartition"
    leader: int  # -1: nobody
    new: int | None  # None: any that serves
    able: bool  # as far as we know


@click.command(
    cls=Command,
    examples="""
runnel cluster elect                      after a broker came back: let it lead its share again
runnel cluster elect orders orders2/0     only these
runnel cluster elect --unclean orders/3   give up what only dead brokers have
""",
)
@click.argument("what", metavar="[TOPIC[/N]]...", nargs=-1, shell_complete=complete_topics)
@click.option("--unclean", is_flag=True, help="Let any replica lead partitions that have no leader: messages are lost.")
@dry_run_option
@yes_option
@json_option
@broker_option
def elect(what: tuple[str, ...], unclean: bool, dry_run: bool, yes: bool, as_json: bool, broker: str) -> int:
    """Let the preferred replica (the first of the list) lead each partition."""
    from runnel.cli.cluster_survey import survey
    from runnel.cli.output import confirm, note, plural
    from runnel.cli.session import run
    from runnel.client.cluster_admin import ClusterAdmin

    planned = _elections(run(broker, survey), what, unclean)
    if not as_json:
        _print_plan(planned, unclean)
    if not planned or dry_run:
        return _report(planned, {}, as_json, dry_run)
    if unclean:
        note(LOSS)
    confirm(f"This changes who leads {plural(len(planned), 'partition')}.", yes=yes)

    async def work(cluster: "Cluster") -> "dict[TopicPartition, RunnelError | None]":
        return await ClusterAdmin(cluster).elect([election.where for election in planned], unclean=unclean)

    return _report(planned, run(broker, work), as_json, dry_run)


def _elections(found: "Survey", what: tuple[str, ...], unclean: bool) -> list[Election]:
    """The partitions that an election would change, of those that were named or of all."""
    from runnel.cli.partition_language import named
    from runnel.client.health import partitions_of

    chosen = set(named(what, found.view)) if what else None
    elections = []
    for where, p in partitions_of(found.view):
        if chosen is not None and where not in chosen:
            continue
        if unclean and p.leader < 0:
            elections.append(Election(where, -1, None, any(found.view.brokers.get(r) for r in p.replicas)))
        elif not unclean and p.replicas and p.leader != p.replicas[0]:
            elections.append(Election(where, p.leader, p.replicas[0], p.replicas[0] in p.in_sync))
    return elections


def _print_plan(planned: list[Election], unclean: bool) -> None:
    from runnel.cli.output import left, print_table, right

    none = "Every partition has a leader." if unclean else "Every partition is led by its preferred replica."
    rows = [(e.where, e.leader if e.leader >= 0 else "none", _outlook(e)) for e in planned]
    print_table([*left("PARTITION"), *right("LEADER"), *left("WILL BE")], rows, none=none)


def _outlook(election: Election) -> str:
    if election.new is None:
        return "any that serves" if election.able else "nobody: none of its brokers serves"
    return str(election.new) if election.able else f"{election.new}, once it is in sync"


def _report(
    planned: list[Election], results: "dict[TopicPartition, RunnelError | None]", as_json: bool, dry_run: bool
) -> int:
    from runnel.cli.output import note, plural, print_json
    from runnel.model.errors import ElectionNotNeeded

    failed = {w: error for w, error in results.items() if error and not isinstance(error, ElectionNotNeeded)}
    for election in planned if as_json else ():
        error = failed.get(election.where)
        where = {"topic": election.where.topic, "partition": election.where.partition}
        leaders = {"before": election.leader if election.leader >= 0 else None, "preferred": election.new}
        print_json(
            {**where, **leaders, "elected": not dry_run and error is None, "error": str(error) if error else None}
        )
    if as_json:
        return 1 if failed else 0
    for error in failed.values():
        note(f"runnel: {error}")
    if planned and dry_run:
        click.echo("Nothing was changed (--dry-run).")
    elif planned:
        click.echo(f"elected leaders of {plural(len(planned) - len(failed), 'partition')}")
    return 1 if failed else 0
