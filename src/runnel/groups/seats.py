"""Who may speak for a seat in a group: the same in both protocols."""

from collections.abc import Mapping
from typing import TypeVar

from runnel.model.errors import FencedInstance, UnknownMember

M = TypeVar("M")


def find_seated(
    members: Mapping[str, M], statics: Mapping[str, str], member_id: str, instance_id: str | None, group: str
) -> M:
    """The member that sent a request, or why it is none (any more). `statics` says who holds each instance id."""
    if instance_id is not None:
        holder = statics.get(instance_id)
        if holder is None:
            raise UnknownMember(f"no member has the instance id {instance_id!r}: join the group again")
        if holder != member_id:
            raise FencedInstance(f"instance {instance_id!r} is now held by another member: stop this one")
    member = members.get(member_id)
    if member is None:
        raise UnknownMember(f"{member_id!r} is no member of {group} (any more): join again")
    return member
