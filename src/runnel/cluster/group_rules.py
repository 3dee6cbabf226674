"""The settings of groups: of queues, and of share groups that nobody made a queue of (model/queue_config.py).

Rule 1: a queue is a group that has the setting DEFINED. Creating a queue gives it that, deleting takes all away, and
        nothing else makes or unmakes one.
Rule 2: Kafka's names of settings are taken, and kept under ours.
Rule 3: what is stored can be read: every change is checked with all that it comes to.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from runnel.cluster.config_rules import ConfigChange, ConfigOp, refuse_twice
from runnel.cluster.decision import Decision
from runnel.cluster.image import GROUP, ConfigKey, Delta, Image, Overrides, Topic
from runnel.model.errors import (
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    QueueAlreadyExists,
    RunnelError,
    UnknownQueue,
)
from runnel.model.queue_config import DEFINED, canonical, config_of, parse_setting

NAME_BYTES_MAX = 255  # a node of the store is named by it


class Purpose(Enum):
    ALTER = auto()  # a queue, or what may become a share group
    ALTER_QUEUE = auto()
    CREATE = auto()
    DELETE = auto()


class GroupResource(NamedTuple):
    name: str
    purpose: Purpose = Purpose.ALTER

    @property
    def key(self) -> ConfigKey:
        return GROUP + self.name


def alter(
    image: Image, resource: GroupResource, changes: Sequence[ConfigChange], *, incremental: bool
) -> Decision[Topic]:
    """The settings after a change; none are left of a group that has none of its own."""
    present = image.configs.get(resource.key)
    was = dict(present.values) if present else {}
    if error := _refusal(resource, DEFINED in was):
        raise error
    values = _altered(resource, was, changes, incremental)
    if values == was:
        return Decision(Delta())
    version = present.version + 1 if present else 0
    return Decision(Delta(configs={resource.key: Overrides(values, version) if values else None}))


def _refusal(resource: GroupResource, defined: bool) -> RunnelError | None:
    name = resource.name
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        return InvalidGroupId(f"the name of a group has 1 to {NAME_BYTES_MAX} bytes, not {len(name.encode())}")
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
