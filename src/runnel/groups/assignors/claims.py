"""What an assignor is given for each member."""

from dataclasses import dataclass
from typing import TypeAlias

from runnel.model.ids import TopicId
from runnel.model.partition_sets import Partitions

Assignment: TypeAlias = dict[str, Partitions]  # by member id


@dataclass(frozen=True, slots=True)
class Claimant:
    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]  # subscribed to; all of them exist
    owned: Partitions  # what it was meant to have so far

    @property
    def rank(self) -> str:
        """The same over restarts of a static member."""
        return self.instance_id or self.member_id
