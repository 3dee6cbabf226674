"""Does what blocks, for one log, one step at a time.

Rule 1: two steps of one log never overlap: neither needs to think of the other.
Rule 2: a step is not stopped because the one who asked for it gave up.
Rule 3: after a Fatal error nothing is done any more. After any other error of the disk those who wait are told, and
        what is due is tried again: at once when somebody asks for something, else after a while.
Rule 4: a log that is closed takes no more jobs: its files may be removed, or be those of another log by then.
Rule 5: what nobody foresaw costs a job that was asked for no more than a refusal of the disk would: who asked is told.
        In a step of the log's own it is Fatal, for nobody knows what of the step was done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from runnel.model.errors import Fatal, RunnelError, StorageFailed

T = TypeVar("T")
Step = Callable[[], Awaitable[None]]

RETRY_S = 1.0


class Worker:
    """A task that exists while there is something to do."""

    __slots__ = ("_due", "_jobs", "_on_fatal", "_on_refusal", "_over", "_task", "fatal")

    def __init__(
        self, due: Callable[[], Step | None], on_refusal: Callable[[OSError], None], on_fatal: Callable[[Fatal], None]
    ) -> None:
        self._due = due
        self._on_refusal = on_refusal
        self._on_fatal = on_fatal
        self._jobs: list[tuple[Callable[[], Awaitable[object]], asyncio.Future[object]]] = []
        self._task: asyncio.Task[None] | None = None
        self._over: Callable[[], RunnelError] | None = None  # says why no job is taken any more
        self.fatal: Fatal | None = None

    def kick(self) -> None:
        """See to it that what is due gets done."""
        if self._task is None and self.fatal is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(self._ended)

    @property
    def over(self) -> bool:
        """Whether no job is taken any more."""
        return self._over is not None

    @property
    def busy(self) -> bool:
        return self._task is not None

    async def rest(self) -> None:
        """Return when the work under way has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def run(self, job: Callable[[], Awaitable[T]]) -> T:
        """Do a job while no other step runs."""
        if self._over is not None:
            raise self._over()
        return await self._put(job)

    async def finish(self, job: Callable[[], Awaitable[T]], over: Callable[[], RunnelError]) -> T:
        """Do the last job, after those that wait; who asks for one from now on is told what `over` says."""
        self._over = over
        return await self._put(job)

    async def _put(self, job: Callable[[], Awaitable[T]]) -> T:
        if self.fatal is not None:
            raise self.fatal
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, future))
        self.kick()
        return cast(T, await asyncio.shield(future))

    @property
    def next_job(self) -> Step | None:
        return self._do_job if self._jobs else None

    async def _work(self) -> None:
        try:
            while (step := self._due()) is not None:
                await step()
        except Fatal as error:
            self._die(error)
        except OSError as error:
            self._fail_jobs(_refusal(error))
            self._on_refusal(error)
            asyncio.get_running_loop().call_later(RETRY_S, self._retry)
        self._task = None  # not after anything else: nobody is to go on before `_ended` has seen it

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            fatal = Fatal(
                f"a log was left half changed by an error in Runnel ({error!r}): restart the broker, report it"
            )
            fatal.__cause__ = error
            self._die(fatal)
        if self._task is task:
            self._task = None

    def _die(self, error: Fatal) -> None:
        self.fatal = error
        self._fail_jobs(error)
        self._on_fatal(error)

    def _retry(self) -> None:
        if self._due() is not None:
            self.kick()

    def _fail_jobs(self, error: RunnelError) -> None:
        jobs, self._jobs = self._jobs, []
        for _, future in jobs:
            future.set_exception(error)
            future.exception()  # seen: whoever asked may be gone

    async def _do_job(self) -> None:
        job, future = self._jobs.pop(0)
        done = asyncio.ensure_future(job())
        await asyncio.wait([done])
        if done.cancelled():
            future.cancel()
        elif (error := done.exception()) is None:
            future.set_result(done.result())
        else:
            future.set_exception(_refusal(error) if isinstance(error, OSError) else error)
            if isinstance(error, Fatal) or not isinstance(error, Exception):
                future.exception()  # seen: whoever asked may be gone, and the broker ends anyway
                raise error


def _refusal(error: OSError) -> StorageFailed:
    return StorageFailed(f"could not work on {error.filename}: {error.strerror}. Check the disk, then try again")
