"""One partition of a coordinator's topic: its state machine, the log behind it, and those who wait for answers.

Rule 1: state in memory may run ahead of the log; an answer never does. It leaves when everything that the shard
        appended before it is committed, also the answer to a mere question.
        So does what else follows from a decision: an order is carried out when the decision is committed.
Rule 2: what is decided while an append is under way is appended together, as one batch.
Rule 3: when an append fails, the state is thrown away and read from the log again.
Rule 4: a shard belongs to one leader epoch of its partition. It begins when all that this leader found is committed,
        and ends with the epoch: what is not answered by then is never answered as done.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from runnel.model.errors import CoordinatorLoading, NotCoordinator, NotLeader, RunnelError
from runnel.model.ids import Epoch, Millis, Offset
from runnel.model.limits import MIB
from runnel.model.seams import Clock
from runnel.model.step import Record, Step
from runnel.record import records
from runnel.record.batch import read_header
from runnel.replica.partition import Partition

APPEND_BYTES_MAX = MIB  # a batch of decisions; one decision may be larger
COMMIT_TIMEOUT_S = 30.0
READ_BYTES_MAX = 4 * MIB
RETRY_S, RETRY_S_MAX = 0.1, 10.0  # pauses before a log that can't be read is read again

logger = logging.getLogger("runnel.coordinator")
V = TypeVar("V", contravariant=True)


class Machine(Protocol[V]):
    """A pure state machine: what it knows comes from the log, what it sees of the cluster is a view.

    Each verb takes (request, ticket, view, now_ms, wall_ms), and returns a Step.
    """

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the log."""

    def wake(self, view: V, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: all of the log is read."""

    def tick(self, now_ms: Millis, view: V, wall_ms: Millis) -> Step:
        """Do what is due."""

    def next_deadline_ms(self) -> Millis | None:
        """When something is due next."""


def _nothing(order: object) -> None:
    raise AssertionError(f"a machine that gives no orders gave one: {order!r}")


class Shard(Generic[V]):
    """Performs what the state machine of one partition decides."""

    def __init__(
        self, partition: Partition, new_machine: Callable[[], Machine[V]], view: Callable[[], V], clock: Clock,
        carry_out: Callable[[Any], None] = _nothing,
    ) -> None:  # fmt: skip
        self.partition = partition
        self._epoch = partition.leader_epoch
        self._new_machine = new_machine
        self._machine = new_machine()
        self._view = view
        self._clock = clock
        self._carry_out = carry_out
        self.loaded = False
        self.closed = False
        self._steps: deque[Step] = deque()
        self._asked: dict[asyncio.Future[Any], None] = {}
        self._loader: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def belongs_to(self, partition: Partition | None) -> bool:
        """Whether this shard is that of a partition which is led here, in its present epoch."""
        return partition is self.partition and self._epoch == partition.leader_epoch

    @property
    def epoch(self) -> Epoch:
        """The leader epoch of the partition in which this shard decides."""
        return self._epoch

    @property
    def _is_led(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self._epoch

    def open(self) -> None:
        """Begin to read the state."""
        self._loader = asyncio.get_running_loop().create_task(self.load())
        self._loader.add_done_callback(_report)

    async def load(self) -> None:
        """Read the state out of the log, and try again as long as that fails: nobody else would."""
        pause_s = RETRY_S
        while True:
            try:
                await self._settled()
                machine = await self._replayed()
                break
            except NotLeader:
                return
            except RunnelError as error:
                logger.error("%s can't be read, trying again in %g s: %s", self.partition.name, pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        if self.closed:
            return
        self._machine = machine
        self.loaded = True
        self._take(machine.wake(self._view(), self._clock.monotonic_ms(), self._clock.wall_ms()))

    async def _settled(self) -> None:
        """Wait until all that is in the log now is committed: what is read must neither go away again nor come late.

        That is what this leader found, and decisions of which nobody could say whether they were kept.
        """
        waiting = self.partition.committed(self.partition.log.end_offset, self._epoch, COMMIT_TIMEOUT_S)
        if waiting is not None:
            await waiting

    async def _replayed(self) -> Machine[V]:
        machine = self._new_machine()
        offset = self.partition.log.start_offset
        while offset < self.partition.high_watermark:
            data = memoryview(await self.partition.read(offset, READ_BYTES_MAX))
            while data:
                header = read_header(data)
                for record in records.decode(data[: header.size]):
                    if record.key is not None:
                        machine.replay(record.key, record.value)
                offset = Offset(header.last_offset + 1)
                data = data[header.size :]
        return machine

    def close(self) -> None:
        self.closed = True
        self.loaded = False
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._worker, self._loader):
            if task is not None:
                task.cancel()
        self._fail_all(NotCoordinator(f"the coordinator {self.partition.name} is closing: find it again"))

    async def ask(self, verb: str, request: Any) -> Any:
        """Put a request to the state machine, and return its answer or raise its error."""
        if not self._is_led:
            raise NotCoordinator(f"the coordinator {self.partition.name} is not here any more: find it again")
        if not self.loaded:
            raise CoordinatorLoading(f"the coordinator {self.partition.name} is reading its log: try again")
        ticket: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = None
        ticket.add_done_callback(self._asked.pop)
        decide = getattr(self._machine, verb)
        self._take(decide(request, ticket, self._view(), self._clock.monotonic_ms(), self._clock.wall_ms()))
        return await ticket

    def tell(self, verb: str, news: Any) -> None:
        """Let the state machine know something that nobody waits for; it says nothing to one that is not read yet."""
        if self.loaded:
            decide = getattr(self._machine, verb)
            self._take(decide(news, self._view(), self._clock.monotonic_ms(), self._clock.wall_ms()))

    # --- performing

    def _take(self, step: Step) -> None:
        self._arm()
        if not step.records and not self._steps and self._worker is None:
            self._release(step)
        elif step.records or step.replies or step.orders:
            self._steps.append(step)
            if self._worker is None:
                self._worker = asyncio.get_running_loop().create_task(self._work())
                self._worker.add_done_callback(_report)

    async def _work(self) -> None:
        """Append what was decided, wait until it is committed, answer; until nothing is left to do."""
        try:
            while self._steps:
                steps = self._next_steps()
                decided = [record for step in steps for record in step.records]
                try:
                    if decided:
                        await self._append(decided)
                except RunnelError as error:
                    await self._start_over(error)
                    continue
                for step in steps:
                    self._release(step)
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

    async def _append(self, decided: list[Record]) -> None:
        now = self._clock.wall_ms()
        rows = [records.Record(Offset(i), now, key, value, ()) for i, (key, value) in enumerate(decided)]
        batch = memoryview(bytearray(records.encode(rows)))
        if not self._is_led:
            raise NotLeader(f"{self.partition.name} is not led here in epoch {self._epoch} any more")
        begun = self.partition.append(batch, read_header(batch))
        appended = await begun if isinstance(begun, asyncio.Future) else begun
        waiting = self.partition.committed(Offset(appended.last_offset + 1), self._epoch, COMMIT_TIMEOUT_S)
        if waiting is not None:
            await waiting

    async def _start_over(self, error: RunnelError) -> None:
        """What is in memory is not in the log: forget it. Clients find the coordinator again and retry."""
        if not isinstance(error, NotLeader):
            logger.error("%s: could not keep a decision, reading the log again: %s", self.partition.name, error)
        self.loaded = False
        self._steps.clear()
        self._fail_all(NotCoordinator(f"the coordinator {self.partition.name} could not write: {error}"))
        await self.load()

    def _fail_all(self, error: RunnelError) -> None:
        for ticket in list(self._asked):
            if not ticket.done():
                ticket.set_exception(error)

    # --- time

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._machine.next_deadline_ms()
        if deadline is not None and not self.closed:
            delay_s = max(deadline - self._clock.monotonic_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        if not self.loaded:
            return  # what the machine knows is being thrown away
        self._take(self._machine.tick(self._clock.monotonic_ms(), self._view(), self._clock.wall_ms()))


def _send(step: Step) -> None:
    for reply in step.replies:
        ticket = reply.ticket
        assert isinstance(ticket, asyncio.Future)
        if ticket.done():
            continue  # the client went away, or the shard started over
        if isinstance(reply.result, RunnelError):
            ticket.set_exception(reply.result)
        else:
            ticket.set_result(reply.result)


def _report(worker: "asyncio.Task[None]") -> None:
    if not worker.cancelled() and (error := worker.exception()):
        logger.error("a coordinator's worker failed", exc_info=error)
