"""How much members say of themselves: it is kept, in memory and in the log, for as long as they are members.

Rule 1: what one member says is bounded, an assignment as well.
Rule 2: what all members of the groups of one shard say is bounded together. It is added up only when one of them says
        much: there are few of these.
"""

from collections.abc import Iterable
from typing import Final

from runnel.groups.classic import ClassicGroup
from runnel.groups.consumer import ConsumerGroup
from runnel.groups.share import ShareGroup
from runnel.groups.share_values import ShareHeartbeat
from runnel.groups.values import ConsumerHeartbeat, GroupConfig, Join, Sync
from runnel.model.errors import GroupFull, InvalidRequest
from runnel.model.limits import KIB

MUCH_BYTES: Final = 16 * KIB  # some five hundred topics


def check(
    request: Join | Sync | ConsumerHeartbeat | ShareHeartbeat,
    groups: Iterable[ClassicGroup | ConsumerGroup | ShareGroup], config: GroupConfig,
) -> None:  # fmt: skip
    """Refuse what is too much."""
    largest, total = _said(request)
    if largest > config.member_bytes_max:
        raise InvalidRequest(
            f"a member of group {request.group_id!r} says {largest} bytes of itself, and"
            f" {config.member_bytes_max} are allowed (group-member-bytes-max): subscribe to fewer topics"
        )
    if total < MUCH_BYTES:
        return
    held = sum(_held(group) for group in groups)
    if held + total > config.said_bytes_max:
        raise GroupFull(
            f"the members of the groups beside {request.group_id!r} say {held} bytes of themselves, and"
            f" {config.said_bytes_max} are allowed (group-bytes-max): end some, or subscribe to fewer topics"
        )


def _said(request: Join | Sync | ConsumerHeartbeat | ShareHeartbeat) -> tuple[int, int]:
    """Bytes of the member that says the most, and of all."""
    match request:
        case Join():
            size = sum(len(each.name) + len(each.metadata) for each in request.protocols)
        case Sync():
            sizes = [len(assignment) for _, assignment in request.assignments]
            return max(sizes, default=0), sum(sizes)
        case ConsumerHeartbeat():
            size = _names(request.topic_names or ()) + len(request.topic_regex or "")
        case ShareHeartbeat():
            size = _names(request.topic_names or ())
    return size, size


def _held(group: ClassicGroup | ConsumerGroup | ShareGroup) -> int:
    match group:
        case ClassicGroup():
            return sum(
                len(member.assignment) + sum(len(each.metadata) for each in member.protocols)
                for member in group.roster.members.values()
            )
        case ConsumerGroup():
            return sum(_names(member.record.topic_names) for member in group.members.values())
        case ShareGroup():
            return sum(_names(member.record.topic_names) for member in group.members.values())


def _names(names: Iterable[str]) -> int:
    return sum(map(len, names))
