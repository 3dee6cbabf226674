"""Where the replicas of new partitions go.

Rule 1: every broker that serves leads as many of them as any other, give or take one. Which begins is left to chance,
        so that many small topics spread as well as one large one.
Rule 2: a broker that does not serve now, but is registered, gets a replica only where those that serve are not enough.
        It fills its copy when it is back.
Rule 3: within that, the replicas of a partition lie on as many racks as there are; and within that, every broker holds
        about as many replicas as any other.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from runnel.model.errors import InvalidReplicationFactor
from runnel.model.ids import BrokerId
from runnel.model.seams import Rng

Replicas: TypeAlias = tuple[BrokerId, ...]


class Candidate(NamedTuple):
    """A broker that new replicas can be given to."""

    id: BrokerId
    rack: str | None = None
    serving: bool = True


class _Seat:
    """A broker while partitions are handed out."""

    __slots__ = ("absent", "as_follower", "as_leader", "broker", "leaders", "order", "rack", "replicas")

    def __init__(self, broker: Candidate) -> None:
        self.broker = broker.id
        self.absent = not broker.serving
        self.rack = broker.rack or f"broker {broker.id}"  # without racks, every broker stands for itself
        self.leaders = 0
        self.replicas = 0
        self.order = 0  # breaks ties; drawn anew now and then, so that the same brokers don't always go together
        self.rank()

    def rank(self) -> None:
        """Work out whose turn it is; the lowest comes first. Kept, since every partition looks at every broker."""
        self.as_leader = (self.absent, self.leaders, self.replicas, self.order)
        self.as_follower = (self.absent, self.replicas, self.order)


_AS_LEADER = attrgetter("as_leader")
_AS_FOLLOWER = attrgetter("as_follower")


def place(brokers: Iterable[Candidate], partitions: int, replication_factor: int, rng: Rng) -> list[Replicas]:
    """The replicas of each new partition, preferred leader first, which serves."""
    seats = [_Seat(broker) for broker in sorted(brokers)]
    _check_factor(replication_factor, seats)
    placed: list[Replicas] = []
    for number in range(partitions):
        if number % len(seats) == 0 and len(seats) > 1:
            _shuffle(seats, rng)
        placed.append(_one(seats, replication_factor))
    return placed


def _check_factor(replication_factor: int, seats: Sequence[_Seat]) -> None:
    serving = sum(not seat.absent for seat in seats)
    if serving and 1 <= replication_factor <= len(seats):
        return
    away = f", and {len(seats) - serving} more are registered, but away" if serving < len(seats) else ""
    raise InvalidReplicationFactor(
        f"replication factor {replication_factor} can't be reached: {serving} brokers serve{away}"
    )


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
            if follower.absent and not rest[0].absent:
                follower = rest[0]
            racks = racks | {follower.rack} if follower.rack not in racks else {follower.rack}
            rest.remove(follower)
            chosen.append(follower)
    for seat in chosen:
        seat.replicas += 1
        seat.rank()
    return tuple(seat.broker for seat in chosen)
