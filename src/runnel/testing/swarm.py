"""What one seed draws before its run begins: the load, the machines, the network, and which faults there are.

Not every run has every fault: a fault that is always there hides what happens without it.
"""

from dataclasses import dataclass

from runnel.client.cluster import ClusterSettings
from runnel.client.fetcher import FetchSettings
from runnel.client.membership import GroupSettings
from runnel.client.sender import ACKS_ALL, ProducerSettings
from runnel.model.limits import KIB
from runnel.model.topic_config import TopicConfig
from runnel.testing.clock import SeededRng
from runnel.testing.network import Conditions

FAULTS = (
    "power",  # the power fails, now
    "power-at",  # the power fails in the middle of what the disk is asked to do
    "kill",
    "stop",  # an orderly stop
    "pause",  # SIGSTOP, SIGCONT
    "disk-full",
    "disk-error",
    "disk-slow",
    "reset",  # connections break
    "cut",  # a host does not reach another, one way or both
    "slow",  # latency grows
    "clock",  # the wall clock is set
    "client-kill",
)
TOPIC = "orders"


@dataclass(frozen=True, slots=True)
class Swarm:
    """One seed's choice."""

    load_s: float
    fault_every_s: float
    faults: tuple[str, ...]
    partitions: int
    producers: tuple[ProducerSettings, ...]
    readers: int
    members: int
    send_every_s: float
    value_bytes: int
    topic: TopicConfig
    conditions: Conditions
    disk_s: tuple[float, float]
    cold_chance: float
    lag_chance: float
    lag_s: float
    group: GroupSettings
    fetch: FetchSettings
    session_s: float  # how long a dead broker's session lives on

    @classmethod
    def draw(cls, rng: SeededRng) -> "Swarm":
        faults = tuple(kind for kind in FAULTS if rng.chance(0.45)) or (rng.pick(FAULTS),)
        slowest = rng.pick((0.001, 0.003, 0.02))
        return cls(
            load_s=rng.uniform(4, 10),
            fault_every_s=rng.uniform(0.2, 1.2),
            faults=faults,
            partitions=1 + rng.below(3),
            producers=tuple(
                _producer(rng, kind) for kind in ("idempotent", "idempotent", rng.pick(("all", "one", "none")))
            ),
            readers=1 + rng.below(2),
            members=1 + rng.below(3),
            send_every_s=rng.uniform(0.02, 0.12),
            value_bytes=rng.pick((20, 200, 1200)),
            topic=_topic(rng),
            conditions=Conditions(
                (0.0001, slowest), rng.pick((0.0, 0.1, 0.5)), rng.pick((4 * KIB, 64 * KIB, 256 * KIB))
            ),
            disk_s=(0.00005, rng.pick((0.001, 0.005, 0.03))),
            cold_chance=rng.pick((0.0, 0.1, 0.6)),
            lag_chance=rng.pick((0.0, 0.02, 0.2)),
            lag_s=rng.pick((0.0001, 0.002)),
            group=GroupSettings(
                session_timeout_ms=6_000,
                rebalance_timeout_ms=3_000 + rng.below(3_000),
                heartbeat_ms=500 + rng.below(1_000),
            ),
            fetch=FetchSettings(
                wait_ms=50 + rng.below(500),
                partition_bytes_max=rng.pick((500, 4_000, 100_000)),
                request_timeout_ms=3_000,
            ),
            session_s=rng.pick((0.0, 1.0, 6.0)),
        )


def _producer(rng: SeededRng, kind: str) -> ProducerSettings:
    return ProducerSettings(
        acks={"one": 1, "none": 0}.get(kind, ACKS_ALL),
        idempotent=kind == "idempotent",
        linger_ms=rng.pick((0, 5, 50)),
        batch_bytes=rng.pick((300, 2_000, 20_000)),
        in_flight_max=1 + rng.below(5),
        request_timeout_ms=2_000,
        delivery_timeout_ms=rng.pick((4_000, 20_000)),
        block_timeout_ms=5_000,
    )


def _topic(rng: SeededRng) -> TopicConfig:
    """Small segments, so that they roll often. (Through the Kafka door, smaller ones than 1 MiB can't be had.)"""
    return TopicConfig(
        segment_bytes=rng.pick((2_000, 20_000, 10_000_000)),
        segment_ms=rng.pick((1_500, 10_000_000)),
        index_interval_bytes=rng.pick((0, 200, 4_096)),
        retention_ms=-1,
        min_cleanable_dirty_ratio=rng.pick((0.0, 0.5)),
        message_timestamp_after_max_ms=10**9,
    )


CLUSTER_SETTINGS = ClusterSettings(
    connect_timeout_ms=1_500, request_timeout_ms=3_000, retry_timeout_ms=8_000, backoff_ms_min=20, backoff_ms_max=400
)
