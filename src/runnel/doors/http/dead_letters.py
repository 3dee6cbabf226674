"""Dead letters: messages that a queue gave up, and sending them back."""

from base64 import b64encode
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from runnel.doors.http.call import Call
from runnel.doors.http.messages import Filter, Limit, Value, message_view
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.payload import MessageView, Partition, Whole
from runnel.doors.http.problems import InvalidInput
from runnel.doors.http.queues import DryRun
from runnel.model.calls import (
    DEAD_DROP,
    DEAD_LIST,
    DEAD_QUEUES,
    REDRIVE_START,
    REDRIVE_STATUS,
    REDRIVE_STOP,
    DeadLetter,
    DropDead,
    ListDead,
    ListDeadQueues,
    Place,
    Redrive,
    RedriveState,
    RedriveTask,
)


class LetterView(View, omit_defaults=False):
    """A message that was given up: the whole of it, where it was, and why."""

    message: MessageView  # as it lies in the topic of dead letters
    topic: str  # where it was
    partition: int
    offset: int
    reason: str
    attempts: int
    died_ms: int


class LettersView(View, omit_defaults=False):
    letters: list[LetterView]
    more: bool
    next: str | None  # ask again with since=next; a page may be short, or empty, and not be the last


class DeadQueueView(View, omit_defaults=False):
    queue: str
    topic: str  # its dead letters are in there
    messages: int  # that the topic holds


class DeadQueuesView(View, omit_defaults=False):
    queues: list[DeadQueueView]
    next: str | None  # ask again with since=next; a page may be short, or empty, and not be the last


@operation("GET /v1/dead-letters")
async def list_dead_queues(
    call: Call,
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100,
    since: Annotated[str, Meta(description="go on there: next of the last page")] = "",
) -> DeadQueuesView:
    """List the queues that have dead letters, by name: a page of them.

    GET /v1/dead-letters?limit=10
    """
    found = await call.look(DEAD_QUEUES, ListDeadQueues(limit, since))
    views = [DeadQueueView(queue=each.queue, topic=each.topic, messages=each.messages) for each in found.queues]
    return DeadQueuesView(queues=views, next=found.next)


@operation("GET /v1/queues/{queue}/dead-letters")
async def list_dead_letters(
    call: Call,
    queue: str,
    limit: Limit = 100,
    partition: Annotated[Partition | None, Meta(description="of the topic of dead letters")] = None,
    offset: Annotated[Whole | None, Meta(description="from here on")] = None,
    since: Annotated[
        str, Meta(pattern=r"^(\d{1,9}/\d{1,18})?$", description="go on there: next of the last page")
    ] = "",
    filter: Filter = "",
    value: Value = "auto",
) -> LettersView:
    """List the dead letters of a queue: a page of them.

    GET /v1/queues/emails/dead-letters?limit=10
    """
    partition_text, _, offset_text = since.partition("/")
    place = Place(int(partition_text), int(offset_text)) if since else None
    found = await call.look(DEAD_LIST, ListDead(queue, limit, partition, offset, filter, place))
    views = [_letter(each, message_view(each.message, value)) for each in found.letters]
    following = None if found.next is None else f"{found.next.partition}/{found.next.offset}"
    return LettersView(letters=views, more=found.more, next=following)


def _letter(letter: DeadLetter, message: MessageView) -> LetterView:
    return LetterView(
        message=message, topic=letter.origin_topic, partition=letter.origin_partition, offset=letter.origin_offset,
        reason=letter.reason, attempts=letter.attempts, died_ms=letter.died_ms,
    )  # fmt: skip


class PlaceOf(Struct):
    partition: Partition
    offset: Whole


class DroppedView(View, omit_defaults=False):
    messages: int


class Drop(Struct):
    upto: Annotated[list[PlaceOf], Meta(description="up to and with these; all, if it is empty")] = msgspec.field(
        default_factory=list
    )


@operation("POST /v1/queues/{queue}/dead-letters/drop")
async def drop_dead_letters(call: Call, queue: str, body: Drop, dry_run: DryRun = False) -> DroppedView:
    """Give dead letters up for good.

    POST /v1/queues/emails/dead-letters/drop {"upto": [{"partition": 0, "offset": 41}]}
    """
    places = [Place(each.partition, each.offset) for each in body.upto]
    dropped = await call.ask(DEAD_DROP, DropDead(queue, places, dry_run))
    return DroppedView(messages=dropped.messages)


class StartRedrive(Struct):
    filter: Filter = ""
    to: Annotated[str, Meta(description="another topic than where they came from")] = ""
    rate_max: Annotated[Whole, Meta(description="messages a second; 0: as fast as it goes")] = 0
    limit: Annotated[Whole, Meta(description="messages; 0: all that are there now")] = 0
    only: Annotated[list[PlaceOf], Meta(description="these alone")] = msgspec.field(default_factory=list)
    value: Annotated[Raw | UnsetType, Meta(description="the new value of the one in only, as JSON")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="instead of value: as text")] = UNSET
    merge: Annotated[Raw | UnsetType, Meta(description="is merged into the JSON of each (RFC 7396)")] = UNSET
    set_headers: dict[str, str] = msgspec.field(default_factory=dict)
    remove_headers: list[str] = msgspec.field(default_factory=list)
    task: Annotated[str, Meta(max_length=100, description="its name: asked for twice, it is done once")] = ""

    def asked(self, queue: str, dry_run: bool) -> Redrive:
        places = [Place(each.partition, each.offset) for each in self.only]
        merge = "" if self.merge is UNSET else bytes(self.merge).decode()
        return Redrive(
            queue, self.filter, self.to, self.rate_max, self.limit, dry_run, places, self._edit(),
            self.set_headers, self.remove_headers, merge, self.task,
        )  # fmt: skip

    def _edit(self) -> str:
        if self.value is not UNSET and self.text is not UNSET:
            raise InvalidInput("the new value is either value or text")
        if self.value is not UNSET:
            return b64encode(bytes(self.value)).decode()
        return "" if self.text is UNSET else b64encode(self.text.encode()).decode()


class RedriveView(View, omit_defaults=False):
    queue: str
    task: str
    state: str  # running, done, stopped or failed
    looked_at: int
    moved: int
    skipped: int
    total: int
    failure: str
    dry_run: bool  # nothing is sent; moved is what would be


@operation("POST /v1/queues/{queue}/redrive", status=202)
async def start_redrive(call: Call, queue: str, body: StartRedrive, dry_run: DryRun = False) -> RedriveView:
    """Send dead letters back to where they came from: all, those that pass a filter, or these; as they were, or edited.

    It goes on behind this answer, and after a restart where it was: no letter is sent back twice.

        POST /v1/queues/emails/redrive {"filter": "headers.region = 'eu'", "rate_max": 100}
    """
    return _state(await call.ask(REDRIVE_START, body.asked(queue, dry_run)))


@operation("GET /v1/queues/{queue}/redrive")
async def redrive_status(
    call: Call, queue: str, task: Annotated[str, Meta(description="the newest, if it is left out")] = ""
) -> RedriveView:
    """Ask how far a re-drive is.

    GET /v1/queues/emails/redrive
    """
    return _state(await call.look(REDRIVE_STATUS, RedriveTask(queue, task)))


@operation("DELETE /v1/queues/{queue}/redrive")
async def stop_redrive(
    call: Call, queue: str, task: Annotated[str, Meta(description="the newest, if it is left out")] = ""
) -> RedriveView:
    """Stop a re-drive. What was sent back stays there.

    DELETE /v1/queues/emails/redrive
    """
    return _state(await call.ask(REDRIVE_STOP, RedriveTask(queue, task)))


def _state(state: RedriveState) -> RedriveView:
    return RedriveView(**{name: getattr(state, name) for name in RedriveView.__struct_fields__})
