"""Who gets which partition, decided on the broker (KIP-848).

An assignor is a pure function of claimants and partition counts. Every partition of a topic that somebody subscribes to
goes to exactly one of its subscribers.
"""

from collections.abc import Callable, Iterable, Mapping

from runnel.groups.assignors.claims import Assignment, Claimant
from runnel.groups.assignors.range import assign_range
from runnel.groups.assignors.uniform import assign_uniform
from runnel.model.ids import TopicId

Assignor = Callable[[Iterable[Claimant], Mapping[TopicId, int]], Assignment]

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "Claimant"]
