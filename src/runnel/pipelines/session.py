"""The SparkSession of a job: here, or on a cluster.

Rule 1: pyspark is imported inside functions: what is missing is said in a sentence, before anything starts.
Rule 2: what every job needs is set here once; `SessionConf.settings` wins over it.
Rule 3: Spark's processes are not in our process group: Ctrl-C reaches us alone, and we stop them between two triggers.
Rule 4: workers of a cluster get this very package from the driver: both ends are always the same version. What it
        depends on (requirements of the extra `pipelines`) must be installed there.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runnel.model.errors import ClientError
from runnel.pipelines.conf import SessionConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17  # Spark 4's own
LOOPBACK = "127.0.0.1"
STACK = "-Xss8m"  # stopping a query inside foreachBatch overflows the default stack, by a regular expression of Spark's
PACKAGES = ("runnel", "pyspark_runnel", "pyspark_runnel_lake")
QUIET = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class NotInstalled(ClientError):
    """Something that Spark needs is not on this machine."""


# --- what is needed
def check_installed() -> None:
    """Refuse, kindly, where pyspark or Java is missing."""
    check_packages()
    check_java_installed()


def check_packages() -> None:
    """Refuse, kindly, where a package is missing; what does without Spark needs no Java."""
    lacking = [name for name in ("pyspark", "pyarrow", "pandas", "deltalake") if find_spec(name) is None]
    if lacking:
        raise NotInstalled(
            f"pipelines need {' and '.join(lacking)}, not found beside {sys.executable}: "
            "install them in a clone of Runnel with 'make setup-pipelines', or pip install '.[pipelines]'"
        )


def check_java_installed() -> None:
    java = java_command()
    if java is None:
        raise NotInstalled(
            f"pipelines need Java {JAVA_NEEDED} or newer, and no 'java' was found: on Debian, apt-get install "
            f"openjdk-{JAVA_NEEDED}-jre-headless; or name yours with JAVA_HOME"
        )
    check_java(java, _version_text(java))


def java_command() -> str | None:
    """The Java that Spark will use."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def check_java(command: str, version_text: str) -> None:
    """Refuse a Java that is too old for Spark; one that can't tell its age is Spark's to judge."""
    found = re.search(r'version "(?:1\.)?(\d+)', version_text)
    if found and int(found[1]) < JAVA_NEEDED:
        raise NotInstalled(
            f"pipelines need Java {JAVA_NEEDED} or newer, and {command} is Java {found[1]}: "
            "install a newer one, and name it with JAVA_HOME"
        )


def _version_text(java: str) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except OSError as error:
        raise NotInstalled(
            f"{java} can't be started ({error.strerror}): set JAVA_HOME to a Java {JAVA_NEEDED}"
        ) from error


# --- the session
def settings_of(conf: SessionConf, folder: Path) -> dict[str, str]:
    """All of Spark's settings for a job; those of the user last."""
    ours = {
        "spark.app.name": f"runnel {conf.app}",
        "spark.master": conf.master,
        "spark.driver.extraJavaOptions": f"{STACK} -Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
        "spark.executor.extraJavaOptions": STACK,
        "spark.ui.enabled": "false" if conf.ui_port is None else "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",  # else a reader that was asked to push filters fails
        # Without it, each file of a checkpoint gets a second one with its checksum, and costs two processes more.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }
    if conf.ui_port is not None:
        ours["spark.ui.port"] = str(conf.ui_port)
    return ours | (_local() if conf.is_local else {}) | dict(conf.settings)


def _local() -> dict[str, str]:
    """For one machine: loopback alone, and no more shuffle partitions than cores are worth."""
    return {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(min(8, max(2, os.cpu_count() or 2))),
    }


@contextmanager
def session(conf: SessionConf) -> Iterator["SparkSession"]:
    """A session for the time of the block; Spark's processes end with it."""
    check_installed()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of workers; a setting of that name counts for nothing
    if conf.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    with tempfile.TemporaryDirectory(prefix="runnel-pipeline-") as name:
        folder = Path(name)
        (folder / "log4j2.properties").write_text(QUIET)
        with _log(conf) as log:
            spark = _started(settings_of(conf, folder), log)
            try:
                if not conf.is_local:
                    spark.sparkContext.addPyFile(str(packed(folder / "runnel-package.zip")))
                yield spark
            finally:
                _end(spark)


@contextmanager
def _log(conf: SessionConf) -> Iterator[IO[str] | None]:
    """Where Spark's processes write to; None: where we do."""
    if conf.log is None:
        yield None
        return
    Path(conf.log).parent.mkdir(parents=True, exist_ok=True)
    with open(conf.log, "w") as file:
        yield file


def _started(settings: dict[str, str], log: IO[str] | None) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    apart = {"process_group": 0, "stdout": log, "stderr": log}  # rule 3; it ends when our end of its stdin is closed
    gateway = launch_gateway(conf, apart)  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _end(spark: "SparkSession") -> None:
    """Stop Spark, and its JVM with it: the next session may have other settings."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


# --- the package, for workers elsewhere
def packed(target: Path) -> Path:
    """This package as a zip file that Python imports from."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            for file, inside in _files_of(name):
                archive.write(file, inside)
    return target


def _files_of(package: str) -> Iterator[tuple[Path, str]]:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise NotInstalled(f"the package {package} is not installed beside {sys.executable}")
    top = Path(found.origin).parent
    for file in sorted(top.rglob("*")):
        if file.is_file() and file.suffix not in (".pyc", ".pyi"):
            yield file, str(Path(package) / file.relative_to(top))
