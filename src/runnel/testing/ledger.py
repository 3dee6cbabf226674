"""The part of a simulation that has transactions: the topic they write to, and what a seed draws about them."""

from dataclasses import dataclass

from runnel.client.metadata import TopicPartition
from runnel.client.sender import ProducerSettings
from runnel.testing.clock import SeededRng

LEDGER = "ledger"
ACCOUNTING = "accounting"  # the group that turns orders into entries


@dataclass(frozen=True, slots=True)
class Transacting:
    """What one seed draws about transactions."""

    transactors: int
    transformers: int
    partitions: int  # of the ledger
    modern: bool  # KIP-890: brokers add partitions, and every transaction has an epoch of its own
    settings: ProducerSettings
    publishers: int = 0  # that write batches through sinks
    rivals: bool = False  # all transactors have one transactional id: each takes it from the others
    deserts: float = 0.0  # how likely a transactor leaves one open under an id that nobody comes back to

    @classmethod
    def draw(cls, rng: SeededRng) -> "Transacting":
        transactors = rng.pick((0, 1, 2))
        return cls(
            transactors=transactors,
            transformers=1 + rng.below(2) if not transactors or rng.chance(0.5) else 0,
            partitions=2,
            modern=rng.chance(0.5),
            settings=ProducerSettings(
                linger_ms=rng.pick((0, 5)), batch_bytes=rng.pick((300, 20_000)), in_flight_max=1 + rng.below(5),
                request_timeout_ms=2_000, delivery_timeout_ms=rng.pick((4_000, 8_000)), block_timeout_ms=5_000,
                transaction_timeout_ms=rng.pick((2_000, 8_000)),
            ),
            rivals=transactors > 1 and rng.chance(0.3),
            deserts=rng.pick((0.0, 0.0, 0.1, 0.3)),
        )  # fmt: skip

    @property
    def keys(self) -> list[TopicPartition]:
        return [TopicPartition(LEDGER, number) for number in range(self.partitions)]
