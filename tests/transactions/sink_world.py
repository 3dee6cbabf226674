"""A small world around one sink: drivers and tasks, some of them dead or zombies; the machine of sinks and that of
transactions, each with its log; orders and news that come late, twice or never; leaders that are replaced.

Every choice is made by `choose(n)`, a number below n: by chance with a seed, or by Hypothesis. What readers see is told
by the markers alone, and compared with what was promised.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.transactions.rig import CONFIG, Rig

from runnel.model.errors import InvalidTransactionState, RetriableError, RunnelError
from runnel.model.ids import Millis
from runnel.model.sinks import AbortBatch, BeginAttempt, Begun, CommitBatch, Finish, Finished, Handle, Hold, Published
from runnel.model.step import Record, Step
from runnel.transactions.records import decode
from runnel.transactions.sink_records import transactional_id
from runnel.transactions.sink_values import FinishSlot, HoldSlot, OpenSlot, SinkConfig, SlotHeld, SlotOpened
from runnel.transactions.sinks import SinkShard
from runnel.transactions.values import AddPartitions, Identity, InitProducer, State

SINK, PARTITIONS, ROWS, BATCHES = "s", 2, 2, 4
TIMEOUT_MS = 10_000
STEPS_MAX = 4_000  # to come to an end when nothing fails any more

Choose = Callable[[int], int]


@dataclass(eq=False)
class Task:
    """One attempt at one partition of a batch."""

    batch: int
    partition: int
    attempt: int
    handle: Handle | None = None
    rows: int = 0
    state: str = "new"  # new, beginning, writing, done, empty (the batch was published before), failed


@dataclass(eq=False)
class Driver:
    batch: int
    tasks: list[Task] = field(default_factory=list)
    state: str = "writing"  # or committing
    handles: list[Handle] = field(default_factory=list)


@dataclass(eq=False)
class Ticket:
    """Somebody waits for an answer, unless its leader was lost or it gave up."""

    answered: Callable[[Any], None]


class World:
    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.rig = Rig()
        self.log: list[Record] = []
        self.generation = 0
        self.attempts = 0
        self.pending: list[Step] = []  # of the sink's leader: decided, not committed
        self.wire: list[tuple[int, Any]] = []  # orders under way, and who gave them
        self.news: list[tuple[str, Any]] = []
        self.drivers = [Driver(0)]
        self.noted = 0  # the batch that the next driver begins with
        self.rows: dict[Identity, Counter[tuple[int, int, int]]] = {}  # what was written in a transaction
        self.outcomes: dict[Identity, bool] = {}
        self.seen: Counter[tuple[int, int, int]] = Counter()
        self.machine = SinkShard(SinkConfig())
        self._load()

    # --- the sink's leader
    def _load(self) -> None:
        self.machine = SinkShard(SinkConfig())
        for key, value in self.log:
            self.machine.replay(key, value)
        self._take(self.machine.wake(None, Millis(0), Millis(0)))

    def _take(self, step: Step) -> None:
        if step.records or self.pending:
            self.pending.append(step)
        else:
            self._release(step)

    def _release(self, step: Step) -> None:
        for reply in step.replies:
            assert isinstance(reply.ticket, Ticket)
            reply.ticket.answered(reply.result)
        self.wire += [(self.generation, order) for order in step.orders]

    def commit_log(self) -> None:
        if self.pending:
            step = self.pending.pop(0)
            self.log += step.records
            self._release(step)

    def lose_leader(self) -> None:
        """Another leads. Of what was under way, the first few steps are in the log; nobody was told of them."""
        kept = self.choose(len(self.pending) + 1)
        for step in self.pending[:kept]:
            self.log += step.records
        self.pending, self.news = [], []
        self.generation += 1
        for driver in self.drivers:  # who waited asks again
            driver.state = "writing" if driver.state == "committing" else driver.state
            for task in driver.tasks:
                task.state = "new" if task.state == "beginning" else task.state
        self._load()

    def ask(self, verb: str, request: Any, answered: Callable[[Any], None]) -> None:
        generation = self.generation

        def unless_lost(result: Any) -> None:
            if generation == self.generation:
                answered(result)

        self._take(getattr(self.machine, verb)(request, Ticket(unless_lost), None, Millis(0), Millis(0)))

    # --- orders
    def deliver(self, *, again: bool = True) -> None:
        """One order arrives at its coordinator, and is done or not; it may arrive again."""
        if not self.wire:
            return
        at = self.choose(len(self.wire))
        generation, order = self.wire[at]
        told = self._do(order)
        if told is not None and not (again and self.choose(8) == 0):
            del self.wire[at]
        if told is not None and generation == self.generation:
            self.news.append(told)
        elif generation != self.generation and self.choose(4) == 0:
            self.wire[:] = [each for each in self.wire if each[1] is not order]

    def _do(self, order: Any) -> tuple[str, Any] | None:
        """What is told then; None: try again."""
        match order:
            case OpenSlot():
                name = transactional_id(order.sink, order.slot)
                result = self.rig._with_new_id("init_producer", lambda new: InitProducer(name, TIMEOUT_MS, new_id=new))
                if isinstance(result, Identity):
                    return "opened", SlotOpened(order, Handle(name, *result), TIMEOUT_MS)
                return ("opened", SlotOpened(order, result)) if self.choose(6) == 0 else None
            case HoldSlot():
                result = self.rig.ask("hold", Hold(order.sink, order.handle))
                refused = result if isinstance(result, RunnelError) else None
                return None if isinstance(refused, RetriableError) else ("held", SlotHeld(order, refused))
            case FinishSlot():
                result = self.rig.ask("finish", Finish(order.sink, order.handle, order.commit, order.held))
                return ("finished", order) if isinstance(result, Finished) and result.complete else None
        raise AssertionError(order)

    def hear(self) -> None:
        if self.news:
            verb, what = self.news.pop(self.choose(len(self.news)))
            self._take(getattr(self.machine, verb)(what, None, Millis(0), Millis(0)))

    # --- transactions
    def mark(self) -> None:
        """The partitions hear of one end: readers see it."""
        if not self.rig.orders:
            return
        verdict = self.rig.orders.pop(self.choose(len(self.rig.orders)))
        writer = Identity(verdict.producer.producer_id, verdict.producer.epoch - 1)
        if writer not in self.outcomes:
            self.outcomes[writer] = verdict.commit
            if verdict.commit:
                self.seen += self.rows.get(writer, Counter())
        assert self.outcomes[writer] == verdict.commit, "an end was changed"
        self.rig._take(self.rig.shard.marked(verdict, self.rig.topics, *self._moment()))

    def _moment(self) -> tuple[Millis, Millis]:
        return Millis(self.rig.now_ms), Millis(self.rig.wall_ms)

    def write(self, task: Task) -> bool:
        """One row; the transaction has to be open for it."""
        assert task.handle is not None
        who = Identity(task.handle.producer_id, task.handle.epoch)  # type: ignore[arg-type]
        asked = AddPartitions(task.handle.transactional_id, who, (("t", task.partition),))
        answer = self.rig.ask("add_partitions", asked)
        if isinstance(answer, RunnelError) or any(answer.errors.values()):
            return False
        self.rows.setdefault(who, Counter())[(task.batch, task.partition, task.rows)] += 1
        task.rows += 1
        return True

    # --- tasks
    def work(self, task: Task) -> None:
        match task.state:
            case "new":
                task.state = "beginning"
                asked = BeginAttempt(SINK, task.batch, task.partition, task.attempt)
                self.ask("begin", asked, lambda result: self._begun(task, result))
            case "writing":
                if not self.write(task):
                    task.state = "failed"
                elif task.rows == ROWS:
                    task.state = "done"

    def _begun(self, task: Task, result: Begun | RunnelError) -> None:
        if isinstance(result, RunnelError):
            task.state = "new" if isinstance(result, RetriableError) else "failed"
        elif result.decided:
            task.state = "empty"
        else:
            task.handle, task.state = result.handle, "writing"

    # --- drivers
    def drive(self, driver: Driver) -> None:
        if driver.state == "committing" or driver.batch >= BATCHES:
            return
        self._retry_tasks(driver)
        ready = {task.partition: task for task in driver.tasks if task.state in ("done", "empty")}
        if len(ready) < PARTITIONS:
            if driver.tasks:
                self.work(driver.tasks[self.choose(len(driver.tasks))])
            return
        driver.handles = [task.handle for task in ready.values() if task.handle is not None]
        driver.state = "committing"
        asked = CommitBatch(SINK, driver.batch, driver.handles)
        self.ask("commit", asked, lambda result: self._committed(driver, asked, result))

    def _retry_tasks(self, driver: Driver) -> None:
        driver.tasks = [task for task in driver.tasks if task.state != "failed"]
        for partition in range(PARTITIONS):
            if not any(task.partition == partition for task in driver.tasks) or self.choose(30) == 0:
                self.attempts += 1
                same = self.choose(10) == 0  # as if the numbers of attempts began anew
                driver.tasks.append(Task(driver.batch, partition, 0 if same else self.attempts))

    def _committed(self, driver: Driver, asked: CommitBatch, result: Published | RunnelError) -> None:
        if driver.state != "committing" or driver.batch != asked.batch:
            return
        driver.state = "writing"
        if isinstance(result, Published):
            assert self.whole(asked.batch), f"batch {asked.batch} is said to be published: {self.seen}"
            driver.batch, driver.tasks = asked.batch + 1, []
            if self.choose(4):
                self.noted = max(self.noted, driver.batch)
        elif isinstance(result, InvalidTransactionState):
            self.give_up(driver)

    def give_up(self, driver: Driver) -> None:
        """Abort, and write the batch anew; or go on with the same, as one who is confused."""
        handles = [task.handle for task in driver.tasks if task.handle is not None]
        self.ask("abort", AbortBatch(SINK, driver.batch, handles), lambda _: None)
        if self.choose(2):
            driver.tasks = []

    def whole(self, batch: int) -> bool:
        wanted = {(batch, partition, row) for partition in range(PARTITIONS) for row in range(ROWS)}
        return {row: n for row, n in self.seen.items() if row[0] == batch} == dict.fromkeys(wanted, 1)

    # --- what happens
    def step(self) -> None:
        """Anything may happen next."""
        what = self.choose(100)
        driver = self.drivers[self.choose(len(self.drivers))]
        if what < 37:
            self.drive(driver)
        elif what < 57:
            self.deliver()
        elif what < 71:
            self.hear()
        elif what < 83:
            self.commit_log()
        elif what < 93:
            self.mark()
        elif what < 95:
            self.lose_leader()
        elif what == 95:
            self.rig.restart()
        elif what == 96 and self.choose(3) == 0:
            self.rig.wait(TIMEOUT_MS)
        elif what == 97 and len(self.drivers) < 3:
            self.drivers.append(Driver(self.noted))  # the others may be dead, or not
        elif what >= 98 and driver.state == "writing":
            self.give_up(driver)
        self.check()

    def check(self) -> None:
        assert not self.seen or max(self.seen.values()) == 1, f"seen twice: {self.seen}"

    def settle(self) -> None:
        """No failures any more, and one last driver: everything is published, once and whole, and nothing is open."""
        self.choose = random.Random(0).randrange  # fair, whoever chose before
        self.drivers = [Driver(self.noted)]
        for _ in range(STEPS_MAX):
            self._quiet_step()
            if self.drivers[0].batch >= BATCHES and not self._busy():
                break
        self.check()
        for batch in range(BATCHES):
            assert self.whole(batch), f"batch {batch}: {self.seen}"
        self._check_nothing_is_left()

    def _quiet_step(self) -> None:
        while self.pending:
            self.commit_log()
        while self.rig.orders:
            self.mark()
        while self.news:
            self.hear()
        if self.wire:
            self.deliver(again=False)
        self.drive(self.drivers[0])

    def _busy(self) -> bool:
        return bool(self.wire or self.news or self.pending or self.rig.orders)

    def _check_nothing_is_left(self) -> None:
        """An attempt that was opened for who led before is known to nobody, and ends by time."""
        self.rig.wait(CONFIG.timeout_max_ms)
        while self.rig.orders:
            self.mark()
        [sink] = self.machine._sinks.values()
        left = {slot: each for slot, each in sink.attempts.items() if each.batch < BATCHES}
        assert not left, f"attempts are open: {left}"
        for key, value in dict(self.rig.log).items():
            found = decode(key, value)
            assert found is not None
            assert found[1] is None or found[1].state is not State.ONGOING, f"{found[0]} is open"


def run(choose: Choose, steps: int = 400) -> World:
    world = World(choose)
    for _ in range(steps):
        world.step()
    world.settle()
    return world
