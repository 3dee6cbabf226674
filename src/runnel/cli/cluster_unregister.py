"""`runnel cluster unregister`: a broker that is gone for good counts no longer."""

from typing import TYPE_CHECKING

import click

from runnel.cli.command import Command
from runnel.cli.options import broker_option, json_option, yes_option

if TYPE_CHECKING:
    from runnel.client.cluster import Cluster


@click.command(
    cls=Command,
    examples="""
runnel cluster drain 3                    first: move everything away from it, and stop it
runnel cluster unregister 3               then: new topics count without it
""",
)
@click.argument("number", metavar="BROKER", type=int)
@yes_option
@json_option
@broker_option
def unregister(number: int, yes: bool, as_json: bool, broker: str) -> None:
    """Forget a broker that was drained and stopped, and will not come back."""
    from runnel.cli.output import confirm, print_json
    from runnel.cli.session import run
    from runnel.client.cluster_admin import ClusterAdmin

    confirm(f"New topics will not count with broker {number} any more.", yes=yes)

    async def work(cluster: "Cluster") -> None:
        await ClusterAdmin(cluster).unregister(number)

    run(broker, work)
    if as_json:
        print_json({"unregistered": number})
    else:
        click.echo(f"broker {number} is not registered any more")
