"""The first programs of the guide run as they are pasted, by a Python whose environment is not activated."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.client import sync
from runnel.testing.process import BrokerProcess

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
NEEDED = 'os.environ.setdefault("PYSPARK_PYTHON", sys.executable)'
FAILURE = (
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: runnel. Make sure the provider name is correct and the"
)

pytest.importorskip("pyspark", reason="Spark is not installed: make setup-pipelines")


def first_program(page: str) -> str:
    """The first block of Python of a page."""
    found = re.search(r"```python\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def run(code: str, broker: BrokerProcess, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program where `python3` is another Python than the one that runs it, and has no Runnel."""
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    assert java is not None
    programs = folder / "bin"
    programs.mkdir()
    (programs / "java").symlink_to(Path(java).resolve())
    (programs / "python3").write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -I -S "$@"\n')
    (programs / "python3").chmod(0o755)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }  # fmt: skip
    code = code.replace('.option("subscribe"', f'.option("runnel.brokers", "{broker.kafka}").option("subscribe"')
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def with_orders(broker: BrokerProcess) -> BrokerProcess:
    with sync.connect(broker.kafka) as runnel:
        for number in range(10):
            runnel.send("orders", str(number))
    return broker


def test_the_first_program_runs_as_it_is_pasted(with_orders: BrokerProcess, tmp_path: Path) -> None:
    done = run(first_program("pipelines.md"), with_orders, tmp_path)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "|0|10|" in done.stdout.replace(" ", ""), done.stdout


def test_the_page_on_reading_begins_a_session_in_the_same_way() -> None:
    """To run it too would take long."""
    before, _, _ = first_program("pipelines.md").partition("SparkSession.builder")
    assert first_program("pipelines/source.md").startswith(before.partition("  #")[0])


def test_without_the_line_it_fails_as_the_page_says(with_orders: BrokerProcess, tmp_path: Path) -> None:
    code = first_program("pipelines.md").replace(NEEDED, "")
    done = run(code, with_orders, tmp_path)
    assert done.returncode != 0
    assert FAILURE in done.stderr
    assert FAILURE in (GUIDE / "pipelines.md").read_text()
