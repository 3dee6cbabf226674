"""What a verb of a state machine hands back: records to append, and what may happen once they are durable."""

from dataclasses import dataclass, field
from typing import TypeAlias

from runnel.model.errors import RunnelError

Record: TypeAlias = tuple[bytes, bytes | None]  # key and value; None is a tombstone


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. Every ticket that came in is answered exactly once."""

    ticket: object
    result: object  # a value of the machine's, or the RunnelError that the request gets instead

    @property
    def error(self) -> RunnelError | None:
        return self.result if isinstance(self.result, RunnelError) else None


@dataclass(slots=True)
class Step:
    records: list[Record] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    orders: list[object] = field(default_factory=list)  # what the shell is to do then; it tells the machine later
