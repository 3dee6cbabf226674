"""The settings of groups: of queues, and of share groups that nobody made a queue of (model/queue_config.py).

Rule 1: a queue is a group that has the setting DEFINED. Creating a queue gives it that, deleting takes all away, and
        nothing else makes or unmakes one.
Rule 2: Kafka's names of settings are taken, and kept under ours.
Rule 3: what is stored can be read: every change is checked with all that it comes to.
Rule 4: a queue has a number that no other ever had, whatever its name: what it keeps is known by it. And it is noted
        with how many partitions its topic was given to it: what is added later was never anybody else's.
Rule 5: a queue is deleted in two steps. First it is defined no more, and there is a note of what has to go with it;
        the note is taken away when all that has gone. In between its name is nobody's.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

from runnel.cluster.config_rules import ConfigChange, ConfigOp, refuse_twice
from runnel.cluster.decision import Decision
from runnel.cluster.image import GROUP, NOTE, ConfigKey, Delta, Image, Overrides, Topic
from runnel.model.errors import (
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    QueueAlreadyExists,
    QueueBeingDeleted,
    RunnelError,
    UnknownQueue,
)
from runnel.model.ids import TopicId
from runnel.model.queue_config import DEFINED, canonical, config_of, parse_setting

MADE = NOTE + "made"  # the number of a queue: the version of the image in which it was created
BEGAN = NOTE + "began"  # the id of its topic, and how many partitions that had
DELETING = NOTE + "deleting"  # the number of a queue that is being deleted, and the ids of the topics that go with it
NAME_BYTES_MAX = 255  # a node of the store is named by it
NOTHING = Overrides(version=-1)


class Purpose(Enum):
    ALTER = auto()  # a queue, or what may become a share group
    ALTER_QUEUE = auto()
    CREATE = auto()
    DELETE = auto()
    DELETED = auto()  # all that it kept is gone


class GroupResource(NamedTuple):
    name: str
    purpose: Purpose = Purpose.ALTER
    topics: tuple[TopicId, ...] = ()  # that are deleted with a queue

    @property
    def key(self) -> ConfigKey:
        return GROUP + self.name


class Began(NamedTuple):
    """The topic that a queue was given, and the partitions that it had then."""

    topic_id: TopicId
    partitions: int


class Deleting(NamedTuple):
    """What is left to do of a queue that is being deleted."""

    made: int
    topics: tuple[TopicId, ...]


def made_of(notes: Mapping[str, str]) -> int:
    """The number of a queue; 0 for what is none, and for one that an earlier Runnel made."""
    return int(notes.get(MADE, "0"))


def began_of(notes: Mapping[str, str]) -> Began | None:
    if BEGAN not in notes:
        return None
    topic_id, _, partitions = notes[BEGAN].partition("/")
    return Began(TopicId(UUID(topic_id)), int(partitions))


def deleting_of(notes: Mapping[str, str]) -> Deleting | None:
    if DELETING not in notes:
        return None
    made, *topics = notes[DELETING].split(",")
    return Deleting(int(made), tuple(TopicId(UUID(topic_id)) for topic_id in topics))


def alter(
    image: Image, resource: GroupResource, changes: Sequence[ConfigChange], *, incremental: bool
) -> Decision[Topic]:
    """The settings after a change; none are left of a group that has none of its own."""
    present = image.configs.get(resource.key, NOTHING)
    was = dict(present.values)
    if error := _refusal(resource, present):
        raise error
    values = _altered(resource, was, changes, incremental)
    notes = _noted(image, resource, present, values)
    if values == was and notes == present.notes:
        return Decision(Delta())
    after = Overrides(values, present.version + 1, notes) if values or notes else None
    return Decision(Delta(configs={resource.key: after}))


def _noted(image: Image, resource: GroupResource, present: Overrides, values: Mapping[str, str]) -> dict[str, str]:
    """Rules 4 and 5."""
    notes = dict(present.notes)
    match resource.purpose:
        case Purpose.DELETED:
            notes.pop(DELETING, None)
            return notes
        case Purpose.DELETE:
            return {DELETING: ",".join(map(str, (made_of(notes), *resource.topics)))}
        case Purpose.CREATE:
            notes = {MADE: str(image.version + 1)}
    if DEFINED in values and _topic_of(resource.name, values) != _topic_of(resource.name, present.values):
        topic = image.topic(_topic_of(resource.name, values))
        notes.pop(BEGAN, None)
        if topic is not None:
            notes[BEGAN] = f"{topic.id}/{len(topic.partitions)}"
    return notes


def _topic_of(name: str, values: Mapping[str, str]) -> str:
    return config_of(frozenset(values.items())).topic_of(name) if DEFINED in values else ""


def _refusal(resource: GroupResource, present: Overrides) -> RunnelError | None:
    name, defined = resource.name, DEFINED in present.values
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        return InvalidGroupId(f"the name of a group has 1 to {NAME_BYTES_MAX} bytes, not {len(name.encode())}")
    if DELETING in present.notes and resource.purpose is not Purpose.DELETED:
        return QueueBeingDeleted(f"queue {name!r} is being deleted: wait a moment, then try again")
    if resource.purpose is Purpose.CREATE and defined:
        return QueueAlreadyExists(f"queue {name!r} exists already: alter it, or choose another name")
    if resource.purpose in (Purpose.DELETE, Purpose.ALTER_QUEUE) and not defined:
        return UnknownQueue(f"queue {name!r} does not exist: create it first")
    return None


def _altered(
    resource: GroupResource, was: dict[str, str], changes: Sequence[ConfigChange], incremental: bool
) -> dict[str, str]:
    if resource.purpose is Purpose.DELETE:
        return {}
    if resource.purpose is Purpose.DELETED:
        return was
    ours = [change._replace(name=canonical(change.name)) for change in changes]
    refuse_twice([change.name for change in ours])
    values = was if incremental else {name: value for name, value in was.items() if name == DEFINED}
    values = dict(values)
    for change in ours:
        _apply(change, values)
    if (DEFINED in values) != (DEFINED in was or resource.purpose is Purpose.CREATE):
        raise InvalidConfig(
            f"setting {DEFINED!r} is what makes {resource.name!r} a queue: create or delete the queue, then it is so"
        )
    config_of(frozenset(values.items()))
    return values


def _apply(change: ConfigChange, values: dict[str, str]) -> None:
    match change.op:
        case ConfigOp.DELETE:  # also of what is unknown: then there is nothing to do, as in Kafka
            values.pop(change.name, None)
        case ConfigOp.SET if change.value is not None:
            parse_setting(change.name, change.value)
            values[change.name] = change.value
        case ConfigOp.SET:
            raise InvalidRequest(f"setting {change.name} has no value: give one, or delete the setting")
        case _:
            raise InvalidConfig(
                f"setting {change.name} is not a list: it can be set or deleted, not added to or taken from"
            )
