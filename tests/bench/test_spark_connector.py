"""Spark's own connector: where it can't be had, it is said why, and nothing is fetched twice."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import spark_connector


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spark_connector, "BUILD", tmp_path)
    monkeypatch.setattr(spark_connector, "spark_version", lambda: "9.9.9")
    monkeypatch.setattr("bench.spark_connector.debian.lack", lambda program, package: None)
    return tmp_path


def fetching(monkeypatch: pytest.MonkeyPatch, there: str) -> list[str]:
    """A Maven Central that has one release."""
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        [version] = [word.partition("=")[2] for word in command if word.startswith("-Dconnector.version")]
        asked.append(version)
        if version != there:
            return subprocess.CompletedProcess(command, 1, "it is not there", "")
        spark_connector.folder().mkdir()
        (spark_connector.folder() / f"spark-sql-kafka-0-10_2.13-{version}.jar").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("bench.spark_connector.subprocess.run", run)
    return asked


def test_the_release_of_the_spark_that_is_installed_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fetching(monkeypatch, "9.9.9")
    assert (spark_connector.missing(), spark_connector.missing()) == (None, None)
    assert asked == [spark_connector.connector_version()] == ["9.9.9"]
    assert len(spark_connector.jars()) == 1


def test_an_earlier_release_is_taken_where_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, spark_connector.BEFORE[0])
    assert spark_connector.missing() is None
    assert spark_connector.connector_version() == spark_connector.BEFORE[0]


def test_what_can_not_be_fetched_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, "none")
    assert "it is not there" in (spark_connector.missing() or "")
    monkeypatch.setattr(spark_connector, "spark_version", lambda: None)
    assert "make setup-pipelines" in (spark_connector.missing() or "")
