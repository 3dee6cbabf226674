"""Coordination: the seam between Runnel and whatever keeps its metadata.

A store is a small tree of nodes, as in ZooKeeper. The law that every body keeps:

1. `multi` is all or nothing, and durable when it returns. Operations see the effect of those before them.
2. A node's version is 0 when it is created, and grows by one with each Set. Every Set, Delete and Check names the
   version it expects: a writer that slept and woke up late changes nothing.
3. A parent must exist before its child is created; a node with children can't be deleted; an ephemeral node has none.
4. One Store is one session. Its ephemeral nodes vanish when the session ends, and not before.
5. A watch says "something changed, read again", never what. Several changes may be told as one.
6. A read sees all that this store wrote before. What others wrote may be seen late; `sync` catches up.

Sessions give liveness only. Safety comes from the versions in `multi`.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from runnel.model.errors import Fatal, RetriableError

PERSISTENT = 0  # the session of a node that belongs to none


class Node(NamedTuple):
    """A node as read."""

    value: bytes
    version: int
    session: int = PERSISTENT  # whose end removes it (ZooKeeper's ephemeralOwner)


class Create(NamedTuple):
    path: str
    value: bytes
    ephemeral: bool = False


class Set(NamedTuple):
    path: str
    value: bytes
    version: int


class Delete(NamedTuple):
    path: str
    version: int


class Check(NamedTuple):
    """Change nothing, but fail the whole multi unless the node has this version."""

    path: str
    version: int


Op: TypeAlias = Create | Set | Delete | Check


class Reason(Enum):
    """Why an operation can't be done."""

    EXISTS = "the node exists already"
    MISSING = "the node, or the parent of a new one, does not exist"
    VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    EPHEMERAL = "an ephemeral node can't have children"


class Conflict(RetriableError):
    """A multi changed nothing, because this operation did not fit what is stored. Read again, then decide again."""

    def __init__(self, index: int, op: Op, reason: Reason) -> None:
        super().__init__(f"{type(op).__name__} {op.path} (operation {index} of the multi) refused: {reason.value}")
        self.index = index
        self.op = op
        self.reason = reason


class OutcomeUnknown(RetriableError):
    """The connection broke while a multi was under way: it was done, or it was not. Read again to learn which."""


class StoreUnavailable(RetriableError):
    """The store can't be reached, or its session is over. Nothing of this call was done."""


class StoreDamaged(Fatal):
    """What is stored can't be read. Nothing may be concluded from it, least of all that data can be deleted."""


class Watch(Protocol):
    """Tells that a node, or the list of its children, changed."""

    async def changed(self) -> None:
        """Return once something changed since the watch was made, or since the last return."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """One session with the metadata. Paths are absolute and use "/"; the root "/" always exists."""

    @property
    def session(self) -> int:
        """The number that this session's ephemeral nodes carry; never PERSISTENT."""
        ...

    async def get(self, path: str) -> Node | None: ...

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        """Each of these nodes, in one trip; each as it was at some moment of the call, not all at the same one."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names right below a node, sorted; none if the node does not exist."""
        ...

    async def multi(self, ops: Sequence[Op]) -> None:
        """Do all, or raise Conflict (nothing done), StoreUnavailable (nothing done) or OutcomeUnknown."""
        ...

    async def watch(self, path: str) -> Watch:
        """Watch a path; the node need not exist yet. Make the watch first, then read: so nothing is missed."""
        ...

    async def sync(self) -> None:
        """Reads that follow see everything that was written before this call, by whomever."""
        ...

    async def session_lost(self) -> None:
        """Return once the session is over, or can't be proved to live: from then on another may have taken over."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once."""
        ...


def parent_of(path: str) -> str:
    """The path right above."""
    return path.rpartition("/")[0] or "/"
