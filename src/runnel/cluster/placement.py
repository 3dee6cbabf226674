"""Where the replicas of new partitions go.

Every broker leads as many of them as any other, give or take one; the replicas of a partition lie on as many racks as
there are; within that, every broker holds about as many replicas as any other. Which broker begins is left to chance,
so that many small topics spread as well as one large one.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

from runnel.cluster.image import Broker
from runnel.model.errors import InvalidReplicationFactor
from runnel.model.ids import BrokerId
from runnel.model.seams import Rng

Replicas: TypeAlias = tuple[BrokerId, ...]


class _Seat:
    """A broker while partitions are handed out."""

    __slots__ = ("as_follower", "as_leader", "broker", "leaders", "order", "rack", "replicas")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker.id
        self.rack = broker.rack or f"broker {broker.id}"  # without racks, every broker stands for itself
        self.leaders = 0
        self.replicas = 0
        self.order = 0  # breaks ties; drawn anew now and then, so that the same brokers don't always go together
        self.rank()

    def rank(self) -> None:
        """Work out whose turn it is; the lowest comes first. Kept, since every partition looks at every broker."""
        self.as_leader = (self.leaders, self.replicas, self.order)
        self.as_follower = (self.replicas, self.order)


_AS_LEADER = attrgetter("as_leader")
_AS_FOLLOWER = attrgetter("as_follower")


def place(brokers: Iterable[Broker], partitions: int, replication_factor: int, rng: Rng) -> list[Replicas]:
    """The replicas of each new partition, preferred leader first."""
    seats = [_Seat(broker) for broker in sorted(brokers, key=lambda broker: broker.id)]
    if not 1 <= replication_factor <= len(seats):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} can't be reached: {len(seats)} brokers serve"
        )
    placed: list[Replicas] = []
    for number in range(partitions):
        if number % len(seats) == 0 and len(seats) > 1:
            _shuffle(seats, rng)
        placed.append(_one(seats, replication_factor))
    return placed


def _shuffle(seats: Sequence[_Seat], rng: Rng) -> None:
    orders = list(range(len(seats)))
    for seat in seats:
        seat.order = orders.pop(rng.below(len(orders)))
        seat.rank()


def _one(seats: Sequence[_Seat], replication_factor: int) -> Replicas:
    leader = min(seats, key=_AS_LEADER)
    leader.leaders += 1
    chosen = [leader]
    racks = {leader.rack}
    if replication_factor > 1:
        rest = sorted(seats, key=_AS_FOLLOWER)
        rest.remove(leader)
        while len(chosen) < replication_factor:
            follower = next((seat for seat in rest if seat.rack not in racks), rest[0])
            racks = racks | {follower.rack} if follower.rack not in racks else {follower.rack}
            rest.remove(follower)
            chosen.append(follower)
    for seat in chosen:
        seat.replicas += 1
        seat.rank()
    return tuple(seat.broker for seat in chosen)
