"""What receivers ask of an outlet, and what they get: messages with their leases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runnel.broker.offers import Passes
from runnel.queues.values import Granted, Leased
from runnel.record.records import Record


class Want(NamedTuple):
    """What one receiver asks for."""

    owner: str
    messages_max: int
    bytes_max: int
    lease_ms: int | None = None
    passes: Passes | None = None  # the receiver's own filter: what does not pass stays for others
    whole_batches: bool = False  # rather more messages than part of a batch
    bound: bool = False  # to a connection, and to this leader, even if the lease ends at a moment
    filter: str = ""  # the text of `passes`
    one: bool = True  # whatever its size, if there is no room for more


class Taken(NamedTuple):
    """A message that was leased."""

    record: Record
    attempt: int


class Haul(NamedTuple):
    """What one receiver gets."""

    messages: Sequence[Taken]
    generation: int = 0
    until_ms: int = 0


class Lot(NamedTuple):
    """What one receiver gets who takes batches: which of their messages are its own."""

    records: bytes | memoryview = b""
    grants: Sequence[Granted] = ()
    until_ms: int = 0


@dataclass(slots=True)
class Refusals:
    """What one outlet had no room for since it was opened: for those who watch, so that nobody has to guess."""

    messages: int = 0  # that were sent while the queue was as long as it may be (max.length); each try counts
    looks: int = 0  # of receivers with a filter, which end where the queue can leave out no more (window.max)


def haul_of(leased: Leased, found: Sequence[Record]) -> Haul:
    """The messages that were granted, out of those that were offered; both are in order."""
    by_offset = {record.offset: record for record in found}
    taken = [
        Taken(by_offset[offset], grant.attempt)
        for grant in leased.grants
        for offset in range(grant.first, grant.last + 1)
        if offset in by_offset
    ]
    return Haul(taken, leased.generation, leased.until_ms)
