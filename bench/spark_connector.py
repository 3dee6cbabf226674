"""Spark's own Kafka connector, from its jars on Maven Central: what ours is measured beside.

`mvn` fetches the jars named in spark.pom.xml into build/peers once: those of the Spark that is installed or, while
Maven Central does not have them, of the newest release before that can be had and works with it.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.peers import BUILD
from tools import debian

POM = Path(__file__).with_name("spark.pom.xml")
BEFORE = ("4.2.0", "4.0.0")  # the connector, and the helper of its that is there for fewer releases


def spark_version() -> str | None:
    """Of the Spark that is installed, if there is one."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None


def folder() -> Path:
    return (BUILD / f"spark-kafka-{spark_version()}").absolute()


def jars() -> list[Path]:
    """What Spark is to be started with."""
    return sorted(folder().glob("*.jar"))


def connector_version() -> str:
    """Of what was fetched."""
    [jar] = folder().glob("spark-sql-kafka-*.jar")
    return jar.stem.rpartition("-")[2]


def missing() -> str | None:
    """Why it can't be had on this machine, or None if it can; fetches it if that is possible."""
    installed = spark_version()
    if installed is None:
        return "Spark is not installed: make setup-pipelines"
    if any(folder().glob("spark-sql-kafka-*.jar")):
        return None
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if problem := debian.lack(program, package):
            return problem
    print(f"bench: fetching Spark's Kafka connector from Maven Central into {BUILD}", file=sys.stderr)
    return _fetch(installed, installed) and _fetch(*BEFORE)


def _fetch(connector: str, token: str) -> str | None:
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder()}"]
    versions = [f"-Dconnector.version={connector}", f"-Dtoken.version={token}"]
    done = subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *versions, *copy], capture_output=True, text=True)
    return None if done.returncode == 0 else f"mvn could not fetch its jars: {done.stdout.strip()[-300:]}"
