"""The part of a simulation that has a queue: what a seed draws about it."""

from dataclasses import dataclass, replace

from runnel.client.metadata import TopicPartition
from runnel.testing.clock import SeededRng

JOBS = "jobs"  # the queue, and its topic
DEAD = "jobs.dead"
RETRY = "jobs.retry"
KEYS = 4


@dataclass(frozen=True, slots=True)
class Queueing:
    """What one seed draws about its queue."""

    senders: int
    workers: int
    partitions: int
    attempts_max: int
    lease_ms: int
    backoff_ms: int
    wait_max_ms: int  # who is to wait for longer is copied forward
    leases_max: int
    window_max: int
    keyed: bool
    single: bool

    @classmethod
    def draw(cls, rng: SeededRng) -> "Queueing":
        return cls(
            senders=1,
            workers=2 + rng.below(2),
            partitions=1 + rng.below(2),
            attempts_max=rng.pick((2, 3, 5)),
            lease_ms=rng.pick((1_000, 3_000, 10_000)),
            backoff_ms=rng.pick((0, 50, 500)),
            wait_max_ms=rng.pick((300, 60_000)),
            leases_max=rng.pick((5, 2_000)),
            window_max=rng.pick((10, 20_000)),
            keyed=rng.chance(0.4),
            single=rng.chance(0.15),
        )

    def in_place(self) -> "Queueing":
        """The same, but nobody is copied forward: where clocks are set, a copy's time may come long after the end."""
        return replace(self, wait_max_ms=60_000, window_max=20_000)

    @property
    def keys(self) -> list[TopicPartition]:
        return [TopicPartition(JOBS, number) for number in range(self.partitions)]

    @property
    def settings(self) -> dict[str, str]:
        """Those of the queue."""
        return {
            "topic": JOBS,
            "attempts.max": str(self.attempts_max),
            "lease.ms": str(self.lease_ms),
            "retry.backoff.ms": str(self.backoff_ms),
            "window.wait.max.ms": str(self.wait_max_ms),
            "leases.max": str(self.leases_max),
            "window.max": str(self.window_max),
            "order": "key" if self.keyed else "none",
            "consumers": "single" if self.single else "many",
        }
