"""One state machine, such as one partition of a coordinator's topic: the journal behind it, and who waits for answers.

Rule 1: state in memory may run ahead of the journal; an answer never does. It leaves when everything that the shard
        appended before it is kept, also the answer to a mere question.
        So does what else follows from a decision: an order is carried out when the decision is kept.
Rule 2: what is decided while an append is under way is appended together, as one batch.
Rule 3: when an append fails, the state is thrown away and read from the journal again. So it is after an error that
        nobody foresaw, also in a verb: what it left in memory may be nowhere else. What fails again and again is read
        ever less often.
Rule 4: a shard belongs to one leader epoch of its partition. It begins when all that this leader found is committed,
        and ends with the epoch: what is not answered by then is never answered as done. A journal that says that the
        epoch is over, whatever this broker still believes, ends it too.
Rule 5: a shard that does not serve says why (`trouble`), from its first failure until its state is read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from runnel.broker.journal import Journal
from runnel.model.errors import CoordinatorLoading, FencedEpoch, NotLeader, RunnelError, as_value
from runnel.model.ids import Epoch, Millis
from runnel.model.limits import MIB
from runnel.model.seams import Clock
from runnel.model.step import Step
from runnel.replica.partition import Partition

APPEND_BYTES_MAX = MIB  # a batch of decisions; one decision may be larger
RETRY_S, RETRY_S_MAX = 0.1, 10.0  # pauses before a journal that can't be read is read again

logger = logging.getLogger("runnel.coordinator")
V = TypeVar("V", contravariant=True)


class Machine(Protocol[V]):
    """A pure state machine: what it knows comes from the journal, what it sees of the cluster is a view.

    Each verb takes (request, ticket, view, now_ms, wall_ms), and returns a Step.
    """

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the journal."""

    def wake(self, view: V, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: all of the journal is read."""

    def tick(self, now_ms: Millis, view: V, wall_ms: Millis) -> Step:
        """Do what is due."""

    def next_deadline_ms(self) -> Millis | None:
        """When something is due next."""


def _nothing(order: object) -> None:
    raise AssertionError(f"a machine that gives no orders gave one: {order!r}")


class Shard(Generic[V]):
    """Performs what a state machine decides."""

    def __init__(
        self, journal: Journal, new_machine: Callable[[], Machine[V]], view: Callable[[], V], clock: Clock,
        carry_out: Callable[[Any], None] = _nothing,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._new_machine = new_machine
        self._machine = new_machine()
        self._view = view
        self._clock = clock
        self._carry_out = carry_out
        self.loaded = False
        self.closed = False
        self.lost = False  # another has it: this one will not come back
        self.trouble: BaseException | None = None  # why it does not serve, if something failed
        self._steps: deque[Step] = deque()
        self._asked: dict[asyncio.Future[Any], None] = {}
        self._opening: list[asyncio.Future[None]] = []  # those who wait until it is read
        self._loader: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = Millis(0)
        self._ticker: asyncio.Task[None] | None = None
        self._pause_s = RETRY_S  # before the state is read after the next error that nobody foresaw

    def belongs_to(self, partition: Partition | None) -> bool:
        """Whether this shard is that of a partition which is led here, in its present epoch."""
        return self._journal.belongs_to(partition)

    @property
    def epoch(self) -> Epoch:
        """The leader epoch of the partition in which this shard decides."""
        return self._journal.epoch

    def open(self) -> None:
        """Begin to read the state."""
        self._loader = self._begin(self.load())

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Rule 3, after an error that nobody foresaw."""
        logger.error("%s failed, reading it all again in %g s", self._journal.name, self._pause_s, exc_info=error)
        self._forget()
        self.trouble = as_value(error)
        if not self.lost and not self.closed and isinstance(error, Exception):
            if self._loader is not None:
                self._loader.cancel()
            self._fail_all(self._journal.gone(f"{self._journal.name} failed, and is read again: {error!r}"))
            self._loader = self._begin(self._load_later(self._pause_s))
            self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)

    async def _load_later(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if self._worker is not None:
            await asyncio.wait([self._worker])  # what it still appends is to be read too
        if not self.loaded and not self.lost:
            await self.load()

    def _forget(self) -> None:
        """What is in memory is not in the journal."""
        self.loaded = False
        self._steps.clear()

    async def load(self) -> None:
        """Read the state out of the journal, and try again as long as that fails: nobody else would."""
        pause_s = RETRY_S
        while True:
            machine = self._new_machine()
            try:
                await self._journal.read(machine.replay)
                break
            except (NotLeader, FencedEpoch) as error:
                self._lose(error)
                return
            except RunnelError as error:
                logger.error("%s can't be read, trying again in %g s: %s", self._journal.name, pause_s, error)
                self.trouble = as_value(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        if self.closed:
            return
        first = machine.wake(self._view(), self._clock.monotonic_ms(), self._clock.wall_ms())
        self._machine = machine
        self.loaded = True
        self.trouble = None
        self._tell_opening(None)
        self._take(first)

    def _lose(self, error: RunnelError) -> None:
        """Another leads by now, whether this broker knows it or not."""
        self.lost = True
        if isinstance(error, FencedEpoch):
            logger.info("%s ends here: %s", self._journal.name, error)
        self._fail_all(self._journal.gone(f"{self._journal.name} is not here any more: {error}"))

    def close(self) -> None:
        self.closed = True
        self.loaded = False
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._worker, self._loader, self._ticker):
            if task is not None:
                task.cancel()
        self._fail_all(self._journal.gone(f"{self._journal.name} is closing here: find it again"))

    @property
    def machine(self) -> Machine[V]:
        """The state machine, for questions that change nothing and are not kept; raises as `ask` does."""
        self._check()
        return self._machine

    async def opened(self) -> None:
        """Wait until the state is read; raises if this shard ends before."""
        if self.lost or self.closed:
            raise self._journal.gone(f"{self._journal.name} is not here any more: find it again")
        if not self.loaded:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._opening.append(future)
            await future

    def _check(self) -> None:
        if self.lost or not self._journal.is_held():
            raise self._journal.gone(f"{self._journal.name} is not here any more: find it again")
        if not self.loaded:
            raise CoordinatorLoading(f"{self._journal.name} is being read: try again")

    async def ask(self, verb: str, request: Any) -> Any:
        """Put a request to the state machine, and return its answer or raise its error."""
        self._check()
        ticket: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        step = self._decided(verb, request, ticket)
        self._asked[ticket] = None
        ticket.add_done_callback(self._asked.pop)
        self._take(step)
        return await ticket

    def tell(self, verb: str, news: Any) -> None:
        """Let the state machine know something that nobody waits for; it says nothing to one that is not read yet."""
        if self.loaded:
            self._take(self._decided(verb, news))

    def _decided(self, verb: str, *about: object) -> Step:
        """The machine's decision; rule 3 if it fails."""
        decide = getattr(self._machine, verb)
        try:
            step: Step = decide(*about, self._view(), self._clock.monotonic_ms(), self._clock.wall_ms())
        except BaseException as error:
            self._failed(error)
            raise
        return step

    # --- performing

    def _take(self, step: Step) -> None:
        self._arm()
        if not step.records and not self._steps and self._worker is None:
            self._release(step)
        elif step.records or step.replies or step.orders:
            self._steps.append(step)
            if self._worker is None:
                self._worker = self._begin(self._work())

    async def _work(self) -> None:
        """Append what was decided, wait until it is committed, answer; until nothing is left to do."""
        try:
            while self._steps:
                steps = self._next_steps()
                decided = [record for step in steps for record in step.records]
                try:
                    if decided:
                        await self._journal.append(decided)
                except RunnelError as error:
                    await self._start_over(error)
                    continue
                for step in steps:
                    self._release(step)
        except BaseException:
            self._forget()  # at once: nothing is to be decided upon that any more
            raise
        finally:
            self._worker = None

    def _release(self, step: Step) -> None:
        _send(step)
        for order in step.orders:
            self._carry_out(order)

    def _next_steps(self) -> list[Step]:
        steps: list[Step] = []
        size = 0
        while self._steps and (not steps or size < APPEND_BYTES_MAX):
            step = self._steps.popleft()
            steps.append(step)
            size += sum(len(key) + len(value or b"") for key, value in step.records)
        return steps

    async def _start_over(self, error: RunnelError) -> None:
        """What is in memory is not in the journal: forget it. Clients find the shard again and retry."""
        self._forget()
        if isinstance(error, FencedEpoch):
            self._lose(error)
            return
        if not isinstance(error, NotLeader):
            logger.error("%s: could not keep a decision, reading it all again: %s", self._journal.name, error)
        self._fail_all(self._journal.gone(f"{self._journal.name} could not write: {error}"))
        await self.load()

    def _tell_opening(self, error: RunnelError | None) -> None:
        waiting, self._opening = self._opening, []
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(as_value(error))

    def _fail_all(self, error: RunnelError) -> None:
        if self.lost or self.closed:
            self._tell_opening(error)
        for ticket in list(self._asked):
            if not ticket.done():
                ticket.set_exception(as_value(error))

    # --- time

    def _arm(self) -> None:
        """Be woken when something is due; a timer that comes too early costs less than a new one at every step."""
        deadline = self._machine.next_deadline_ms()
        if self._timer is not None:
            if deadline is not None and self._timer_ms <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None and not self.closed:
            self._timer_ms = deadline
            delay_s = max(deadline - self._clock.monotonic_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticker = self._begin(self._do_what_is_due())

    async def _do_what_is_due(self) -> None:
        if not self.loaded:
            return  # what the machine knows is being thrown away
        try:
            self._take(self._machine.tick(self._clock.monotonic_ms(), self._view(), self._clock.wall_ms()))
        except BaseException:
            self._forget()
            raise


def _send(step: Step) -> None:
    for reply in step.replies:
        ticket = reply.ticket
        assert isinstance(ticket, asyncio.Future)
        if ticket.done():
            continue  # the client went away, or the shard started over
        if isinstance(reply.result, RunnelError):
            ticket.set_exception(as_value(reply.result))
        else:
            ticket.set_result(reply.result)
