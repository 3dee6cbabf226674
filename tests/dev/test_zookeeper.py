"""Where ZooKeeper's jars are found."""

import stat
import sys
from pathlib import Path

import pytest

from runnel.dev import zookeeper


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any ZooKeeper."""
    monkeypatch.delenv(zookeeper.JARS_VARIABLE, raising=False)
    monkeypatch.setattr(zookeeper, "DEBIAN_JAR", tmp_path / "debian" / "zookeeper.jar")
    monkeypatch.setattr(zookeeper, "BUILT_JARS", tmp_path / "built")
    (tmp_path / "site" / "pyspark").mkdir(parents=True)
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()  # instead of a real one, and without jars
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # another test may have imported it
    return tmp_path


def put_jar(folder: Path, name: str = "zookeeper-3.9.5.jar") -> None:
    folder.mkdir(parents=True)
    (folder / name).touch()


def test_the_nearest_jars_win(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zookeeper.classpath() is None
    put_jar(bare / "built")
    assert zookeeper.classpath() == f"{bare / 'built'}/*"
    put_jar(bare / "debian", "zookeeper.jar")
    assert zookeeper.classpath() == str(bare / "debian" / "zookeeper.jar")
    put_jar(bare / "site" / "pyspark" / "jars")
    assert zookeeper.classpath() == f"{bare / 'site' / 'pyspark' / 'jars'}/*"
    put_jar(bare / "named")
    monkeypatch.setenv(zookeeper.JARS_VARIABLE, str(bare / "named"))
    assert zookeeper.classpath() == f"{bare / 'named'}/*"


def test_a_folder_that_was_named_and_has_none_is_not_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_jar(bare / "built")
    monkeypatch.setenv(zookeeper.JARS_VARIABLE, str(bare))
    assert zookeeper.classpath() is None
    (bare / "bin").mkdir()
    (bare / "bin" / "java").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(bare / "bin"))
    assert f"names {bare}" in str(zookeeper.missing())


def test_what_is_missing_is_said_with_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "bin").mkdir()
    monkeypatch.setenv("PATH", str(bare / "bin"))
    assert "openjdk" in str(zookeeper.missing())
    java = bare / "bin" / "java"
    java.touch(mode=0o755)
    problem = str(zookeeper.missing())
    assert all(word in problem for word in ("apt-get install zookeeper", "pip install pyspark", "make setup-zookeeper"))
    assert "maven" in str(zookeeper.fetch())


def test_the_folder_of_a_zookeeper_is_private(tmp_path: Path) -> None:
    zookeeper.ZooKeeperServer(tmp_path / "zookeeper", [], 2181, power_safe=False)
    assert stat.S_IMODE((tmp_path / "zookeeper").stat().st_mode) == 0o700
