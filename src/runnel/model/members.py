"""Members of consumer groups that a broker runs for those who can't: values and calls (broker/members.py)."""

from typing import Final

from runnel.model.calls import Nothing, Read, Value, Verb


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
