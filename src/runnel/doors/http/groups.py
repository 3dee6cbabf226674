"""Consumer groups: looking at them, moving them, and consuming as a member without a client of one's own."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from runnel.broker.internal import GROUPS
from runnel.client.group_admin import GroupAdmin, Lag, Member, SeekStep
from runnel.client.metadata import TopicPartition
from runnel.client.positions import END, START, From, Position
from runnel.doors.http.call import Call
from runnel.doors.http.following import parse_place
from runnel.doors.http.messages import Limit, Value, WaitMs
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.payload import Instant, MessageView, Partition, Whole, body_of, time_ms
from runnel.doors.http.problems import InvalidInput
from runnel.model.errors import GroupNotFound
from runnel.model.members import CloseMember, CommitMember, OpenMember, PollMember


class GroupView(View, omit_defaults=False):
    group: str
    state: str
    kind: str  # classic, consumer or share


class GroupsView(View, omit_defaults=False):
    groups: list[GroupView]
    silent_brokers: list[int]  # whose groups are missing: they did not answer


@operation("GET /v1/groups")
async def list_groups(call: Call) -> GroupsView:
    """List the groups of all brokers.

    GET /v1/groups
    """
    admin = GroupAdmin(call.door.cluster())
    found = await admin.groups()
    return GroupsView(
        groups=[GroupView(group=each.name, state=each.state, kind=each.kind) for each in found],
        silent_brokers=admin.silent,
    )


class MemberView(View, omit_defaults=False):
    member: str
    client: str
    host: str
    partitions: list[tuple[str, int]]


class LagView(View, omit_defaults=False):
    topic: str
    partition: int
    committed: int | None
    start_offset: int
    end_offset: int
    lag: int
    member: str | None


class GroupDetails(View, omit_defaults=False):
    group: str
    state: str
    kind: str
    assignor: str
    coordinator: str
    lag: int  # of all partitions
    members: list[MemberView]
    partitions: list[LagView]


@operation("GET /v1/groups/{group}")
async def describe_group(call: Call, group: str) -> GroupDetails:
    """Describe a group: its members, and how far it is in each partition.

    GET /v1/groups/billing
    """
    if GROUPS not in call.broker.image.names:  # asking for a coordinator would make it
        raise GroupNotFound(f"group {group!r} does not exist")
    admin = GroupAdmin(call.door.cluster())
    found = await admin.describe(group)
    lags = await admin.lags(found)
    return GroupDetails(
        group=group, state=found.state, kind=found.kind, assignor=found.assignor, coordinator=found.coordinator,
        lag=sum(each.lag for each in lags),
        members=[_member(each) for each in found.members],
        partitions=[_lag(each) for each in lags],
    )  # fmt: skip


def _member(member: Member) -> MemberView:
    return MemberView(
        member=member.id,
        client=member.client_id,
        host=member.host,
        partitions=[(p.topic, p.partition) for p in member.partitions],
    )


def _lag(lag: Lag) -> LagView:
    return LagView(
        topic=lag.where.topic, partition=lag.where.partition, committed=lag.committed, start_offset=lag.limits.start,
        end_offset=lag.limits.end, lag=lag.lag, member=lag.member.id if lag.member else None,
    )  # fmt: skip


@operation("DELETE /v1/groups/{group}")
async def delete_group(call: Call, group: str) -> None:
    """Delete a group with all that it committed. It must have no members.

    DELETE /v1/groups/billing
    """
    await GroupAdmin(call.door.cluster()).delete(group)


class Seek(Struct):
    topic: str
    to: Annotated[Literal["start", "end", "offset", "time"], Meta(description="where to go on reading")]
    offset: Annotated[Whole | None, Meta(description="with to=offset")] = None
    time: Annotated[Instant | None, Meta(description="with to=time")] = None
    partitions: Annotated[list[Partition] | None, Meta(description="these alone; all, if it is left out")] = None


class StepView(View, omit_defaults=False):
    topic: str
    partition: int
    before: int | None
    after: int


class SeekView(View, omit_defaults=False):
    group: str
    partitions: list[StepView]


@operation("POST /v1/groups/{group}/seek")
async def seek_group(
    call: Call, group: str, body: Seek, dry_run: Annotated[bool, Meta(description="only say what would change")] = False
) -> SeekView:
    """Move a group to another place in a topic. It must have no members; a group that is not there is made.

    POST /v1/groups/billing/seek {"topic": "orders", "to": "start"}
    """
    topic = call.broker.image.topic_named(body.topic)
    numbers = list(range(len(topic.partitions))) if body.partitions is None else body.partitions
    for number in numbers:
        call.broker.topics.partition_key(body.topic, number)
    position = _position(body)
    admin = GroupAdmin(call.door.cluster())
    steps = await admin.plan_seek(group, {TopicPartition(body.topic, number): position for number in numbers})
    if not dry_run:
        await admin.seek(group, steps)
    return SeekView(group=group, partitions=[_step(step) for step in steps])


def _position(seek: Seek) -> Position:
    match seek.to:
        case "start":
            return START
        case "end":
            return END
        case "offset" if seek.offset is not None:
            return Position(From.OFFSET, seek.offset)
        case "time" if seek.time is not None:
            return Position(From.TIME, time_ms(seek.time))
    raise InvalidInput(f"to={seek.to} needs the field {seek.to}")


def _step(step: SeekStep) -> StepView:
    return StepView(topic=step.where.topic, partition=step.where.partition, before=step.before, after=step.after)


# --- consuming as a member


class NewMember(Struct):
    topics: Annotated[list[str], Meta(min_length=1, max_length=100)]
    begin: Annotated[Literal["start", "end"], Meta(description="where the group has committed nothing yet")] = "start"
    expires_ms: Annotated[
        Annotated[int, Meta(ge=1_000, le=3_600_000)], Meta(description="it leaves when nobody asks for so long")
    ] = 60_000


class OpenedView(View, omit_defaults=False):
    group: str
    member: str


@operation("POST /v1/groups/{group}/members", status=201)
async def join_group(call: Call, group: str, body: NewMember) -> OpenedView:
    """Become a member of a group.

    The broker keeps the seat: poll it, commit what was done, and end it. Any broker takes the calls; the seat ends with
    the broker that made it, and when nobody asks for it. What was not committed then goes to another member.

        POST /v1/groups/billing/members {"topics": ["orders"]}
    """
    for topic in body.topics:
        call.broker.image.topic_named(topic)
    opened = await call.broker.members.open(OpenMember(group, body.topics, body.begin == "end", body.expires_ms))
    return OpenedView(group=group, member=opened.id)


class PolledView(View, omit_defaults=False):
    number: int  # say after=NUMBER in the next poll, and nothing gets lost on the way
    partitions: list[tuple[str, int]]  # that the member has now
    messages: list[MessageView]


@operation("POST /v1/groups/{group}/members/{member}/poll")
async def poll_group(
    call: Call,
    group: str,
    member: str,
    limit: Limit = 100,
    wait_ms: WaitMs = 1_000,
    after: Annotated[
        Whole | None, Meta(description="number of the last answer that arrived: the next one follows it")
    ] = None,
    value: Value = "auto",
) -> PolledView:
    """Take the next messages as a member of a group.

    With after, an answer that was lost on the way comes again. Without it, its messages come again only if they are not
    committed and the member joins anew.

        POST /v1/groups/billing/members/1-5f2c/poll?wait_ms=1000
    """
    asked = PollMember(member, group, limit, wait_ms, -1 if after is None else after)
    with call.waits() as waits:
        polled = await call.broker.members.poll(asked, waits)
    views = [
        MessageView(
            topic=one.topic, partition=one.partition, offset=one.offset, timestamp_ms=one.timestamp_ms,
            **body_of(one.key, one.value, one.headers, value),
        )
        for one in polled.messages
    ]  # fmt: skip
    return PolledView(number=polled.number, partitions=polled.partitions, messages=views)


class Offset(Struct):
    topic: str
    partition: Partition
    offset: Annotated[Whole, Meta(description="the next one to read")]


class Commit(Struct):
    """Without either, all that was polled."""

    offsets: Annotated[list[Offset] | UnsetType, Meta(description="up to these")] = UNSET
    ids: Annotated[list[str] | UnsetType, Meta(description="up to the messages of a stream that have these ids")] = (
        UNSET
    )

    def told(self) -> tuple[tuple[str, int, int], ...] | None:
        if self.offsets is UNSET and self.ids is UNSET:
            return None
        offsets, ids = self.offsets or (), self.ids or ()
        return (*((one.topic, one.partition, one.offset) for one in offsets), *map(parse_place, ids))


@operation("POST /v1/groups/{group}/members/{member}/commit")
async def commit_group(call: Call, group: str, member: str, body: Commit) -> None:
    """Commit what a member has done: whoever reads for the group next goes on behind it.

    Of a partition that is there several times the furthest counts. An empty list commits nothing.

        POST /v1/groups/billing/members/1-5f2c/commit {"offsets": [{"topic": "orders", "partition": 0, "offset": 42}]}
    """
    await call.broker.members.commit(CommitMember(member, group, body.told()))


@operation("DELETE /v1/groups/{group}/members/{member}")
async def leave_group(call: Call, group: str, member: str) -> None:
    """Leave a group. Commit before: nothing is committed by leaving.

    DELETE /v1/groups/billing/members/1-5f2c
    """
    await call.broker.members.close_member(CloseMember(member, group))
