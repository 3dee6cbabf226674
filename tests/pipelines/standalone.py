"""A Spark cluster of one's own on loopback: a master and workers, from the jars that come with pyspark."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL

import pyspark
from tests.pipelines.spark_classes import java_options

from runnel.dev.children import end_with_parent
from runnel.dev.zookeeper import HOST, free_ports

READY_S = 240.0  # a JVM on a machine with much to do
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = READY_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come to pass in {timeout_s:g} s"
        time.sleep(0.1)


class Standalone:
    """The cluster, once it runs."""

    def __init__(self, address: str, workers: "list[subprocess.Popen[bytes]]") -> None:
        self.address = address
        self._workers = workers

    def executors(self) -> list[int]:
        """Processes of executors; each is a child of its worker, which may be slow to bury one that is dead."""
        workers = {worker.pid for worker in self._workers}
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) in workers]

    def kill_executor(self) -> int:
        victim = self.executors()[0]
        os.kill(victim, SIGKILL)
        return victim


def _parent(pid: int) -> int | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # it ended meanwhile
        return None
    return None if state == "Z" else int(parent)


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    """A master and so many workers with one core each, until the end of the block."""
    port, page = free_ports(2)
    address = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        log = folder / "master.log"
        where = ["--host", HOST, "--port", str(port), "--webui-port", str(page)]
        stack.enter_context(_daemon("master.Master", where, log))
        wait_until(lambda: "I have been elected leader" in log.read_text(), "the start of the master")
        running = []
        for number in range(workers):
            own = ["--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            own += ["--work-dir", str(folder / f"worker-{number}"), address]
            running.append(stack.enter_context(_daemon("worker.Worker", own, folder / f"worker-{number}.log")))
        wait_until(lambda: log.read_text().count("Registering worker") >= workers, "the registration of the workers")
        yield Standalone(address, running)


@contextmanager
def _daemon(kind: str, arguments: list[str], log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", *arguments]
    environment = {"SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
    environment["SPARK_DAEMON_JAVA_OPTS"] = java_options()
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON")  # what executors get, they get from the driver
    environment |= {name: value for name, value in os.environ.items() if name not in left_out}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, preexec_fn=end_with_parent)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(READY_S)
