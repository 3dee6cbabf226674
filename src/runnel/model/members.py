"""Members of consumer groups that a broker runs for those who can't: values and calls (broker/members.py).

Such a member joins its group under a client id that names the broker's life: its coordinator knows by the metadata of
the cluster when the member is gone, however long its session would last.
"""

import re
from typing import Final

from runnel.model.calls import Nothing, Read, Value, Verb
from runnel.model.ids import BrokerId, Epoch, Life

HOSTED: Final = "runnel-door"  # the client id begins with it
_NAME: Final = re.compile(rf"{HOSTED}-(\d{{1,10}})-(\d{{1,19}})(?:-[0-9a-f]{{32}})?")


def client_id_of(life: Life) -> str:
    """The client id of all that a broker asks in the name of those who have no client."""
    return f"{HOSTED}-{life.broker}-{life.epoch}"


def host_of(name: str) -> Life | None:
    """The life of the broker that runs a member of this client id or member id; None if no broker does."""
    found = _NAME.fullmatch(name) if name.startswith(HOSTED) else None
    return None if found is None else Life(BrokerId(int(found[1])), Epoch(int(found[2])))


class OpenMember(Value, frozen=True):
    group: str
    topics: list[str]
    from_end: bool = False  # where a partition begins that the group has committed nothing of
    expires_ms: int = 60_000  # it leaves the group when nobody asks for it for so long


class Opened(Value, frozen=True):
    id: str


class PollMember(Value, frozen=True):
    id: str
    group: str
    messages_max: int = 100
    wait_ms: int = 0
    after: int = -1  # the number of the last answer that arrived; -1: nobody counts


class Polled(Value, frozen=True):
    number: int  # of this answer
    messages: list[Read]
    partitions: list[tuple[str, int]]  # that the member has now


class CommitMember(Value, frozen=True):
    id: str
    group: str
    offsets: tuple[tuple[str, int, int], ...] | None = None  # topic, partition, next offset; None: all that was polled


class CloseMember(Value, frozen=True):
    id: str
    group: str


MEMBER_POLL: Final = Verb("member.poll", PollMember, Polled, waits=True)
MEMBER_COMMIT: Final = Verb("member.commit", CommitMember, Nothing)
MEMBER_CLOSE: Final = Verb("member.close", CloseMember, Nothing)
