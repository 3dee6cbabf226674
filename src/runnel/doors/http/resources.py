"""All resources of the door, in the order in which the docs show them. Importing one makes its operations."""

from types import ModuleType
from typing import Final

from runnel.doors.http import (
    cluster,
    dead_letters,
    deliveries,
    docs,
    events,
    groups,
    health,
    inbox,
    live,
    messages,
    metrics,
    queues,
    schedule,
    sockets,
    topics,
    webhooks,
)
from runnel.doors.http.operation import OPERATIONS, Operation

RESOURCES: Final[tuple[ModuleType, ...]] = (
    inbox, topics, messages, groups, queues, deliveries, dead_letters, schedule, events, sockets, live, webhooks,
    cluster, health, metrics, docs,
)  # fmt: skip


def operations() -> list[Operation]:
    order = {module.__name__.rpartition(".")[2]: place for place, module in enumerate(RESOURCES)}
    return sorted((each for each in OPERATIONS if each.tag in order), key=lambda each: order[each.tag])
