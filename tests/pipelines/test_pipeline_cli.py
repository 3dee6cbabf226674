"""`runnel pipeline`: what all jobs share, without Spark."""

import json
import os
import signal
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

from runnel.cli.pipeline_run import Launch, StreamLaunch, batch_job, stop_on_signals, stream_job
from runnel.cli.pipeline_view import screen
from runnel.pipelines.progress import Step
from runnel.testing.process import BrokerProcess

COMMAND = [sys.executable, "-m", "runnel.cli.main", "pipeline"]
STEP = Step("heat", 3, 1200, 5000, 400.0, 3000, 17, "2026-11-16T10:00:00.000Z")


def test_no_help_imports_spark() -> None:
    code = (
        "import sys\nsys.argv = ['runnel', 'pipeline', 'fleet', 'run', '--help']\nfrom runnel.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'deltalake', 'asyncio', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- options
def launched(*arguments: str) -> StreamLaunch:
    seen: list[StreamLaunch] = []

    @click.command()
    @click.option("--lake")
    @stream_job
    def job(launch: StreamLaunch, lake: str | None) -> None:
        seen.append(launch)

    done = CliRunner().invoke(job, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0]


def test_a_job_is_told_how_it_was_asked_for() -> None:
    launch = launched("--once", "-b", "h:1", "--master", "local[3]", "--set", "spark.a=b", "--ui", "4040", "--json")
    assert launch == StreamLaunch("h:1", "local[3]", (("spark.a", "b"),), 4040, True, True, 10_000, None)
    conf = launched("--every", "2s", "--checkpoint", "/c").conf("archive")
    assert (conf.every_ms, conf.checkpoint, conf.once) == (2000, "/c", False)


def test_a_batch_job_has_no_options_of_streams() -> None:
    @click.command()
    @batch_job
    def job(launch: Launch) -> None: ...

    assert "No such option" in CliRunner().invoke(job, ["--once"]).output


@pytest.mark.parametrize("wrong", [["--every", "soon"], ["--set", "nothing"], ["--ui", "99999"]])
def test_wrong_options_are_refused_by_name(wrong: list[str]) -> None:
    done = subprocess.run([*COMMAND, "fleet", "run", *wrong], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert wrong[0] in done.stderr


def test_signals_ask_for_a_stop() -> None:
    with stop_on_signals() as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            stop.clear()
            os.kill(os.getpid(), number)
            assert stop.wait(10)


# --- what is shown
def test_steps_are_plain_lines_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with screen("fleet", as_json=False) as shown:
        shown.tell(STEP)
        shown.end()
    first, last = capsys.readouterr().err.splitlines()
    assert first == "fleet: heat batch 3: 1,200 rows in 3.0 s (400/s), 5,000 in all, 17 messages behind"
    assert last == "fleet: done, 5,000 rows in this run"


def test_steps_are_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with screen("fleet", as_json=True) as shown:
        shown.tell(STEP)
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["query"], told["rows"], told["behind"]) == ("fleet", "heat", 1200, 17)


# --- commands without Spark
def test_cars_report_to_a_topic_until_asked_to_stop(broker: BrokerProcess) -> None:
    command = [
        *COMMAND,
        "fleet",
        "cars",
        "--cars",
        "50",
        "--period",
        "500ms",
        "--topic",
        "cli-cars",
        "-b",
        broker.kafka,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "cars: 50 cars report to cli-cars\n"
        deadline = time.monotonic() + 60
        while not running.stderr.readline().endswith("sent\n"):
            assert time.monotonic() < deadline
        running.send_signal(signal.SIGINT)
        assert "cars: done, " in running.stderr.read()
    assert running.returncode == 0


def test_the_past_needs_to_be_said_how_long() -> None:
    done = subprocess.run(
        [*COMMAND, "fleet", "cars", "--at-once"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--for SPAN" in done.stderr


def test_the_page_says_where_it_is_and_stops_when_asked() -> None:
    with subprocess.Popen([*COMMAND, "fleet", "page", "--port", "0"], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("page: http://127.0.0.1:")
        running.send_signal(signal.SIGTERM)
    assert running.returncode == 0
