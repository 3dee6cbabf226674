"""Commands whose help begins with examples, and groups that load their commands when needed."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


def _write_examples(examples: str | None, formatter: click.HelpFormatter) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for line in examples.strip("\n").splitlines():
            formatter.write(f"{' ' * formatter.current_indent}{line}\n")
    formatter.write_paragraph()


class Command(click.Command):
    """A command with examples, shown first."""

    def __init__(self, *args: Any, examples: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self.examples, formatter)
        super().format_help(ctx, formatter)


class Group(Command, click.Group):
    """A group of such commands, which guesses what a wrong one was meant to be."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"{ctx.command_path!r} has no command {args[0]!r}: {hint}", ctx) from error


class LazyGroup(Group):
    """A group that knows names and one-line helps by heart, and imports a command when it is used."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])
