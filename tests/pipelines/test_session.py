"""The session's settings, what it says where something is missing, and the package that workers get."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runnel.pipelines import session
from runnel.pipelines.conf import SessionConf, StreamConf, home_of
from runnel.pipelines.session import NotInstalled, check_java, packed, settings_of

WANTED = "-Xss8m"


# --- settings
def test_a_local_session_stays_on_loopback(tmp_path: Path) -> None:
    settings = settings_of(SessionConf("job"), tmp_path)
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "k8s://https://10.0.0.1:6443"])
def test_a_cluster_is_told_what_spark_takes_and_not_bound_to_loopback(master: str, tmp_path: Path) -> None:
    settings = settings_of(SessionConf("job", master), tmp_path)
    assert settings["spark.master"] == master
    assert "spark.driver.host" not in settings


@pytest.mark.parametrize(
    ("master", "local"), [("local", True), ("local[2,3]", True), ("local-cluster[2,1,512]", False)]
)
def test_what_is_local(master: str, local: bool) -> None:
    assert SessionConf("job", master).is_local is local


def test_the_stack_is_deep_enough_to_stop_a_query_inside_a_batch(tmp_path: Path) -> None:
    settings = settings_of(SessionConf("job"), tmp_path)
    assert WANTED in settings["spark.driver.extraJavaOptions"]
    assert WANTED in settings["spark.executor.extraJavaOptions"]


def test_settings_of_the_user_win(tmp_path: Path) -> None:
    own = {"spark.sql.shuffle.partitions": "64", "spark.executor.memory": "2g"}
    settings = settings_of(SessionConf("job", settings=own), tmp_path)
    assert {name: settings[name] for name in own} == own


def test_sparks_pages_are_served_where_they_are_asked_for(tmp_path: Path) -> None:
    settings = settings_of(SessionConf("job", ui_port=4041), tmp_path)
    assert (settings["spark.ui.enabled"], settings["spark.ui.port"]) == ("true", "4041")


# --- streams
def test_once_takes_what_there_is_and_otherwise_time_goes_by() -> None:
    assert StreamConf("/c", once=True).trigger == {"availableNow": True}
    assert StreamConf("/c", every_ms=2500).trigger == {"processingTime": "2500 milliseconds"}


def test_each_query_of_a_job_has_a_checkpoint_of_its_own() -> None:
    assert StreamConf("s3a://lake/c/").checkpoint_of("heat") == "s3a://lake/c/heat"


def test_a_job_keeps_its_things_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert home_of("archive") == str(tmp_path / "data-pipelines" / "archive" / "checkpoint")


# --- what is missing
def test_a_java_that_is_too_old_is_refused_and_named() -> None:
    with pytest.raises(NotInstalled, match=r"Java 17 or newer, and /old/java is Java 8.*JAVA_HOME"):
        check_java("/old/java", 'openjdk version "1.8.0_392"')
    check_java("java", 'openjdk version "17.0.15" 2025-04-15')
    check_java("java", 'openjdk version "21" 2023-09-19')


def test_where_there_is_no_java_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert session.java_command() is None
    with pytest.raises(NotInstalled, match="openjdk-17-jre-headless"):
        session.check_installed()


def test_a_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match=str(tmp_path)):
        session.check_installed()


def test_without_spark_the_command_says_what_to_install() -> None:
    code = (
        "import sys\nfor name in ('pyspark', 'pyarrow'): sys.modules[name] = None\n"
        "sys.argv = ['runnel', 'pipeline', 'fleet', 'run', '--once']\nfrom runnel.cli.main import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("runnel: pipelines need pyspark and pyarrow")
    assert "make setup-pipelines" in done.stderr
    assert "Traceback" not in done.stderr


# --- the package for workers
def test_workers_can_import_the_package_they_get(tmp_path: Path) -> None:
    file = packed(tmp_path / "package.zip")
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
    assert {"runnel/pipelines/session.py", "pyspark_runnel/__init__.py"} <= names
    assert not [name for name in names if name.endswith((".pyc", ".pyi"))]
    code = (
        f"import sys\nsys.path.insert(0, {str(file)!r})\n"
        "from runnel.pipelines.connector.gateway import gateway\nfrom runnel.pipelines.jobs.fleet.track import Car\n"
        "import runnel.client.producer, pyspark_runnel\nprint(runnel.client.producer.__file__, pyspark_runnel.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(file)) == 2
