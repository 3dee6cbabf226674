"""What a verb hands back: records to append, and replies to send once those records are durable."""

from dataclasses import dataclass, field
from typing import TypeAlias

from runnel.model.errors import RunnelError

Record: TypeAlias = tuple[bytes, bytes | None]  # key and value; None is a tombstone


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. Every ticket that came in is answered exactly once."""

    ticket: object
    result: object  # a value of groups.values, or the RunnelError that the request gets instead

    @property
    def error(self) -> RunnelError | None:
        return self.result if isinstance(self.result, RunnelError) else None


@dataclass(slots=True)
class Step:
    records: list[Record] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
