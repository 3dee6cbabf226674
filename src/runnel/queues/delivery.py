"""The delivery of one queue over one partition: the verbs."""

from runnel.model.ids import Millis
from runnel.model.step import Step
from runnel.queues.values import (
    Aimed,
    Describe,
    Extend,
    Lease,
    LeavingId,
    OwnerGone,
    Purge,
    Rewind,
    Settle,
    Span,
    Standing,
    View,
)


class Delivery:
    """A Machine for broker/shard.py, with View as its view."""

    # --- loading and time
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one kept record."""
        raise NotImplementedError

    def wake(self, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: all that was kept is read. Connections of the time before are gone; what leaves goes on."""
        raise NotImplementedError

    def tick(self, now_ms: Millis, view: View, wall_ms: Millis) -> Step:
        """Do what is due."""
        raise NotImplementedError

    def next_deadline_ms(self) -> Millis | None:
        raise NotImplementedError

    # --- what to read (asked without a ticket, changes nothing that is kept)
    def wants(self, owner: str, view: View, now_ms: Millis, messages_max: int) -> list[Span]:
        """What to read and offer for `owner`, in the order of offsets; nothing if it can't have anything now.

        About as many messages as it may have. A span of a key-ordered queue may have to be offered first for its keys.
        """
        raise NotImplementedError

    def length(self, view: View) -> int:
        """Offsets that are not done, for max.length with overflow=refuse."""
        raise NotImplementedError

    def standing(self, offset: int) -> Standing:
        """How one offset stands (peek)."""
        raise NotImplementedError

    # --- verbs with an answer
    def lease(self, request: Lease, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Leased: what was offered and may be had; kept before it is answered."""
        raise NotImplementedError

    def settle(self, request: Settle, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Settled."""
        raise NotImplementedError

    def extend(self, request: Extend, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Settled."""
        raise NotImplementedError

    def purge(self, request: Purge, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Purged."""
        raise NotImplementedError

    def rewind(self, request: Rewind, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Rewound."""
        raise NotImplementedError

    def describe(self, request: Describe, ticket: object, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Answered with Described."""
        raise NotImplementedError

    # --- what is told
    def release_owner(self, news: OwnerGone, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """A connection ended: its leases end, its messages are ready again at once."""
        raise NotImplementedError

    def aim(self, news: Aimed, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Messages that were ordered to leave without a target have one."""
        raise NotImplementedError

    def left(self, news: LeavingId, view: View, now_ms: Millis, wall_ms: Millis) -> Step:
        """Messages that were ordered to leave are all in their target, committed."""
        raise NotImplementedError
