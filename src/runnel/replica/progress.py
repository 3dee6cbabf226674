"""What a leader knows of the replicas of its partition, and what follows for acknowledgements, readers and the ISR.

Rule 1: a replica holds what lies below the offset it asks for; the leader's own copy, what its flush mode made durable.
Rule 2: the high watermark is what every member of the maximal ISR holds: the stored ISR, united with the one proposed.
        It never goes back.
Rule 3: it stands still while the stored ISR is below its minimum: whoever left then holds all of it (KIP-966). So it
        does while anybody is in the ELR, whatever this broker's minimum is: the controller's may be another, and it
        lets those lead.
Rule 4: one change of the ISR at a time. What became of it, only the image says: a shrink counts once it is stored.
Rule 5: a replica may join when it holds all below the high watermark, and below the beginning of this leader's epoch:
        the high watermark of a new leader can be an old one (KAFKA-7128).
Rule 6: what an earlier life of a broker said counts for nothing in its next one (KIP-903).
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from runnel.cluster.image import Partition as PartitionImage
from runnel.model.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Millis, Offset

NEVER: Final = Millis(-(2**62))


class Proposal(NamedTuple):
    """An ISR that the leader asks the controller for; done only if nothing changed meanwhile."""

    leader_epoch: Epoch
    partition_epoch: Epoch
    isr: tuple[tuple[BrokerId, Epoch], ...]  # each with the life of its broker that the leader means; NO_EPOCH: any

    @property
    def members(self) -> frozenset[BrokerId]:
        return frozenset(broker for broker, _ in self.isr)


class _Follower:
    """What one follower told in its present life."""

    __slots__ = ("broker_epoch", "caught_up_ms", "end_then", "fetched_ms", "held")

    def __init__(self, broker_epoch: Epoch, caught_up_ms: Millis) -> None:
        self.broker_epoch = broker_epoch
        self.held = NO_OFFSET
        self.caught_up_ms = caught_up_ms  # the last moment at which it had all there was
        self.fetched_ms = NEVER
        self.end_then = NO_OFFSET  # where the leader's log ended when it last asked


class Progress:
    """One partition in one leader epoch, as its leader sees it."""

    def __init__(
        self, me: BrokerId, image: PartitionImage, *,
        epoch_start: Offset, high_watermark: Offset, minimum: int, now_ms: Millis,
    ) -> None:  # fmt: skip
        self._me = me
        self._held = NO_OFFSET
        self.epoch_start = epoch_start
        self.high_watermark = high_watermark
        self.minimum = minimum
        self.isr = image.isr
        self._image = image
        self._proposed: Proposal | None = None
        self._doubted: frozenset[BrokerId] = frozenset()  # proposed once; nobody knows whether it will be done
        self._maximal = frozenset(image.isr)
        # Who is in sync when an epoch begins has the whole lag time to show that it still is.
        self._followers = {
            replica: _Follower(NO_EPOCH, now_ms if replica in image.isr else NEVER)
            for replica in image.replicas
            if replica != me
        }

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        return self._maximal

    @property
    def proposed(self) -> Proposal | None:
        return self._proposed

    @property
    def needed(self) -> int:
        """How many have to be in sync: never more than there are replicas."""
        return min(self.minimum, len(self._image.replicas))

    @property
    def enough(self) -> bool:
        """Whether anything may be committed (rule 3)."""
        return len(self.isr) >= self.needed and not self._image.elr

    @property
    def overruled(self) -> bool:
        """Whether the controller alone says that too few are in sync: it goes by a higher minimum."""
        return len(self.isr) >= self.needed and bool(self._image.elr)

    @property
    def settled(self) -> bool:
        """Whether all that this leader found when its epoch began is committed: before, its high watermark may lag."""
        return self.high_watermark >= self.epoch_start

    def held_by(self, replica: BrokerId) -> Offset:
        """Where this replica's copy is known to reach; NO_OFFSET if it has not asked yet."""
        if replica == self._me:
            return self._held
        follower = self._followers.get(replica)
        return NO_OFFSET if follower is None else follower.held

    def lags(self, replica: BrokerId, now_ms: Millis, lag_ms_max: int) -> bool:
        follower = self._followers.get(replica)
        return follower is not None and now_ms - follower.caught_up_ms > lag_ms_max

    # --- what happens; each says whether the high watermark moved

    def own(self, held: Offset) -> bool:
        """The leader's own copy is durable up to here."""
        self._held = held
        return self._advance()

    def fetched(self, replica: BrokerId, broker_epoch: Epoch, offset: Offset, end: Offset, now_ms: Millis) -> bool:
        """A follower asks for what comes after `offset`, while the leader's log ends at `end`."""
        follower = self._followers.get(replica)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        if broker_epoch > follower.broker_epoch:
            caught_up = follower.caught_up_ms if follower.broker_epoch == NO_EPOCH else NEVER
            follower = self._followers[replica] = _Follower(broker_epoch, caught_up)
        if offset >= end:
            follower.caught_up_ms = now_ms
        elif offset >= follower.end_then > NO_OFFSET:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.held, follower.end_then, follower.fetched_ms = offset, end, now_ms
        return self._advance()

    def heard(self, replica: BrokerId, broker_epoch: Epoch, end: Offset, then_ms: Millis) -> None:
        """A follower asked at `then_ms`, and had nothing new to say of this partition, whose log ends at `end` now."""
        follower = self._followers.get(replica)
        if follower is not None and broker_epoch == follower.broker_epoch and follower.held >= end:
            follower.caught_up_ms = max(follower.caught_up_ms, then_ms)

    def see(self, image: PartitionImage) -> bool:
        """The image shows this partition anew, in the same leader epoch."""
        self._image = image
        self.isr = image.isr
        for gone in self._followers.keys() - set(image.replicas):
            del self._followers[gone]
        for replica in image.replicas:
            if replica != self._me and replica not in self._followers:
                self._followers[replica] = _Follower(NO_EPOCH, NEVER)
        if self._proposed is not None and self._proposed.partition_epoch < image.epoch:
            self._proposed, self._doubted = None, frozenset()
        return self._united()

    # --- the ISR

    def may_join(self, replica: BrokerId, brokers: Mapping[BrokerId, Epoch]) -> bool:
        """Whether a follower outside the ISR, alive as `brokers` says, holds all that a member must hold."""
        follower = self._followers.get(replica)
        if follower is None or replica in self.isr or brokers.get(replica, NO_EPOCH) != follower.broker_epoch:
            return False
        return follower.broker_epoch != NO_EPOCH and follower.held >= max(self.high_watermark, self.epoch_start)

    def propose(self, brokers: Mapping[BrokerId, Epoch], now_ms: Millis, lag_ms_max: int) -> Proposal | None:
        """The change of the ISR that is due, if one is and none is under way. `brokers`: who serves, in which life."""
        if self._proposed is not None:
            return None
        leaving = {replica for replica in self.isr if self.lags(replica, now_ms, lag_ms_max)}
        joining = {
            replica
            for replica in self._followers
            if self.may_join(replica, brokers) and not self.lags(replica, now_ms, lag_ms_max)
        }
        if not leaving and not joining:
            return None
        return self._ask(tuple(self._in_order(set(self.isr) - leaving | joining)))

    def resign(self) -> Proposal | None:
        """Ask for an ISR without the leader: its copy can't be trusted. None if nobody else could lead, or it did."""
        others = set(self.isr) - {self._me} or self._heir()
        asked = self._proposed is not None and self._me not in self._proposed.members
        return self._ask(tuple(self._in_order(others))) if others and not asked else None

    def _heir(self) -> set[BrokerId]:
        """One who is eligible, so has all that was committed, and who asked: it waits in vain for what is damaged."""
        eligible = self._in_order(set(self._image.elr))
        there = [member for member in eligible if self.held_by(member) >= self.high_watermark]
        return set(there[:1])

    def withdraw(self, proposal: Proposal) -> bool:
        """The controller refused: what was proposed will never be."""
        if self._proposed != proposal or self._doubted:
            return False
        self._proposed = None
        return self._united()

    def _ask(self, members: tuple[BrokerId, ...]) -> Proposal:
        isr = tuple((member, self._life_of(member)) for member in members)
        if self._proposed is not None:
            self._doubted |= self._proposed.members
        self._proposed = Proposal(self._image.leader_epoch, self._image.epoch, isr)
        self._united()
        return self._proposed

    def _life_of(self, member: BrokerId) -> Epoch:
        follower = self._followers.get(member)
        return NO_EPOCH if follower is None else follower.broker_epoch

    def _in_order(self, members: set[BrokerId]) -> Iterator[BrokerId]:
        return (replica for replica in self._image.replicas if replica in members)

    def _united(self) -> bool:
        stored = frozenset(self.isr)
        self._maximal = stored | self._proposed.members | self._doubted if self._proposed is not None else stored
        return self._advance()

    def _advance(self) -> bool:
        if not self.enough:
            return False
        lowest = min(self.held_by(member) for member in self._maximal)
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True
