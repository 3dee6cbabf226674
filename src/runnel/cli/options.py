"""Options that many commands share."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from runnel.client.positions import Position

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BROKER = "127.0.0.1:9092"
COMPLETION_TIMEOUT_MS = 500  # a key press must not hang on a broker that is away


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(what: str) -> Completer:
    """Names of a kind for the shell; none if the broker can't be asked quickly."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        from runnel.cli.session import completions

        return completions(context.params.get("broker") or DEFAULT_BROKER, what, begun, COMPLETION_TIMEOUT_MS)

    return complete


complete_topics = _completer("topics")
complete_groups = _completer("groups")
complete_queues = _completer("queues")
complete_transactions = _completer("transactions")
complete_brokers = _completer("brokers")


def compress_option(function: F) -> F:
    return click.option(
        "-z",
        "--compress",
        type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        default="none",
        help="Compression.",
    )(function)


def broker_option(function: F) -> F:
    return click.option(
        "-b",
        "--broker",
        metavar="HOST:PORT",
        envvar="RUNNEL_BROKER",
        default=DEFAULT_BROKER,
        show_default=True,
        show_envvar=True,
        is_eager=True,
        help="A broker of the cluster; several with commas.",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def yes_option(function: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="Don't ask.")(function)


def dry_run_option(function: F) -> F:
    return click.option("-n", "--dry-run", is_flag=True, help="Show what would change, and change nothing.")(function)


# --- types of values
def setting(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def alter_options(function: F) -> F:
    """What to change of settings."""
    function = click.option(
        "--reset", metavar="KEY", multiple=True, help="Take this back to its default; may be repeated."
    )(function)
    return click.option(
        "-c", "--config", metavar="KEY=VALUE", type=setting, multiple=True, help="Set this; may be repeated."
    )(function)


def check_resets(what: str, reset: Iterable[str], known: Iterable[str]) -> None:
    """Refuse to take back what is no setting, as it would be refused to set it."""
    allowed = sorted(known)
    for key in reset:
        if key not in allowed:
            raise click.ClickException(f"unknown {what} setting {key!r}: allowed are {', '.join(allowed)}")


def input_options(function: F) -> F:
    """Where messages to send come from, with their keys and headers."""
    for option in (
        click.option(
            "-H",
            "--header",
            "headers",
            metavar="NAME=VALUE",
            type=setting,
            multiple=True,
            help="A header of all messages.",
        ),
        click.option("-k", "--key", help="The key of all messages."),
        click.option("-K", "--key-separator", metavar="SEP", help="Each line is KEY SEP VALUE."),
        click.option(
            "-m", "--message", "messages", multiple=True, help="This message; may be repeated. Stdin is not read."
        ),
        click.argument("files", type=click.Path(exists=True, dir_okay=False, allow_dash=True), nargs=-1),
    ):
        function = option(function)
    return function


def size(text: str | int) -> int:
    """A number of bytes: 1000, 64k, 1m (powers of 1024)."""
    short = str(text).strip().lower().removesuffix("b").removesuffix("i")
    factor = {"k": 2**10, "m": 2**20, "g": 2**30}.get(short[-1:], 1)
    number = short[:-1] if factor > 1 else short
    if not number.isdecimal() or int(number) == 0:
        raise click.BadParameter(f"{text!r} is not a number of bytes: use e.g. 1000, 64k or 1m")
    return int(number) * factor


def position(text: str) -> "Position":
    """A place in a partition, in the offset language."""
    from runnel.cli.offset_language import parse

    try:
        return parse(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


def span(text: str) -> int:
    """A span of time, in milliseconds."""
    from runnel.cli.time_language import parse_span_ms

    try:
        return parse_span_ms(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


def moment(text: str) -> int:
    """A time, in milliseconds since 1970."""
    from runnel.cli.offset_language import parse_time_ms

    try:
        return parse_time_ms(text.removeprefix("@"))
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


POSITION_HELP = (
    "start, end, +N (N after the start), -N (N before the end), @TIME (ISO 8601 or epoch ms), a plain offset, "
    "or stored (what the group committed; stored+N, stored-N)"
)
