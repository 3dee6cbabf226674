"""Dead letters, on any broker: listed, dropped, and sent back to where they came from.

Rule 1: the leader of a partition of dead letters does it (`drive`); every other broker asks it.
Rule 2: a letter that went back is dead no more: it is neither listed nor sent again.
Rule 3: a task goes on with the next leader, by itself: who begins to lead looks with the keepers for what is under way.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from runnel.broker.calls import Calls
from runnel.broker.dead_letter_counts import DeadLetterCounts
from runnel.broker.drive import Drive, Parts, edit_in
from runnel.broker.partitions import Partitions
from runnel.broker.queue_calls import At
from runnel.broker.sources import Sources
from runnel.cluster.image import Change, Topic
from runnel.model import headers as h
from runnel.model.calls import (
    DEAD_AWAY,
    DEAD_DROP,
    DEAD_LIST,
    DEAD_MARK,
    REDRIVE_START,
    REDRIVE_STATUS,
    REDRIVE_STOP,
    AskAway,
    Away,
    DeadLetter,
    DeadLetters,
    DropDead,
    Dropped,
    ListDead,
    MarkAway,
    Place,
    Read,
    Redrive,
    RedriveState,
    RedriveTask,
    Value,
    Verb,
)
from runnel.model.errors import InvalidRequest, PolicyViolation, RunnelError, UnknownTopic, as_value
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.queues.letters import Origin, attempts_of, header, is_letter_of, number, origin_of
from runnel.queues.redrive import Asked, Mark, Redriving, Start, Stop, Task, state_of
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.route.filter import compile
from runnel.route.message import view_of

AWAY_MAX: Final = 100_000  # offsets in one call
LIST_MAX: Final = 1_000  # letters at once
LIST_BYTES_MAX: Final = 16 << 20
LOOKED_AT_MAX: Final = 100_000  # to find letters that pass
ASK_MS: Final = 30_000
TASK_BYTES: Final = 8


class ListThere(Value, frozen=True):
    queue: str
    place: At
    messages_max: int
    offset: int | None
    filter: str
    bytes_max: int


class DriveThere(Value, frozen=True):
    """Start, stop or ask after a task in one partition."""

    queue: str
    place: At
    verb: str  # start, stop, status
    task: str
    asked: Asked | None = None


class AwayThere(Value, frozen=True):
    """Which of these letters went, or that these went."""

    queue: str
    place: At
    first: int = 0
    last: int = -1
    went: Sequence[int] | None = None


class DropThere(Value, frozen=True):
    place: At
    upto: int | None
    dry_run: bool
    queue: str = ""  # whose letters are counted


LIST_THERE: Final = Verb("dead.list.there", ListThere, DeadLetters, waits=True)
DRIVE_THERE: Final = Verb("dead.drive.there", DriveThere, Task, waits=True)
AWAY_THERE: Final = Verb("dead.away.there", AwayThere, Away, waits=True)
DROP_THERE: Final = Verb("dead.drop.there", DropThere, Dropped, waits=True)


class _Grave(NamedTuple):
    """One partition of dead letters."""

    key: PartitionKey
    leader: BrokerId

    @property
    def at(self) -> At:
        return At(self.key.topic_id, self.key.number)


class _Read(NamedTuple):
    """The letters that went back, as the leader has read them in one epoch."""

    partition: Partition
    epoch: Epoch
    machine: Redriving

    @property
    def stands(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self.epoch


class Redrives:
    """The verbs."""

    def __init__(self, partitions: Partitions, sources: Sources, calls: Calls, parts: Parts) -> None:
        self._partitions = partitions
        self._sources = sources
        self._calls = calls
        self._parts = parts
        self._drives: dict[tuple[str, PartitionKey], Drive] = {}
        self._read: dict[tuple[str, PartitionKey], _Read] = {}
        self.counts = DeadLetterCounts(sources, parts.messages, self._machine)
        calls.serve(DEAD_LIST, self.list)
        calls.serve(DEAD_DROP, self.drop)
        calls.serve(DEAD_AWAY, self.away)
        calls.serve(DEAD_MARK, self.mark)
        calls.serve(REDRIVE_START, self.start)
        calls.serve(REDRIVE_STATUS, self.status)
        calls.serve(REDRIVE_STOP, self.stop)
        calls.serve(LIST_THERE, self._list_here)
        calls.serve(DRIVE_THERE, self._drive_here)
        calls.serve(DROP_THERE, self._drop_here)
        calls.serve(AWAY_THERE, self._away_here)

    def follow(self, change: Change) -> None:
        """Close what is led elsewhere now."""
        for name, drive in list(self._drives.items()):
            if not drive.shard.belongs_to(self._led(drive.partition.key)):
                del self._drives[name]
                drive.close()
        self._read = {name: read for name, read in self._read.items() if read.stands}
        self.counts.forget_led_elsewhere()

    def close(self) -> None:
        for drive in self._drives.values():
            drive.close()
        self._drives.clear()

    def sweep(self) -> None:
        """Close what nothing is under way in: it is opened again when it is asked for."""
        for name, drive in list(self._drives.items()):
            if drive.is_idle:
                del self._drives[name]
                drive.close()

    def resume(self, queue: str, key: PartitionKey) -> None:
        """Something is under way in a partition that is led here now."""
        self._drive(queue, key)

    def _led(self, key: PartitionKey) -> Partition | None:
        try:
            return self._partitions.find_by_id(*key)
        except RunnelError:
            return None

    def _drive(self, queue: str, key: PartitionKey) -> Drive:
        partition = self._partitions.find_by_id(*key)
        drive = self._drives.get((queue, key))
        if drive is not None and drive.shard.belongs_to(partition) and not drive.shard.lost:
            return drive
        if drive is not None:
            drive.close()
        self._read.pop((queue, key), None)
        drive = self._drives[queue, key] = Drive(queue, partition, self._parts)
        drive.open()
        return drive

    async def _machine(self, queue: str, partition: Partition) -> Redriving:
        """Which letters went back. What was read once stays true while nothing is open that could change it."""
        name = queue, partition.key
        read = self._read.get(name)
        if name not in self._drives and read is not None and read.stands and read.partition is partition:
            return read.machine
        machine = await self._drive(queue, partition.key).machine()
        self._read[name] = _Read(partition, partition.leader_epoch, machine)
        return machine

    # --- where they are

    def _graves(self, queue: str, partition: int | None = None) -> list[_Grave]:
        topic = self._topic(queue)
        if topic is None:
            return []
        if partition is not None and not 0 <= partition < len(topic.partitions):
            raise UnknownTopic(f"{topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}")
        return [
            _Grave(PartitionKey(topic.id, number), one.leader)
            for number, one in enumerate(topic.partitions)
            if partition in (None, number)
        ]

    def _topic(self, queue: str) -> Topic | None:
        """The topic of a queue's dead letters, if there have been any."""
        name = self._sources.queue(queue).config.dead_topic_of(queue)
        if not name:
            raise InvalidRequest(f"queue {queue!r} drops dead messages: set dead.letter.topic to keep them")
        return self._parts.image().topic(name)

    # --- listing and dropping

    async def list(self, request: ListDead) -> DeadLetters:
        """Dead letters that did not go back, partition by partition, the oldest of each first; one page of them."""
        if not 1 <= request.messages_max <= LIST_MAX:
            raise InvalidRequest(f"{request.messages_max} dead letters can't be listed: ask for 1 to {LIST_MAX}")
        letters: list[DeadLetter] = []
        size, since = 0, request.since or Place(0, 0)
        for grave in self._graves(request.queue, request.partition):
            if grave.key.number < since.partition:
                continue
            offset = request.offset or 0
            if grave.key.number == since.partition:
                offset = max(offset, since.offset)
            left = request.messages_max - len(letters)
            asked = ListThere(request.queue, grave.at, left, offset, request.filter, LIST_BYTES_MAX - size)
            await asyncio.sleep(0)  # a request that was answered at once goes on in a task: timeouts need one
            found = await self._calls.ask(grave.leader, LIST_THERE, asked, timeout_ms=ASK_MS)
            letters += found.letters
            size += sum(len(letter.message.value or b"") for letter in found.letters)
            if found.next is not None:
                return DeadLetters(letters, True, found.next)
        return DeadLetters(letters)

    async def _list_here(self, request: ListThere) -> DeadLetters:
        drive = self._drive(request.queue, _key(request.place))
        machine, partition = await drive.machine(), drive.partition
        passes = compile(request.filter).passes if request.filter else None
        letters: list[DeadLetter] = []
        at = max(request.offset or 0, partition.log.start_offset)
        size = looked = 0
        while at < partition.last_stable_offset:
            found = await self._parts.messages.read(partition, at)
            for letter in found.since(at):
                if looked >= LOOKED_AT_MAX:
                    return DeadLetters(letters, True, Place(partition.key.number, letter.offset))
                looked += 1
                if machine.went(letter.offset) or not is_letter_of(request.queue, letter.headers):
                    continue
                if passes is not None and not passes(view_of(letter, partition.topic, partition.key.number)):
                    continue
                if len(letters) >= request.messages_max or size >= request.bytes_max:
                    return DeadLetters(letters, True, Place(partition.key.number, letter.offset))
                letters.append(_letter(partition.topic, partition.key.number, letter))
                size += len(letter.value or b"")
            if found.end <= at:
                break
            at = found.end
        return DeadLetters(letters)

    async def drop(self, request: DropDead) -> Dropped:
        """Delete dead letters for good; those that went back go with them, and do not count."""
        topic = self._topic(request.queue)
        if topic is not None and (others := self._sources.dying_into(topic.name) - {request.queue}):
            raise PolicyViolation(
                f"{topic.name!r} has the dead letters of queue {min(others)!r}, too: let time take yours"
            )
        upto = {place.partition: place.offset + 1 for place in request.only}
        dropped = 0
        for grave in self._graves(request.queue):
            if request.only and grave.key.number not in upto:
                continue
            asked = DropThere(grave.at, upto.get(grave.key.number), request.dry_run, request.queue)
            await asyncio.sleep(0)
            dropped += (await self._calls.ask(grave.leader, DROP_THERE, asked, timeout_ms=ASK_MS)).messages
        return Dropped(dropped)

    async def _drop_here(self, request: DropThere) -> Dropped:
        partition = self._partitions.find_by_id(*_key(request.place))
        if not partition.config.deletes:
            raise PolicyViolation(f"{partition.name} is compacted: its messages can't be deleted by offset")
        start, end = partition.log.start_offset, partition.last_stable_offset
        upto = min(end if request.upto is None else request.upto, end)
        if upto <= start:
            return Dropped(0)
        machine = await self._machine(request.queue, partition)
        dropped = upto - start - machine.went_from(start) + machine.went_from(upto)
        if not request.dry_run:
            await partition.log.advance_start(Offset(upto))
        return Dropped(dropped)

    # --- what others sent away

    async def away(self, request: AskAway) -> Away:
        """Which letters of a stretch went back, by whatever means."""
        if not 0 <= request.last - request.first < AWAY_MAX:
            raise InvalidRequest(f"ask after 1 to {AWAY_MAX} dead letters at once, the first of them first")
        return await self._ask_away(request.queue, request.partition, request.first, request.last)

    async def mark(self, request: MarkAway) -> Away:
        """Keep that letters went back by other means: they are not listed nor sent again."""
        if len(request.offsets) > AWAY_MAX:
            raise InvalidRequest(f"{len(request.offsets)} dead letters are too many at once: name {AWAY_MAX} at most")
        return await self._ask_away(request.queue, request.partition, went=request.offsets)

    async def _ask_away(
        self, queue: str, partition: int, first: int = 0, last: int = -1, went: Sequence[int] | None = None
    ) -> Away:
        for grave in self._graves(queue, partition):
            await asyncio.sleep(0)
            asked = AwayThere(queue, grave.at, first, last, went)
            return await self._calls.ask(grave.leader, AWAY_THERE, asked, timeout_ms=ASK_MS)
        return Away([])

    async def _away_here(self, request: AwayThere) -> Away:
        drive = self._drive(request.queue, _key(request.place))
        machine = await drive.machine()
        if request.went is not None:
            return Away(await drive.shard.ask("mark", Mark(request.went)))
        first = max(request.first, drive.partition.log.start_offset)
        last = min(request.last, drive.partition.last_stable_offset - 1)
        return Away([offset for offset in range(first, last + 1) if machine.went(offset)])

    # --- sending back

    async def start(self, request: Redrive) -> RedriveState:
        """Begin to send dead letters back; answered when that is kept. One task of a queue at a time."""
        graves = self._graves(request.queue)
        name = request.task or self._parts.rng.token(TASK_BYTES).hex()
        _check(request, len(graves))
        chosen = [grave for grave in graves if not request.only or _only(request, grave)]
        if request.limit:
            chosen = chosen[: request.limit]  # each has one to send at least
        if not chosen:
            return RedriveState(request.queue, name, "done", dry_run=request.dry_run)
        tasks = []
        for turn, grave in enumerate(chosen):
            asked = _asked(request, name, grave, turn, len(chosen))
            tasks.append(await self._ask(request.queue, grave, "start", name, asked))
        return state_of(request.queue, tasks)

    async def status(self, request: RedriveTask) -> RedriveState:
        """How far a task is; the newest, if it is not named."""
        return await self._everywhere(request, "status")

    async def stop(self, request: RedriveTask) -> RedriveState:
        """Let a task end when nothing of it is in doubt."""
        return await self._everywhere(request, "stop")

    async def _everywhere(self, request: RedriveTask, verb: str) -> RedriveState:
        tasks: list[Task] = []
        missing: RunnelError | None = None
        for grave in self._graves(request.queue):
            try:
                tasks.append(await self._ask(request.queue, grave, verb, request.task))
            except InvalidRequest as error:
                missing = as_value(error)  # this partition had no part in it
        if not tasks:
            raise missing or InvalidRequest(f"no dead letter of queue {request.queue!r} was ever sent back")
        return state_of(request.queue, tasks)

    async def _ask(self, queue: str, grave: _Grave, verb: str, task: str, asked: Asked | None = None) -> Task:
        await asyncio.sleep(0)
        request = DriveThere(queue, grave.at, verb, task, asked)
        return await self._calls.ask(grave.leader, DRIVE_THERE, request, timeout_ms=ASK_MS)

    async def _drive_here(self, request: DriveThere) -> Task:
        drive = self._drive(request.queue, _key(request.place))
        if request.asked is not None:
            return await drive.ask("start", Start(request.asked))
        return await drive.ask(request.verb, Stop(request.task))


def _key(place: At) -> PartitionKey:
    return PartitionKey(TopicId(place.topic_id), place.partition)


def _check(request: Redrive, graves: int) -> None:
    """Refuse at once what no letter could do."""
    if request.filter:
        compile(request.filter)
    if request.rate_max < 0 or request.limit < 0:
        raise InvalidRequest("rate_max and limit are at least 0, which is for: no bound")
    if (request.edit or request.empties) and len(request.only) != 1:
        raise InvalidRequest("a new value is for one dead letter: name it in `only`")
    if request.only and not graves:
        raise InvalidRequest(f"queue {request.queue!r} has no dead letters: there is nothing to be sent back")
    if any(not 0 <= place.partition < graves for place in request.only):
        raise InvalidRequest(f"the dead letters are in partitions 0 to {graves - 1}: name others in `only`")
    edit_in(_asked(request, "", None, 0, 1))


def _only(request: Redrive, grave: _Grave) -> tuple[int, ...]:
    return tuple(sorted(place.offset for place in request.only if place.partition == grave.key.number))


def _asked(request: Redrive, name: str, grave: _Grave | None, turn: int, of: int) -> Asked:
    """What one partition has to do: its share, where there is a limit or a pace for all. To look takes no pace."""
    return Asked(
        name, request.filter, request.to,
        0 if request.dry_run else -(-request.rate_max // of),
        request.limit // of + (turn < request.limit % of), request.dry_run,
        _only(request, grave) if grave is not None else (), request.edit, request.merge,
        dict(request.set_headers), tuple(request.remove_headers), request.empties,
    )  # fmt: skip


def _letter(topic: str, partition: int, letter: Record) -> DeadLetter:
    origin = origin_of(letter.headers) or Origin("", -1, -1, -1)
    shown = Read(topic, partition, letter.offset, letter.timestamp, letter.key, letter.value, list(letter.headers))
    died_ms = number(letter.headers, h.DEAD_AT)
    return DeadLetter(
        shown, *origin, header(letter.headers, h.DEAD_REASON) or "", attempts_of(letter.headers),
        -1 if died_ms is None else died_ms,
    )  # fmt: skip
