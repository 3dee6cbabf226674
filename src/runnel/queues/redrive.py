"""Sending dead letters of one partition back to where they came from: what was sent, and how far the task is.

Rule 1: a dead letter goes back once. That it has is kept (a bit for each), for all tasks that come later. Who sends
        letters back by other means says so (`mark`).
Rule 2: before anything is sent to a partition its floor is kept: what a crash leaves in doubt is sent again, and found
        by its name from there on. A task that is to stop ends when nothing of it is in doubt; one that broke ends as
        failed, and hands its floors on.
Rule 3: there is one task at a time; what it was asked and how far it came is kept, so that the next leader goes on.
Rule 4: a dry run keeps what it counted, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from runnel.model.calls import RedriveState
from runnel.model.errors import InvalidRequest, RecordUnreadable, RunnelError
from runnel.model.ids import Millis
from runnel.model.step import Record, Reply, Step
from runnel.model.unreadable import FOREIGN

TASK: Final = 1  # the first element of a key
CHUNK: Final = 2
RUNNING: Final = 3  # is there as long as there is something to do
CHUNK_LETTERS: Final = 1_024  # 128 bytes of bits

TASK_KEY: Final = msgspec.msgpack.encode((TASK,))
RUNNING_KEY: Final = msgspec.msgpack.encode((RUNNING,))

State = Literal["running", "stopping", "done", "stopped", "failed"]


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """What a task is to do with this partition."""

    task: str
    filter: str = ""
    to: str = ""
    rate_max: int = 0
    limit: int = 0
    dry_run: bool = False
    only: tuple[int, ...] = ()  # offsets
    value: str = ""  # base64
    merge: str = ""  # JSON
    set_headers: dict[str, str] = {}
    remove_headers: tuple[str, ...] = ()
    empties: bool = False  # the new value is an empty one


class Floor(msgspec.Struct, frozen=True, array_like=True):
    """An offset that a partition had reached before anything was sent there."""

    topic_id: UUID
    partition: int
    offset: int


class Task(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What was asked, and how far it is."""

    asked: Asked
    state: State
    next: int  # the first letter that was not looked at
    first: int
    end: int
    looked_at: int = 0
    moved: int = 0
    skipped: int = 0
    floors: tuple[Floor, ...] = ()
    failure: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in ("running", "stopping")


class View(msgspec.Struct, frozen=True):
    """What is in the partition of dead letters."""

    start: int
    end: int


class Start(msgspec.Struct, frozen=True):
    asked: Asked


class Progress(msgspec.Struct, frozen=True):
    """What was done up to `next`: these letters are where they belong, committed."""

    task: str
    next: int
    moved: Sequence[int]
    looked_at: int
    skipped: int
    floors: Mapping[tuple[UUID, int], int]
    failure: str = ""
    end: Literal["", "done", "failed"] = ""  # the task is over before the last letter


class Aim(msgspec.Struct, frozen=True):
    """Floors of partitions that something is about to be sent to."""

    task: str
    floors: Mapping[tuple[UUID, int], int]


class Stop(msgspec.Struct, frozen=True):
    task: str


class Broken(msgspec.Struct, frozen=True):
    """Told: the task that is under way can't go on, for a reason that nobody foresaw."""

    failure: str


class Mark(msgspec.Struct, frozen=True):
    """Letters that somebody else sent away."""

    offsets: Sequence[int]


class Run(msgspec.Struct, frozen=True):
    """Ordered: go on with the task."""

    task: str


class Redriving:
    """The state machine of one partition of dead letters."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._bits: dict[int, bytearray] = {}

    @property
    def task(self) -> Task | None:
        return self._task

    def went(self, offset: int) -> bool:
        """Whether a dead letter went back before."""
        bits = self._bits.get(offset // CHUNK_LETTERS)
        place = offset % CHUNK_LETTERS
        return bits is not None and bits[place // 8] >> place % 8 & 1 == 1

    def went_from(self, start: int) -> int:
        """How many dead letters at or above an offset went back."""
        return sum(
            (int.from_bytes(bits, "little") >> max(0, start - number * CHUNK_LETTERS)).bit_count()
            for number, bits in self._bits.items()
        )

    # --- loading and time

    def replay(self, key: bytes, value: bytes | None) -> None:
        match _parts_of(key):
            case [1]:
                self._task = None if value is None else _task_of(value)
            case [2, int(number)] if value is not None:
                if len(value) != CHUNK_LETTERS // 8:
                    raise RecordUnreadable(f"{len(value)} bytes are no bits of {CHUNK_LETTERS} dead letters")
                self._bits[number] = bytearray(value)
            case [2, int(number)]:
                self._bits.pop(number, None)

    def wake(self, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        orders: list[object] = [Run(self._task.asked.task)] if self._task and self._task.is_open else []
        return Step(records=self._forget_below(view.start), orders=orders)

    def tick(self, now_ms: Millis, view: View, wall_ms: Millis) -> Step:
        return Step()

    def next_deadline_ms(self) -> Millis | None:
        return None

    # --- verbs

    def start(self, request: Start, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        asked = request.asked
        if self._task is not None and self._task.asked.task == asked.task:
            return Step(replies=[Reply(ticket, self._task)])  # it was asked for twice
        if self._task is not None and self._task.is_open:
            error = InvalidRequest(f"re-drive {self._task.asked.task!r} is under way: wait for it, or stop it first")
            return Step(replies=[Reply(ticket, error)])
        first, end = view.start, view.end
        if asked.only:
            first, end = max(first, min(asked.only)), min(end, max(asked.only) + 1)
        gone = [offset for offset in asked.only if not view.start <= offset < view.end or self.went(offset)]
        self._task = Task(
            asked, "running", first, first, max(first, end), skipped=len(gone), floors=_in_doubt(self._task),
            failure=f"no dead letter is at offset {gone[0]}: it never was, went back, or was dropped" if gone else "",
        )  # fmt: skip
        return Step([*self._kept(), (RUNNING_KEY, b"\x01")], [Reply(ticket, self._task)], [Run(asked.task)])

    def stop(self, request: Stop, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        task = self._task
        if task is None or (request.task and task.asked.task != request.task):
            return Step(replies=[Reply(ticket, _unknown(request.task))])
        if not task.is_open:
            return Step(replies=[Reply(ticket, task)])
        self._task = msgspec.structs.replace(task, state="stopping")
        return Step(self._kept(), [Reply(ticket, self._task)], [Run(task.asked.task)])  # somebody has to end it

    def status(self, request: Stop, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        task = self._task
        found = task is not None and request.task in ("", task.asked.task)
        return Step(replies=[Reply(ticket, task if found else _unknown(request.task))])

    def aim(self, request: Aim, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered when the floors are kept: what is sent from then on is found again."""
        task = self._task
        if task is None or task.asked.task != request.task or not task.is_open:
            return Step(replies=[Reply(ticket, _unknown(request.task))])
        self._task = msgspec.structs.replace(task, floors=_floors(task.floors, request.floors))
        return Step(self._kept(), [Reply(ticket, self._task)])

    def progress(self, request: Progress, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        task = self._task
        if task is None or task.asked.task != request.task or not task.is_open:
            return Step(replies=[Reply(ticket, _unknown(request.task))])
        records = [] if task.asked.dry_run else self._mark(request.moved)
        state: State = request.end or ("done" if request.next >= task.end else task.state)
        if state == "stopping":
            state = "stopped"
        self._task = msgspec.structs.replace(
            task, state=state, next=request.next,
            looked_at=task.looked_at + request.looked_at, moved=task.moved + len(request.moved),
            skipped=task.skipped + request.skipped, floors=_floors(task.floors, request.floors),
            failure=request.failure or task.failure,
        )  # fmt: skip
        if not self._task.is_open:
            records.append((RUNNING_KEY, None))
        records += self._forget_below(view.start)
        return Step([*records, *self._kept()], [Reply(ticket, self._task)])

    def broken(self, news: Broken, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """The task ends as failed. What it had in doubt the next one finds by its name, from the same floors on."""
        task = self._task
        if task is None or not task.is_open:
            return Step()
        self._task = msgspec.structs.replace(task, state="failed", failure=news.failure)
        return Step([(RUNNING_KEY, None), *self._kept()])

    def mark(self, request: Mark, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with the letters that are here, when it is kept that they went. To say so twice does no harm."""
        here = [offset for offset in request.offsets if view.start <= offset < view.end]
        return Step(self._mark(here), [Reply(ticket, here)])

    # --- what is kept

    def _kept(self) -> list[Record]:
        return [(TASK_KEY, msgspec.msgpack.encode(self._task))]

    def _mark(self, offsets: Iterable[int]) -> list[Record]:
        changed: set[int] = set()
        for offset in offsets:
            number, place = divmod(offset, CHUNK_LETTERS)
            bits = self._bits.setdefault(number, bytearray(CHUNK_LETTERS // 8))
            bits[place // 8] |= 1 << place % 8
            changed.add(number)
        return [(_chunk_key(number), bytes(self._bits[number])) for number in sorted(changed)]

    def _forget_below(self, start: int) -> list[Record]:
        """What retention took can't go back."""
        gone = [number for number in self._bits if (number + 1) * CHUNK_LETTERS <= start]
        for number in gone:
            del self._bits[number]
        return [(_chunk_key(number), None) for number in gone]


def state_of(queue: str, tasks: Sequence[Task]) -> RedriveState:
    """How a task stands that goes through several partitions."""
    states = {task.state for task in tasks}
    order: tuple[State, ...] = ("running", "stopping", "failed", "stopped", "done")
    state = next(state for state in order if state in states)
    return RedriveState(
        queue, tasks[0].asked.task, "running" if state == "stopping" else state,
        sum(task.looked_at for task in tasks), sum(task.moved for task in tasks), sum(task.skipped for task in tasks),
        sum(task.end - task.first for task in tasks), next((task.failure for task in tasks if task.failure), ""),
        tasks[0].asked.dry_run, state == "stopping",
    )  # fmt: skip


def _chunk_key(number: int) -> bytes:
    return msgspec.msgpack.encode((CHUNK, number))


def _floors(before: Iterable[Floor], more: Mapping[tuple[UUID, int], int]) -> tuple[Floor, ...]:
    known = {(floor.topic_id, floor.partition): floor.offset for floor in before}
    return tuple(Floor(*place, offset) for place, offset in {**known, **more}.items())


def _in_doubt(before: Task | None) -> tuple[Floor, ...]:
    """The floors that the next task takes over: one that failed may have sent what it did not keep."""
    hands_on = before is not None and (before.state == "failed" or before.asked.dry_run)
    return before.floors if before is not None and hands_on else ()


def _task_of(value: bytes) -> Task:
    try:
        return msgspec.msgpack.decode(value, type=Task)
    except FOREIGN as error:
        raise RecordUnreadable(f"a record of a re-drive can't be read ({error}): is it of a newer Runnel?") from None


def _parts_of(key: bytes) -> object:
    try:
        match msgspec.msgpack.decode(key):
            case [int(), *_] as parts:
                return parts
        raise ValueError("it is no array that begins with a kind")
    except FOREIGN as error:
        raise RecordUnreadable(f"re-drive record with key {key[:64].hex()} can't be read: {error}") from None


def _unknown(task: str) -> RunnelError:
    return InvalidRequest(f"re-drive {task!r} is not known here: ask for its status without naming it")
