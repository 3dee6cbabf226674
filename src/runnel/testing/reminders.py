"""The part of a simulation that has a schedule: what a seed draws about it."""

from dataclasses import dataclass, replace

from runnel.client.metadata import TopicPartition
from runnel.testing.clock import SeededRng

REMINDERS = "reminders"  # the topic that messages wait for


@dataclass(frozen=True, slots=True)
class Reminding:
    """What one seed draws about messages that come later."""

    planners: int
    partitions: int
    delays_ms: tuple[int, ...]  # the longest: one of these
    changed: float  # the part of them that is cancelled or moved
    named: float  # the part of them that has a name, by which it is sent again until somebody says that it is kept

    @classmethod
    def draw(cls, rng: SeededRng) -> "Reminding":
        return cls(
            planners=1 + rng.below(2),
            partitions=1 + rng.below(2),
            delays_ms=rng.pick(((0, 100, 1_500), (300, 2_000), (3_000, 8_000))),
            changed=rng.pick((0.1, 0.4)),
            named=rng.pick((0.0, 0.3, 0.6)),
        )

    def nameless(self) -> "Reminding":
        """The same without names: where clocks are set, a window of ten minutes may begin or be over at any time."""
        return replace(self, named=0.0)

    @property
    def keys(self) -> list[TopicPartition]:
        return [TopicPartition(REMINDERS, number) for number in range(self.partitions)]
