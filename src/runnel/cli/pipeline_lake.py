"""`runnel pipeline lake`: what is in a lake, and its upkeep. Without Spark."""

from typing import TYPE_CHECKING

import click

from runnel.cli.command import Group
from runnel.cli.options import dry_run_option, json_option, setting, size, span

if TYPE_CHECKING:
    from runnel.pipelines.lake.place import Place

EXAMPLES = """
runnel pipeline lake show lake                 topics, days, rows and files
runnel pipeline lake compact lake              few large files of many small ones
runnel pipeline lake vacuum lake -n            what would be removed
runnel pipeline lake vacuum lake --after 7d    remove what nothing of the last week needs
"""
HOUR_MS = 3_600_000

storage_option = click.option(
    "--storage", metavar="KEY=VALUE", type=setting, multiple=True, help="For the object store; repeatable."
)


@click.group(cls=Group, examples=EXAMPLES)
def lake() -> None:
    """Look into a lake, and look after it. Writers and readers go on meanwhile."""


@lake.command(examples="runnel pipeline lake show lake")
@click.argument("path", metavar="DIR")
@storage_option
@json_option
def show(path: str, storage: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Topics of a lake: rows, files, days."""
    from runnel.cli.output import bytes_text, left, print_json, print_table, right
    from runnel.pipelines.lake.upkeep import summary

    found = summary(_place(path, storage))
    if as_json:
        print_json(found.as_json())
        return
    print_table(
        [*left("TOPIC"), *right("ROWS", "FILES", "SIZE"), *left("FIRST DAY", "LAST DAY")],
        [(t.topic, f"{t.rows:,}", t.files, bytes_text(t.size), t.first_day, t.last_day) for t in found.topics],
        none=f"{path} has no rows.",
    )


@lake.command(examples="runnel pipeline lake compact lake --topic cars")
@click.argument("path", metavar="DIR")
@click.option("--topic", metavar="TOPIC", help="Of this topic alone.")
@click.option("--file-size", metavar="SIZE", type=size, default="128m", help="How long a file may be.  [128m]")
@storage_option
def compact(path: str, topic: str | None, file_size: int, storage: tuple[tuple[str, str], ...]) -> None:
    """Write small files together. No row changes, and earlier versions stay."""
    from runnel.cli.output import bytes_text, note
    from runnel.pipelines.lake.upkeep import compact as compacted

    done = compacted(_place(path, storage), file_bytes=file_size, topic=topic)
    note(f"{done.files_before} files are {done.files_after} now, {bytes_text(done.bytes_after)} in all")


@lake.command(examples="runnel pipeline lake vacuum lake --after 7d")
@click.argument("path", metavar="DIR")
@click.option("--after", "after_ms", metavar="SPAN", type=span, default="7d", help="How long they stay.  [7d]")
@storage_option
@dry_run_option
def vacuum(path: str, after_ms: int, storage: tuple[tuple[str, str], ...], dry_run: bool) -> None:
    """Remove files that no version of the last days needs, and those that nothing ever named."""
    from runnel.cli.output import note, plural
    from runnel.pipelines.lake.upkeep import vacuum as vacuumed

    names = vacuumed(_place(path, storage), after_h=after_ms // HOUR_MS, dry_run=dry_run)
    for name in names if dry_run else ():
        click.echo(name)
    note(f"{plural(len(names), 'file')} {'would be removed' if dry_run else 'removed'}")


def _place(path: str, storage: tuple[tuple[str, str], ...]) -> "Place":
    from runnel.pipelines.session import check_packages

    check_packages()
    from runnel.pipelines.lake.place import Place

    return Place.of(path, dict(storage))
