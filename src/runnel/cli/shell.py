"""`runnel completion` and `runnel version`."""

import click

from runnel.cli.command import Command

COMPLETION_EXAMPLES = """
eval "$(runnel completion bash)"                             now; or in ~/.bashrc, for always
eval "$(runnel completion zsh)"                              in ~/.zshrc
runnel completion fish > ~/.config/fish/completions/runnel.fish
"""


@click.command(cls=Command, examples=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands and options, and asks the broker for the names of topics and groups.
    """
    from click.shell_completion import get_completion_class

    from runnel.cli.main import runnel

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(runnel, {}, "runnel", "_RUNNEL_COMPLETE").source())


@click.command(cls=Command, examples="\nrunnel version\n")
def version() -> None:
    """Print the version of Runnel."""
    from importlib.metadata import version as version_of

    click.echo(f"runnel {version_of('runnel')}")
