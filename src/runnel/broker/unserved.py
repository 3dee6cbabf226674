"""The shards of coordinators that this broker leads and does not serve, for /ready and the metrics.

Rule 1: a shard fails when its log or its index can't be read for a reason that lies on this broker.
Rule 2: a shard waits while it is read for the first time, and while brokers are missing that have to have its log. No
        other broker would serve it any better.
"""

from typing import Final, NamedTuple

from runnel.model.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, RequestTimedOut

OF_OTHERS: Final = (NotEnoughReplicas, NotEnoughReplicasAfterAppend, RequestTimedOut)


class Unserved(NamedTuple):
    """A partition of a coordinator's topic; without an error nothing is known to be wrong with it."""

    topic: str
    number: int
    error: BaseException | None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def why(self) -> str:
        return "it is being read" if self.error is None else str(self.error) or repr(self.error)

    @property
    def fails(self) -> bool:
        """Rule 1."""
        return self.error is not None and not isinstance(self.error, OF_OTHERS)
