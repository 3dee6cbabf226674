"""`runnel pipeline fleet`: cars, what is known of them, and a page that shows it."""

import click

from runnel.cli.command import Group
from runnel.cli.pipeline_run import StreamLaunch, stream_job

EXAMPLES = """
runnel pipeline fleet run --once          what came so far, and no more
"""


@click.group(cls=Group, examples=EXAMPLES)
def fleet() -> None:
    """Cars on a live map: speeds, heat, and who went silent."""


@fleet.command(examples=EXAMPLES)
@stream_job
def run(launch: StreamLaunch) -> int:
    """Work out speeds, heat and silence from where the cars are."""
    raise NotImplementedError
