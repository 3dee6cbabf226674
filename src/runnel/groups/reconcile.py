"""From what a member has to what it shall have, one safe step at a time (KIP-848).

Rule: a partition is given to its new owner only after the old one has given it up. A member that must give something
up stays in its epoch until it says that it did; only then does it get anything new.

                       must give up, and still has it
    STABLE, UNRELEASED ------------------------------> UNREVOKED --has given it up--+
         ^                                                                         |
         +---- all of the target, or (UNRELEASED) what of it is free <-------------+
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runnel.groups.records import CurrentRecord, MemberState
from runnel.model.ids import PartitionKey
from runnel.model.partition_sets import Partitions, grouped, ungrouped

NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has, and where it stands."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING  # told to give up; nobody else may have it yet
    earlier: Mapping[PartitionKey, int] = field(default_factory=dict)  # the epoch of what it had before this epoch

    @property
    def held(self) -> Partitions:
        return self.assigned | self.revoking if self.revoking else self.assigned

    def since(self, partition: PartitionKey) -> int:
        """The epoch in which an assigned partition was given to the member."""
        return self.earlier.get(partition, self.epoch)

    @classmethod
    def of_record(cls, record: CurrentRecord) -> "Current":
        by_epoch = {epoch: ungrouped(topics) for epoch, topics in record.assigned}
        earlier = {each: epoch for epoch, part in by_epoch.items() if epoch != record.epoch for each in part}
        assigned = NOTHING.union(*by_epoch.values())
        state, revoking = MemberState(record.state), ungrouped(record.revoking)
        return cls(record.epoch, record.previous_epoch, state, assigned, revoking, earlier)

    def record(self) -> CurrentRecord:
        by_epoch: dict[int, list[PartitionKey]] = {}
        for partition in self.assigned:
            by_epoch.setdefault(self.since(partition), []).append(partition)
        assigned = tuple((epoch, grouped(part)) for epoch, part in sorted(by_epoch.items()))
        return CurrentRecord(self.epoch, self.previous_epoch, self.state, assigned, grouped(self.revoking))

    def moved(self, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions = NOTHING) -> "Current":
        previous = self.epoch if epoch != self.epoch else self.previous_epoch
        kept = {partition: self.since(partition) for partition in assigned & self.assigned}
        earlier = {partition: since for partition, since in kept.items() if since != epoch}
        return Current(epoch, previous, state, assigned, revoking, earlier)


def reconcile(
    current: Current,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[PartitionKey], bool],
) -> Current:
    """The next step of a member; `owned` is what it says it has (None: it did not say)."""
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            return current
        case MemberState.UNREVOKED if _still_has(current.revoking, owned):
            return current
        case MemberState.UNREVOKED:
            return _advance(current, current.epoch + 1, target, target_epoch, owned, is_free)
    return _advance(current, current.epoch, target, target_epoch, owned, is_free)


def _advance(
    current: Current,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[PartitionKey], bool],
) -> Current:
    kept = current.assigned & target
    surplus = current.assigned - target
    if surplus and _still_has(surplus, owned):
        return current.moved(epoch, MemberState.UNREVOKED, kept, surplus)
    wanted = target - kept
    gained = frozenset(partition for partition in wanted if partition in current.revoking or is_free(partition))
    state = MemberState.STABLE if len(gained) == len(wanted) else MemberState.UNRELEASED
    return current.moved(target_epoch, state, kept | gained)


def _still_has(partitions: Partitions, owned: Partitions | None) -> bool:
    return owned is None or not owned.isdisjoint(partitions)
