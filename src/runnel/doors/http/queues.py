"""Queues: messages are leased, and accepted, released or rejected one by one."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from runnel.client.outcome import error_of_failure
from runnel.doors.http.call import Call
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.payload import Instant, Partition, Whole, time_ms
from runnel.doors.http.problems import InvalidInput, Problem, problem_of
from runnel.doors.http.topics import After, Count, NamesMax, Prefix, SettingValue, setting_text
from runnel.model.calls import (
    QUEUE_ALTER,
    QUEUE_CREATE,
    QUEUE_DELETE,
    QUEUE_DESCRIBE,
    QUEUE_LIST,
    QUEUE_PURGE,
    QUEUE_REWIND,
    AlterQueue,
    CreateQueue,
    DeleteQueue,
    DeliveryState,
    Failure,
    ListedQueue,
    ListQueues,
    NamedQueue,
    Purge,
    Rewind,
    Shifted,
)
from runnel.model.queue_config import shown_value

RECEIVE_WAIT_MS_MAX = 300_000
LEASE_MS_MAX = 12 * 3_600_000

DryRun = Annotated[bool, Meta(description="only say what would happen")]
LeaseMs = Annotated[int, Meta(ge=1_000, le=LEASE_MS_MAX)]


# --- definitions


class QueueView(View, omit_defaults=False):
    queue: str
    topic: str
    settings: dict[str, str]  # those that were set


class QueuesView(View, omit_defaults=False):
    queues: list[QueueView]
    more: bool  # ask again with after=NAME of the last one


@operation("GET /v1/queues")
async def list_queues(call: Call, prefix: Prefix = "", after: After = "", limit: NamesMax = 1_000) -> QueuesView:
    """List the queues by name.

    GET /v1/queues?limit=100
    """
    found = await call.look(QUEUE_LIST, ListQueues(prefix, after, limit))
    return QueuesView(queues=[_queue_view(each) for each in found.queues], more=found.more)


def _queue_view(queue: ListedQueue) -> QueueView:
    settings = {name: shown_value(name, value) for name, value in queue.settings.items()}
    return QueueView(queue=queue.queue, topic=queue.topic, settings=settings)


class NewQueue(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=249)]
    settings: dict[str, SettingValue] = msgspec.field(default_factory=dict)
    partitions: Annotated[Count | None, Meta(description="of its topic, if that is to be made")] = None
    replicas: Annotated[Count | None, Meta(description="of its topic, if that is to be made")] = None


class DefinedView(View, omit_defaults=False):
    queue: str
    topic: str
    created_topic: bool


@operation("POST /v1/queues", status=201)
async def create_queue(call: Call, body: NewQueue, dry_run: DryRun = False) -> DefinedView:
    """Create a queue over a topic, which is made if it is not there.

    Without the setting topic, the topic has the name of the queue. One topic can have many queues: each delivers all
    its messages.

        POST /v1/queues {"name": "emails", "settings": {"lease.ms": 60000, "attempts.max": 3}}
    """
    settings = {name: setting_text(value) for name, value in body.settings.items()}
    asked = CreateQueue(body.name, settings, body.partitions or -1, body.replicas or -1, dry_run)
    made = await call.ask(QUEUE_CREATE, asked)
    return DefinedView(queue=made.queue, topic=made.topic, created_topic=made.created_topic)


class SettingState(View, omit_defaults=False):
    name: str
    value: str
    default: bool


class DeliveryView(View, omit_defaults=False):
    """What the queue keeps of one partition."""

    topic: str
    partition: int
    leader: int
    first_open: int
    next_new: int
    end: int
    ready: int
    leased: int
    waiting: int
    blocked: int
    dead: int
    accepted: int
    released: int
    expired: int
    consumers: int
    breaker: str
    oldest_ms: int
    error: Problem | UnsetType = UNSET


class QueueDetails(View, omit_defaults=False):
    queue: str
    topic: str
    ready: int  # that can be leased, of all partitions
    leased: int
    waiting: int  # for another attempt, here or in the schedule
    dead: int | None  # dead letters that there are now; null: they could not be counted
    died: int  # since the queue began
    settings: list[SettingState]
    partitions: list[DeliveryView]


@operation("GET /v1/queues/{queue}")
async def describe_queue(call: Call, queue: str) -> QueueDetails:
    """Describe a queue: its settings, and how its messages stand.

    GET /v1/queues/emails
    """
    found = await call.look(QUEUE_DESCRIBE, NamedQueue(queue))
    states = found.partitions
    return QueueDetails(
        queue=queue, topic=found.topic,
        ready=sum(each.ready for each in states),
        leased=sum(each.leased for each in states),
        waiting=sum(each.waiting for each in states) + max(0, found.scheduled),
        dead=found.dead_letters if found.dead_letters >= 0 else None,
        died=sum(each.dead for each in states),
        settings=[SettingState(name=each.name, value=each.value, default=each.default) for each in found.settings],
        partitions=[_delivery(each) for each in states],
    )  # fmt: skip


def _delivery(state: DeliveryState) -> DeliveryView:
    named = {name: getattr(state, name) for name in DeliveryView.__struct_fields__ if name != "error"}
    return DeliveryView(**named, error=_problem(state.failure))


def _problem(failure: Failure | None) -> Problem | UnsetType:
    error = error_of_failure(failure)
    return UNSET if error is None else problem_of(error)


class AlteredQueue(Struct):
    settings: Annotated[dict[str, SettingValue | None], Meta(description="null: back to the default")]


@operation("PATCH /v1/queues/{queue}")
async def alter_queue(call: Call, queue: str, body: AlteredQueue, dry_run: DryRun = False) -> None:
    """Change settings of a queue.

    PATCH /v1/queues/emails {"settings": {"attempts.max": 10, "lease.ms": null}}
    """
    settings = {name: None if value is None else setting_text(value) for name, value in body.settings.items()}
    await call.ask(QUEUE_ALTER, AlterQueue(queue, settings, dry_run))


class DeletedView(View, omit_defaults=False):
    queue: str
    topics: list[str]  # that went with it


@operation("DELETE /v1/queues/{queue}")
async def delete_queue(
    call: Call,
    queue: str,
    topics: Annotated[bool, Meta(description="also its topic, its retry topic and its dead letters")] = False,
    dry_run: DryRun = False,
) -> DeletedView:
    """Delete a queue. The messages of its topic stay, unless the topics are to go too.

    DELETE /v1/queues/emails?topics=true
    """
    gone = await call.ask(QUEUE_DELETE, DeleteQueue(queue, topics, dry_run))
    return DeletedView(queue=queue, topics=list(gone.topics))


# --- moving


class MovedView(View, omit_defaults=False):
    topic: str
    partition: int
    before: int
    after: int
    error: Problem | UnsetType = UNSET


class ShiftedView(View, omit_defaults=False):
    queue: str
    scheduled: int  # waited in the schedule for another attempt
    partitions: list[MovedView]


@operation("POST /v1/queues/{queue}/purge")
async def purge_queue(
    call: Call, queue: str, partition: Partition | None = None, dry_run: DryRun = False
) -> ShiftedView:
    """Take all messages out of a queue. They stay in its topic.

    POST /v1/queues/emails/purge?dry_run=true
    """
    return _shifted(queue, await call.ask(QUEUE_PURGE, Purge(queue, partition, dry_run)))


class RewindTo(Struct):
    to: Literal["start", "end", "offset", "time"]
    offset: Annotated[Whole | None, Meta(description="with to=offset")] = None
    time: Annotated[Instant | None, Meta(description="with to=time")] = None
    partition: Annotated[Partition | None, Meta(description="all, if it is left out")] = None


@operation("POST /v1/queues/{queue}/rewind")
async def rewind_queue(call: Call, queue: str, body: RewindTo, dry_run: DryRun = False) -> ShiftedView:
    """Deliver messages again, from an offset or a time on, and no others. Receipts that are out are void then.

    POST /v1/queues/emails/rewind {"to": "time", "time": "2030-01-31T12:00:00Z"}
    """
    if body.to in ("offset", "time") and getattr(body, body.to) is None:
        raise InvalidInput(f"to={body.to} needs the field {body.to}")
    time = -1 if body.time is None else time_ms(body.time)
    asked = Rewind(queue, body.to, -1 if body.offset is None else body.offset, time, body.partition, dry_run)
    return _shifted(queue, await call.ask(QUEUE_REWIND, asked))


def _shifted(queue: str, shifted: Shifted) -> ShiftedView:
    views = [
        MovedView(
            topic=each.topic, partition=each.partition, before=each.before, after=each.after,
            error=_problem(each.failure),
        )
        for each in shifted.partitions
    ]  # fmt: skip
    return ShiftedView(queue=queue, scheduled=shifted.scheduled, partitions=views)
