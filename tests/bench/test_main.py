"""Every scenario runs against a real broker and fills its table. Nothing is said about how long anything took."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipelines.spark_classes import SUBMIT_OPTIONS, java_options

from bench.__main__ import OF_CLUSTERS, SCENARIOS, arguments_of, had, head, measure, scale_of
from bench.peers.kafka import Kafka
from bench.peers.runnel import Runnel
from bench.scenarios import DEFAULT, FULL, SMOKE, Run, spark
from runnel.dev import zookeeper

ROOT = Path(__file__).parents[2]


def test_a_smoke_run_fills_every_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--smoke"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), SUBMIT_OPTIONS: java_options()}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = (tmp_path / "build" / "bench").glob("*.json")
    expected = set(SCENARIOS) - (set(OF_CLUSTERS) if zookeeper.missing() else set())
    expected -= {spark.NAME} if spark.missing() else set()
    assert {sample["scenario"] for sample in json.loads(result.read_text())["samples"]} == expected
    assert "FAILED" not in done.stdout
    assert [path for path in result.parent.iterdir() if path != result] == []  # no data is left behind


def test_the_size_of_a_run_is_chosen_by_name() -> None:
    assert scale_of(arguments_of([])) is DEFAULT
    assert scale_of(arguments_of(["--full"])) is FULL
    assert scale_of(arguments_of(["--smoke"])) is SMOKE
    assert scale_of(arguments_of(["--rounds", "9"])).rounds == 9
    assert scale_of(arguments_of(["--topics", "100", "--topics", "1000"])).topics == (100, 1000)


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments_of(["--only", "magic"])
    assert "throughput" in capsys.readouterr().err


def test_a_peer_that_can_not_be_had_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Kafka, "missing", lambda _: "no java here")
    found, missing = had(arguments_of(["--peer", "kafka", "--peer", "runnel"]))
    assert [peer.name for peer in found] == ["runnel"]
    run = Run(found, SMOKE, tmp_path)
    try:
        assert "kafka is MISSING: no java here" in head(run, missing)
    finally:
        run.close()


def test_where_there_is_no_zookeeper_clusters_are_named_as_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zookeeper, "missing", lambda: "no jars here")
    run = Run([Runnel()], SMOKE, tmp_path)
    try:
        assert all(measure(run, name) for name in OF_CLUSTERS)
        assert run.notes == ["a cluster of runnel is MISSING: no jars here"]
    finally:
        run.close()
