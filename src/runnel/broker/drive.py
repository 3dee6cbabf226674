"""One queue's dead letters in one partition that is led here, on their way back.

Rule 1: a letter goes back once, whatever is asked, and whatever crashes (queues/redrive.py). What breaks in a way that
        nobody foresaw ends as failed, and says so: nobody would go on with it.
Rule 2: what can't go back now is tried again, with all that goes with it; what never can (its topic is gone, its value
        is no JSON to merge into, it is too large) is left where it is, and told.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from runnel.broker.internal import INTERNAL
from runnel.broker.keepers import Keepers
from runnel.broker.messages import Messages
from runnel.broker.once import Once, OnceMessage, Placed
from runnel.broker.shard import Shard
from runnel.client.partitioner import partition_of_key
from runnel.cluster.image import VIEW_OF, Image
from runnel.model.errors import ClientError, InvalidRequest, OffsetOutOfRange, PolicyViolation, RetriableError
from runnel.model.ids import TopicId
from runnel.model.seams import Clock, Rng
from runnel.queues.letters import Edit, Origin, edit_of, going_back, is_letter_of, origin_of
from runnel.queues.redrive import Aim, Asked, Broken, Progress, Redriving, Run, Task, View
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.route.filter import compile
from runnel.route.message import view_of

AT_ONCE_MAX: Final = 200  # letters between two moments that are kept
LOOKED_AT_MAX: Final = 10 * AT_ONCE_MAX
PAUSE_MS, PAUSE_MS_MAX = 50, 5_000
OWNER: Final = "\0redrive"  # behind the name of the queue, among the owners that keepers know

Place: TypeAlias = tuple[UUID, int]  # a partition
Passes: TypeAlias = Callable[[Record], bool]

logger = logging.getLogger("runnel.queues")


class Parts(NamedTuple):
    """What all drives of a broker share."""

    keepers: Keepers
    messages: Messages
    once: Once
    image: Callable[[], Image]
    clock: Clock
    rng: Rng


class Stretch:
    """The next letters, and what is to be done with them."""

    def __init__(self, offset: int) -> None:
        self.next = offset
        self.looked_at = 0
        self.skipped = 0
        self.failure = ""
        self.letters: defaultdict[Place, list[Record]] = defaultdict(list)
        self.sent: list[int] = []
        self.reached: dict[Place, int] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.letters.values()))

    def skip(self, why: str = "") -> None:
        self.skipped += 1
        self.failure = self.failure or why


class Drive:
    """Performs what `Redriving` decides."""

    def __init__(self, queue: str, partition: Partition, parts: Parts) -> None:
        self.queue = queue
        self.partition = partition
        self._parts = parts
        journal = parts.keepers.journal(queue + OWNER, partition)
        self.shard: Shard[View] = Shard(journal, Redriving, self._view, parts.clock, self._carry_out)
        self._runner: asyncio.Task[None] | None = None
        self._asking = 0  # questions that are not answered yet

    def open(self) -> None:
        self.shard.open()

    def close(self) -> None:
        self.shard.close()
        if self._runner is not None:
            self._runner.cancel()

    @property
    def is_idle(self) -> bool:
        return self.shard.loaded and self._runner is None and not self._asking

    async def machine(self) -> Redriving:
        """The state machine, once it has been read."""
        with self._asked():
            if not self.shard.loaded:
                await self.shard.opened()
            machine = self.shard.machine
            assert isinstance(machine, Redriving)
            return machine

    async def ask(self, verb: str, request: object) -> Task:
        with self._asked():
            await self.machine()
            task: Task = await self.shard.ask(verb, request)
            return task

    @contextmanager
    def _asked(self) -> Iterator[None]:
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def _view(self) -> View:
        return View(self.partition.log.start_offset, self.partition.last_stable_offset)

    def _carry_out(self, order: object) -> None:
        assert isinstance(order, Run), order
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run())
            self._runner.add_done_callback(self._ended)

    def _ended(self, runner: "asyncio.Task[None]") -> None:
        if self._runner is runner:
            self._runner = None
        if not runner.cancelled() and (error := runner.exception()):
            logger.error("a re-drive of queue %r failed", self.queue, exc_info=error)
            self.shard.tell("broken", Broken(f"{type(error).__name__}: {error}"))

    # --- running

    async def _run(self) -> None:
        """Go on with the task that is under way, and with the next one, until there is none, or it is led elsewhere."""
        loop = asyncio.get_running_loop()
        name, begun, moved, pause_ms = "", loop.time(), 0, PAUSE_MS
        while not (self.shard.lost or self.shard.closed):
            try:
                task = (await self.machine()).task
                if task is None or not task.is_open:
                    return
                if task.asked.task != name:
                    name, begun, moved = task.asked.task, loop.time(), 0
                after = await self._step(task)
            except (RetriableError, PolicyViolation) as error:  # a queue that is full may have room again
                logger.info("re-drive %s of queue %r waits: %s", name, self.queue, error)
                await asyncio.sleep((pause_ms + self._parts.rng.below(pause_ms)) / 1000)
                pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
                continue
            if after.is_open and after.next == task.next:
                await asyncio.sleep(PAUSE_MS / 1000)  # a new leader does not know yet that it can read all of them
            pause_ms = PAUSE_MS
            moved += after.moved - task.moved
            if task.asked.rate_max:
                await asyncio.sleep(max(0.0, begun + moved / task.asked.rate_max - loop.time()))

    async def _step(self, task: Task) -> Task:
        """Send the next letters, and keep that they went."""
        asked = task.asked
        try:
            stretch = await self._next(task)
        except OffsetOutOfRange:
            return task  # retention was quicker: look again
        except ClientError as error:  # the filter, or the edit: no letter can go
            return await self.ask("progress", Progress(asked.task, task.next, (), 0, 0, {}, str(error), "failed"))
        if asked.dry_run:
            stretch.sent = [letter.offset for letters in stretch.letters.values() for letter in letters]
        else:
            floors = await self._floors(task, list(stretch.letters))
            for place, letters in stretch.letters.items():
                await self._send(place, letters, floors[place], task, stretch)
        full = bool(asked.limit) and task.moved + len(stretch.sent) >= asked.limit
        return await self.ask(
            "progress",
            Progress(
                asked.task, stretch.next, stretch.sent, stretch.looked_at, stretch.skipped, stretch.reached,
                stretch.failure, "done" if full else "",
            ),
        )  # fmt: skip

    async def _floors(self, task: Task, places: Sequence[Place]) -> Mapping[Place, int]:
        """From where on what is sent to each place would be found again; kept before anything is sent there."""
        known = {(floor.topic_id, floor.partition): floor.offset for floor in task.floors}
        unknown = [place for place in places if place not in known]
        if unknown:
            once = self._parts.once
            known |= {place: int(await once.floor(TopicId(place[0]), place[1])) for place in unknown}
            await self.ask("aim", Aim(task.asked.task, known))
        return known

    # --- choosing

    async def _next(self, task: Task) -> Stretch:
        asked, machine = task.asked, await self.machine()
        passes, edit = self._passes(asked.filter), edit_in(asked)
        room = _room(task)
        stretch = Stretch(max(task.next, self.partition.log.start_offset))
        while stretch.next < task.end and stretch.count < room and stretch.looked_at < LOOKED_AT_MAX:
            found = await self._parts.messages.read(self.partition, stretch.next)
            for letter in found.since(stretch.next):
                if letter.offset >= task.end or stretch.count >= room:
                    break
                stretch.next = letter.offset + 1
                stretch.looked_at += 1
                named = not asked.only or letter.offset in asked.only
                if named and not machine.went(letter.offset) and is_letter_of(self.queue, letter.headers):
                    self._choose(letter, asked, passes, edit, stretch)
            else:
                stretch.next = min(max(stretch.next, found.end), task.end)  # what is behind the last one is no letter
                if found.end <= found.first:
                    break
        return stretch

    def _passes(self, text: str) -> Passes:
        if not text:
            return lambda _: True
        filtered, topic, number = compile(text), self.partition.topic, self.partition.key.number
        return lambda letter: filtered.passes(view_of(letter, topic, number))

    def _choose(self, letter: Record, asked: Asked, passes: Passes, edit: Edit, stretch: Stretch) -> None:
        if not passes(letter):
            stretch.skip()
            return
        try:
            going_back(letter, "", edit)
            stretch.letters[self._place(letter, asked.to)].append(letter)
        except ClientError as error:
            stretch.skip(str(error))

    def _place(self, letter: Record, to: str) -> Place:
        """Where a letter goes: where it came from, or where it belongs by its key."""
        origin = origin_of(letter.headers) or Origin("", -1, -1, -1)
        name = to or origin.topic
        topic = self._parts.image().topic(name)
        if topic is None or name in INTERNAL or VIEW_OF in topic.config:
            raise InvalidRequest(
                f"the dead letter at offset {letter.offset} has nowhere to go: {name!r} can't be written to"
            )
        count = len(topic.partitions)
        if not to and 0 <= origin.partition < count:
            return topic.id, origin.partition
        return topic.id, letter.offset % count if letter.key is None else partition_of_key(letter.key, count)

    # --- sending

    async def _send(self, place: Place, letters: Sequence[Record], floor: int, task: Task, stretch: Stretch) -> None:
        edit, now_ms = edit_in(task.asked), self._parts.clock.wall_ms()
        as_it_was = not task.asked.to and edit == Edit(remove_headers=edit.remove_headers)  # its topic took it before
        messages = []
        for letter in letters:
            name = f"redrive:{self.queue}:{self.partition.key}:{letter.offset}"
            back = going_back(letter, name, edit)
            messages.append(OnceMessage(name, back.key, back.value, back.headers, now_ms, floor, as_it_was))
        results = await self._parts.once.append_each(TopicId(place[0]), place[1], messages)
        for result in results:
            if isinstance(result, RetriableError):
                raise result
            if isinstance(result, PolicyViolation) and task.state == "running":  # who is to stop waits for no room
                raise result
        for letter, result in zip(letters, results, strict=True):
            if isinstance(result, Placed):
                stretch.sent.append(letter.offset)
                stretch.reached[place] = max(stretch.reached.get(place, 0), result.offset + 1)
            else:
                stretch.skip(f"the dead letter at offset {letter.offset} can't go back: {result}")


def edit_in(asked: Asked) -> Edit:
    return edit_of(asked.set_headers, asked.remove_headers, asked.value, asked.merge, empties=asked.empties)


def _room(task: Task) -> int:
    """How many letters may go in one step."""
    asked = task.asked
    room = asked.limit - task.moved if asked.limit else AT_ONCE_MAX
    pace = max(1, asked.rate_max // 10) if asked.rate_max else AT_ONCE_MAX  # about ten steps a second
    return max(1, min(AT_ONCE_MAX, room, pace))
