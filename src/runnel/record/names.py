"""The names of messages in batches: what is looked at to append a message once.

Rule 1: a message's name is the value of the last of its headers `runnel-message-id`; without one it has none.
Rule 2: what belongs to a transaction has no name here: it may be aborted yet, and its producer sends nothing twice.
Rule 3: a batch in whose bytes no name can be is not decoded; one whose records can't be read has no names.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from runnel.model.errors import InvalidRecord
from runnel.model.headers import MESSAGE_ID
from runnel.model.seams import Buffer
from runnel.record.batch import CONTROL, TRANSACTIONAL, BatchHeader, headers
from runnel.record.compression import Compression
from runnel.record.records import Headers, decode, open_batch

NEEDLE = MESSAGE_ID.encode()


class Named(NamedTuple):
    """One message that has a name."""

    id: str
    offset: int
    timestamp_ms: int


def name_of(headers: Headers) -> str | None:
    """The name that these headers give a message."""
    for name, value in reversed(headers):
        if name == MESSAGE_ID:
            return None if value is None else str(value, "utf-8", "replace")
    return None


def named(
    batches: Buffer, pass_over: Callable[[BatchHeader, InvalidRecord], None], start: int = 0, needle: bytes = NEEDLE
) -> Iterator[Named]:
    """The messages with names in whole batches, from an offset on, in order; `needle`: of batches that have this.

    `pass_over` is told of batches whose records can't be read.
    """
    view = memoryview(batches)
    for position, header in headers(view):
        if header.attributes & (TRANSACTIONAL | CONTROL) or header.last_offset < start:
            continue
        batch = view[position : position + header.size]
        try:
            found = decode(batch) if has(batch, needle) else ()
        except InvalidRecord as problem:
            pass_over(header, problem)
            continue
        for record in found:
            name = name_of(record.headers) if record.headers else None
            if name is not None and record.offset >= start:
                yield Named(name, record.offset, record.timestamp)


def has(batch: memoryview, needle: bytes) -> bool:
    """Whether these bytes stand anywhere in the records of a batch; of a compressed one too."""
    header = next(headers(batch))[1]
    if header.compression is Compression.NONE:
        return needle in bytes(batch)
    return needle in open_batch(batch)[1]
