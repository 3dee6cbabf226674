"""Topics: what there is, and changing it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from runnel.client.admin import Admin, NewTopic
from runnel.client.metadata import TopicPartition
from runnel.client.positions import END, Bounds, From, Position, known_bounds
from runnel.client.trimming import plan_trim, trim
from runnel.cluster.config_rules import topic_defaults
from runnel.cluster.image import NO_LEADER, Topic
from runnel.doors.http.call import Call
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.payload import Instant, Partition, Whole, time_ms
from runnel.doors.http.problems import InvalidInput
from runnel.model.errors import PolicyViolation, ReadOnlyTopic, RetriableError, ViewSourceGone
from runnel.model.limits import CREATE_PARTITIONS_MAX
from runnel.model.topic_config import SETTINGS, field_name, shown

SettingValue = str | int | float | bool
Count = Annotated[int, Meta(ge=1, le=CREATE_PARTITIONS_MAX)]
DryRun = Annotated[bool, Meta(description="only say whether it could be done")]
Prefix = Annotated[str, Meta(description="names that begin so")]
After = Annotated[str, Meta(description="names behind this one")]
NamesMax = Annotated[int, Meta(ge=1, le=10_000)]


class TopicView(View, omit_defaults=False):
    name: str
    id: str
    partitions: int
    replicas: int
    internal: bool


class TopicsView(View, omit_defaults=False):
    topics: list[TopicView]
    more: bool  # ask again with after=NAME of the last one


@operation("GET /v1/topics")
async def list_topics(
    call: Call,
    prefix: Prefix = "",
    internal: Annotated[bool, Meta(description="also those that brokers keep their own state in")] = False,
    after: After = "",
    limit: NamesMax = 1_000,
) -> TopicsView:
    """List the topics by name.

    GET /v1/topics?limit=100
    """
    image = call.broker.image
    names = sorted(
        name
        for name in image.names
        if name.startswith(prefix) and name > after and (internal or not call.broker.topics.is_internal(name))
    )
    views = [_view(call, image.topic_named(name)) for name in names[:limit]]
    return TopicsView(topics=views, more=len(names) > limit)


def _view(call: Call, topic: Topic) -> TopicView:
    try:
        topic = call.broker.image.shown(topic)
    except ViewSourceGone:
        return TopicView(name=topic.name, id=str(topic.id), partitions=0, replicas=0, internal=False)
    return TopicView(
        name=topic.name, id=str(topic.id), partitions=len(topic.partitions),
        replicas=len(topic.partitions[0].replicas), internal=call.broker.topics.is_internal(topic.name),
    )  # fmt: skip


class CreateTopic(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=249)]
    partitions: Annotated[Count | None, Meta(description="as the broker is set up, if it is left out")] = None
    replicas: Annotated[Count | None, Meta(description="as the broker is set up, if it is left out")] = None
    settings: dict[str, SettingValue] = msgspec.field(default_factory=dict)


class CreatedView(View, omit_defaults=False):
    name: str
    id: str
    partitions: int
    replicas: int


@operation("POST /v1/topics", status=201)
async def create_topic(call: Call, body: CreateTopic, dry_run: DryRun = False) -> CreatedView:
    """Create a topic.

    POST /v1/topics {"name": "orders", "partitions": 3, "settings": {"retention.ms": 86400000}}
    """
    settings = {name: setting_text(value) for name, value in body.settings.items()}
    wanted = NewTopic(body.name, body.partitions or -1, body.replicas or -1, settings)
    [made] = await Admin(call.door.cluster()).create_topics([wanted], validate_only=dry_run)
    if not dry_run:
        await call.broker.until(lambda image: made.name in image.names)
    return CreatedView(name=made.name, id=str(made.id), partitions=made.partitions, replicas=made.replicas)


def setting_text(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class PartitionView(View, omit_defaults=False):
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    start_offset: int | None  # None: its leader does not answer
    end_offset: int | None


class SettingView(View, omit_defaults=False):
    name: str
    value: str
    default: bool  # the topic does not say
    doc: str


class TopicDetails(View, omit_defaults=False):
    name: str
    id: str
    internal: bool
    partitions: list[PartitionView]
    settings: dict[str, str]  # those that were set


@operation("GET /v1/topics/{topic}")
async def describe_topic(call: Call, topic: str) -> TopicDetails:
    """Describe a topic: its partitions, who leads them, what they hold, and what was set.

    GET /v1/topics/orders
    """
    found = call.broker.image.shown(call.broker.image.topic_named(topic))
    limits = await _limits(call, found)
    return TopicDetails(
        name=topic,
        id=str(found.id),
        internal=call.broker.topics.is_internal(topic),
        partitions=[_partition(found, number, limits.get(number)) for number in range(len(found.partitions))],
        settings=dict(found.config),
    )


def _partition(topic: Topic, number: int, limits: Bounds | None) -> PartitionView:
    partition = topic.partitions[number]
    return PartitionView(
        partition=number, leader=None if partition.leader == NO_LEADER else partition.leader,
        leader_epoch=partition.leader_epoch, replicas=list(partition.replicas), in_sync=list(partition.isr),
        start_offset=limits.start if limits else None, end_offset=limits.end if limits else None,
    )  # fmt: skip


async def _limits(call: Call, topic: Topic) -> dict[int, Bounds]:
    """What the partitions hold, of those that have a leader who knows it."""
    led = [number for number, each in enumerate(topic.partitions) if each.leader != NO_LEADER]
    try:
        found = await known_bounds(call.door.cluster(), [TopicPartition(topic.name, number) for number in led])
    except RetriableError:
        return {}
    return {where.partition: limits for where, limits in found.items()}


@operation("GET /v1/topics/{topic}/settings")
async def topic_settings(call: Call, topic: str) -> list[SettingView]:
    """List all settings of a topic, with what they mean.

    GET /v1/topics/orders/settings
    """
    broker = call.broker
    found = broker.image.topic_named(topic)
    defaults = topic_defaults(broker.image, broker.id, broker.config.topic)
    return [
        SettingView(
            name=name, value=found.config.get(name, shown(getattr(defaults, field_name(name)))),
            default=name not in found.config, doc=setting.doc,
        )
        for name, setting in SETTINGS.items()
    ]  # fmt: skip


class AlterTopic(Struct):
    settings: Annotated[dict[str, SettingValue | None], Meta(description="null: back to the default")]


@operation("PATCH /v1/topics/{topic}")
async def configure_topic(call: Call, topic: str, body: AlterTopic, dry_run: DryRun = False) -> None:
    """Change settings of a topic.

    PATCH /v1/topics/orders {"settings": {"retention.ms": 3600000, "retention.bytes": null}}
    """
    await Admin(call.door.cluster()).alter_config(
        topic,
        set_={name: setting_text(value) for name, value in body.settings.items() if value is not None},
        reset=[name for name, value in body.settings.items() if value is None],
        validate_only=dry_run,
    )


class AddPartitions(Struct):
    count: Annotated[Count, Meta(description="how many there are to be in all")]


@operation("POST /v1/topics/{topic}/partitions")
async def add_partitions(call: Call, topic: str, body: AddPartitions, dry_run: DryRun = False) -> None:
    """Give a topic more partitions.

    Keys go to other partitions then: messages of one key that are sent before and after have no order between them.

        POST /v1/topics/orders/partitions {"count": 6}
    """
    await Admin(call.door.cluster()).create_partitions(topic, body.count, validate_only=dry_run)
    if not dry_run:
        await call.broker.until(lambda image: len(image.topic_named(topic).partitions) >= body.count)


class TrimTo(Struct):
    to: Annotated[Literal["end", "offset", "time"], Meta(description="all before this place is removed")]
    offset: Annotated[Whole | None, Meta(description="with to=offset: the first one that stays")] = None
    time: Annotated[Instant | None, Meta(description="with to=time: what is older is removed")] = None
    partitions: Annotated[list[Partition] | None, Meta(description="these alone; all, if it is left out")] = None


class TrimmedPartition(View, omit_defaults=False):
    partition: int
    before: int  # where it began
    after: int  # where it begins now
    removed: int


class TrimmedView(View, omit_defaults=False):
    topic: str
    partitions: list[TrimmedPartition]


@operation("POST /v1/topics/{topic}/trim")
async def trim_topic(call: Call, topic: str, body: TrimTo, dry_run: DryRun = False) -> TrimmedView:
    """Remove the oldest messages of a topic, for ever.

    A place that lies before or behind what a partition holds means its first or its last message. Compacted topics are
    not trimmed.

        POST /v1/topics/orders/trim {"to": "time", "time": "2030-01-31T12:00:00Z"}
    """
    upto, found = _trim_position(body), call.broker.image.topic_named(topic)
    if found.is_view:
        raise ReadOnlyTopic(f"{topic!r} is a view, and has no messages of its own: trim its source")
    if call.broker.topics.is_internal(topic) or not call.broker.partitions.effective(found).deletes:
        raise PolicyViolation(f"{topic!r} is compacted: its messages can't be removed by offset")
    numbers = range(len(found.partitions)) if body.partitions is None else sorted(set(body.partitions))
    for number in numbers:
        call.broker.topics.partition_key(topic, number)
    cluster = call.door.cluster()
    steps = await plan_trim(cluster, [TopicPartition(topic, number) for number in numbers], upto)
    if not dry_run:
        await trim(cluster, steps)
    views = [
        TrimmedPartition(partition=step.where.partition, before=step.before, after=step.after, removed=step.removed)
        for step in steps
    ]
    return TrimmedView(topic=topic, partitions=views)


def _trim_position(upto: TrimTo) -> Position:
    match upto.to:
        case "end":
            return END
        case "offset" if upto.offset is not None:
            return Position(From.OFFSET, upto.offset)
        case "time" if upto.time is not None:
            return Position(From.TIME, time_ms(upto.time))
    raise InvalidInput(f"to={upto.to} needs the field {upto.to}")


@operation("DELETE /v1/topics/{topic}")
async def delete_topic(call: Call, topic: str) -> None:
    """Delete a topic with all its messages.

    DELETE /v1/topics/orders
    """
    await Admin(call.door.cluster()).delete_topics([topic])
    await call.broker.until(lambda image: topic not in image.names)
