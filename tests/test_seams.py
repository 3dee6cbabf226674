"""The seams hold: what ruff's list of banned names can't see is looked for here."""

import ast
from pathlib import Path

from tests.conftest import no_garbage_is_looked_for

import runnel

SOURCE = Path(runnel.__file__).parent
SHELL = SOURCE / "shell"
CLIENTS = SOURCE / "cli"  # never simulated
DEV = SOURCE / "dev"  # real processes, never simulated
PIPELINES = SOURCE / "pipelines"  # clients too
KAZOO = SOURCE / "cluster" / "zookeeper.py"  # counts as shell: it holds ZooKeeper's client, which uses threads
ESCAPES = {"spawn", "run_in_executor", "to_thread", "set_default_executor", "Thread", "ThreadPoolExecutor", "utcnow"}


def escapes_in(path: Path) -> list[str]:
    with no_garbage_is_looked_for():
        tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ESCAPES
    ]


def test_threads_and_executors_live_in_the_shell_alone() -> None:
    allowed = {SHELL, CLIENTS, DEV, PIPELINES, KAZOO}
    outside = [path for path in SOURCE.rglob("*.py") if not allowed.intersection((path, *path.parents))]
    assert len(outside) > 50
    assert [found for path in outside for found in escapes_in(path)] == []


def test_the_look_out_sees_what_the_shell_does() -> None:
    assert [found for path in SHELL.rglob("*.py") for found in escapes_in(path)] != []
    assert escapes_in(KAZOO) != []
