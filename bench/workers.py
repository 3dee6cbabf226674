"""Client processes: started once, given one job at a time."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

J = TypeVar("J")
R = TypeVar("R")

JOB_S_MAX = 3_600.0  # ten million messages take a while
CLOSE_S_MAX = 2.0


class JobFailed(Exception): ...


class Worker:
    """One process. `begin` a job and `finish` it, or `run` it in one go."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, work: Callable[[J], Any], job: J) -> None:
        self._ours.send((work, job))

    def finish(self) -> Any:
        if not self._ours.poll(JOB_S_MAX):
            raise JobFailed(f"a client did not finish within {JOB_S_MAX:.0f} s")
        try:
            failed, result = self._ours.recv()
        except EOFError:
            raise JobFailed("a client process ended in the middle of its job") from None
        if failed:
            raise JobFailed(result)
        return result

    def run(self, work: Callable[[J], R], job: J) -> R:
        self.begin(work, job)
        result: R = self.finish()
        return result

    def close(self) -> None:
        self._ours.close()
        self._process.join(CLOSE_S_MAX)
        if self._process.is_alive():
            self._process.kill()


def _serve(jobs: Connection) -> None:
    while True:
        try:
            work, job = jobs.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            jobs.send((False, work(job)))
        except Exception:  # noqa: BLE001  whatever went wrong is told to the parent, with its place
            jobs.send((True, traceback.format_exc()))
