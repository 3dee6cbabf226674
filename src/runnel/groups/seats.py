"""Who may speak for a seat in a group: the same in both protocols."""

from collections.abc import Mapping
from typing import Final, TypeVar

from runnel.groups.values import Join
from runnel.model.errors import FencedInstance, UnknownMember
from runnel.model.seams import Rng
from runnel.wire.kafka.primitives import STRING_BYTES_MAX

TOKEN_BYTES: Final = 16
NAME_BYTES_MAX: Final = STRING_BYTES_MAX - len("-") - 2 * TOKEN_BYTES

M = TypeVar("M")


def new_member_id(request: Join, rng: Rng) -> str:
    """An id for a member that joins without one; as long as a string of the protocol at the most."""
    name = (request.instance_id or request.client_id).encode()[:NAME_BYTES_MAX].decode(errors="ignore")
    return f"{name}-{rng.token(TOKEN_BYTES).hex()}"


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
