"""Requests that may be sent again under one key: what is kept of them (broker/requests.py)."""

from typing import Final, Literal
from uuid import UUID

from runnel.model.calls import Nothing, Value, Verb


class Target(Value, frozen=True, gc=False):
    """A partition that a request appends to, and an offset of it seen before the request was kept."""

    topic_id: UUID
    partition: int
    floor: int


class Entry(Value, frozen=True):
    """An entry under a key: first the claim of a request, later its answer, or that nothing of it was done."""

    kind: Literal["claim", "answer", "release"]
    digest: bytes  # of the request: another one must not use the same key
    targets: tuple[Target, ...] = ()
    answer: bytes = b""


class Claim(Value, frozen=True):
    partition: int  # of the topic that requests are kept in
    key: str
    entry: Entry
    timeout_ms: int


class Claimed(Value, frozen=True):
    """The first entry of the key, which may be the one of this claim, and the answer if there was one."""

    entry: Entry
    answer: bytes | None


class Answered(Value, frozen=True):
    partition: int
    key: str
    entry: Entry


class Release(Value, frozen=True):
    """A request under a claim that was given to it failed, and left nothing."""

    partition: int
    key: str
    digest: bytes


REQUEST_CLAIM: Final = Verb("request.claim", Claim, Claimed)
REQUEST_ANSWERED: Final = Verb("request.answered", Answered, Nothing)
REQUEST_RELEASE: Final = Verb("request.release", Release, Nothing)
