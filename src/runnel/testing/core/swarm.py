"""What one seed draws before its run begins: the cluster, the load, the network, and which faults there are.

Not every run has every fault: a fault that is always there hides what happens without it.
"""

from dataclasses import dataclass
from random import Random  # noqa: TID251  (a seeded body of the seam)
from typing import Final

FAULTS: Final = (
    "kill",
    "bounce",  # killed, and back before its session ends
    "power",
    "power-all",
    "pause",
    "cut",  # two brokers, both ways
    "cut-one-way",
    "isolate",  # one broker from all others
    "store-cut",
    "slow-disk",
    "stop",  # in order: leadership moves first
    "transfer",  # to the preferred leader
    "reassign",
    "cancel",  # a reassignment
    "new-disk",
    "damage",  # one copy, seen at the next start
    "resign",  # a leader finds that its copy is damaged
    "retain",  # retention moves the start of a log
    "kill-controller",
    "imposter",  # a client fetches as if it were a replica, in a life that is not registered
)
MINIMUMS: Final = (1, 2)  # what a broker's file may say, in each of its lives, of topics that say nothing themselves
TRANSITIONS: Final = ("elected", "isr", "cut", "role", "admitted")
AT_TRANSITIONS: Final = ("kill", "bounce", "power", "pause", "isolate", "store-cut", "transfer", "stop", "cut-one-way")


@dataclass(frozen=True, slots=True)
class TopicSwarm:
    """One topic of one partition."""

    replicas: int
    minimum: int | None  # None: each broker goes by its own file
    syncs: bool
    unclean: bool

    @property
    def minimums(self) -> tuple[int, ...]:
        """What min.insync.replicas may be for its leaders and controllers."""
        return MINIMUMS if self.minimum is None else (self.minimum,)


@dataclass(frozen=True, slots=True)
class Swarm:
    """One seed's choice. Times are in virtual milliseconds."""

    brokers: int
    topics: tuple[TopicSwarm, ...]
    producers: tuple[tuple[int, bool], ...]  # acks, idempotent
    load_ms: float
    faults: tuple[str, ...]
    fault_every_ms: float
    at_transitions: tuple[str, ...]
    transition_chance: float
    reach_ms: float
    far: float
    lose: float
    double: float
    session_ms: float
    zombie_ms: float  # for how long a broker may not know that its session is over
    late_ms: float  # how late images may be
    late_writes: float  # how many of a controller's writes reach the store long after they were sent
    skip_images: float  # how often a broker goes to the newest image at once
    lag_ms: int
    pause_ms: float  # between a follower's questions, when there is nothing new
    patience_ms: float  # after which something is asked again
    tick_ms: float
    ask_again: float
    sync_ms: float
    stop_ms: float
    down_ms: float
    send_every_ms: tuple[float, float]
    burst: int
    delivery_ms: float
    paces: tuple[float, float]  # of the brokers' clocks

    @property
    def files_count(self) -> bool:
        """Whether any topic leaves its minimum to the files of the brokers."""
        return any(topic.minimum is None for topic in self.topics)

    @classmethod
    def draw(cls, rng: Random, only: tuple[str, ...] = ()) -> "Swarm":
        kinds = only or FAULTS
        brokers = rng.choice((3, 3, 4))
        faults = tuple(kind for kind in kinds if rng.random() < 0.45) or (rng.choice(kinds),)
        pace = rng.choice((0.0, 0.02, 0.3))
        return cls(
            brokers=brokers,
            topics=tuple(_topic(rng, brokers) for _ in range(rng.choice((1, 1, 2)))),
            producers=tuple(
                rng.choice(((-1, True), (-1, True), (-1, False), (1, True))) for _ in range(rng.randrange(2, 5))
            ),
            load_ms=rng.uniform(5_000, 12_000),
            faults=only or faults,
            fault_every_ms=rng.choice((150.0, 400.0, 900.0)),
            at_transitions=tuple(where for where in TRANSITIONS if rng.random() < 0.4),
            transition_chance=rng.choice((0.0, 0.05, 0.2)),
            reach_ms=rng.choice((1.0, 5.0, 40.0)),
            far=rng.choice((0.0, 0.02, 0.1)),
            lose=rng.choice((0.0, 0.0, 0.02, 0.1)),
            double=rng.choice((0.0, 0.05, 0.3)),
            session_ms=rng.choice((200.0, 600.0, 1_500.0)),
            zombie_ms=rng.choice((5.0, 200.0, 800.0)),
            late_ms=rng.choice((2.0, 30.0, 300.0)),
            late_writes=rng.choice((0.0, 0.0, 0.05, 0.3)),
            skip_images=rng.choice((0.0, 0.5, 1.0)),
            lag_ms=rng.choice((100, 400, 1_000)),
            pause_ms=rng.choice((5.0, 30.0, 150.0)),
            patience_ms=rng.choice((60.0, 200.0, 600.0)),
            tick_ms=rng.choice((30.0, 100.0, 250.0)),
            ask_again=rng.choice((0.2, 1.0)),
            sync_ms=rng.choice((1.0, 10.0, 60.0)),
            stop_ms=rng.choice((100.0, 1_000.0)),
            down_ms=rng.choice((50.0, 500.0, 2_500.0)),
            send_every_ms=rng.choice(((20.0, 60.0), (50.0, 200.0))),
            burst=rng.choice((1, 2, 5)),
            delivery_ms=rng.choice((1_500.0, 6_000.0)),
            paces=(1.0 - pace, 1.0 + pace),
        )


def _topic(rng: Random, brokers: int) -> TopicSwarm:
    replicas = rng.choice((2, 3, 3, 3)) if brokers == 3 else rng.choice((3, 3, 4))
    minimum, syncs, luck = rng.choice((1, 2, 2)), rng.random() < 0.8, rng.random()
    return TopicSwarm(replicas, None if luck > 0.85 else minimum, syncs, unclean=luck < 0.05)
