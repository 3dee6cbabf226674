"""What one seed draws before its run begins: the load, the machines, the network, and which faults there are.

Not every run has every fault: a fault that is always there hides what happens without it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from runnel.broker.config import Address, BrokerConfig
from runnel.client.cluster import ClusterSettings
from runnel.client.fetcher import FetchSettings
from runnel.client.membership import GroupSettings
from runnel.client.sender import ACKS_ALL, ProducerSettings
from runnel.model.limits import KIB
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.testing.clock import SeededRng
from runnel.testing.jobs import Queueing
from runnel.testing.ledger import ACCOUNTING, Transacting
from runnel.testing.network import Conditions
from runnel.testing.reminders import Reminding

FAULTS: tuple[str, ...] = (
    "power",  # the power of one broker fails, now
    "power-at",  # the same in the middle of what the disk is asked to do
    "power-all",  # the power of every broker fails at once
    "kill",
    "kill-all",
    "stop",  # an orderly stop
    "pause",  # SIGSTOP, SIGCONT: of a broker or a client; a long one outlives the session
    "disk-full",
    "disk-error",
    "sync-lost",  # a sync fails, and what it was to make durable is lost
    "disk-slow",
    "reset",  # connections break
    "cut",  # a broker does not reach another or a client, one way or both
    "isolate",  # a broker reaches no other broker
    "ring",  # each broker misses one other
    "cut-store",  # a broker does not reach the store, or does not hear from it
    "slow",  # latency grows
    "clock",  # the wall clock is set
    "store-stall",  # the store has no leader for a while; who wrote does not know whether it did
    "expire",  # a session ends although its broker lives
    "elect",  # the preferred leaders take over
    "reassign",  # replicas move to other brokers; some moves are taken back
    "client-kill",
    "rot",  # bits flip, on one disk
)
AT_TRANSITIONS = (  # what strikes right after an election, a change of an ISR, a truncation, a roll
    "power", "kill", "pause", "cut", "isolate", "cut-store", "disk-slow", "expire", "elect", "stop",
)  # fmt: skip
POWER = ("power", "power-at", "power-all", "sync-lost")
BESIDE_POWER = (  # no broker ends by these: who lost what it never synced is alone with that
    "power", "reset", "cut", "isolate", "ring", "clock", "elect", "client-kill",
)  # fmt: skip
TOPIC = "orders"
GROUP, NEW_GROUP = "billing", "shipping"  # of the classic kind, and of that of KIP-848


@dataclass(frozen=True, slots=True)
class Swarm:
    """One seed's choice."""

    brokers: int
    replicas: int
    load_s: float
    fault_every_s: float
    faults: tuple[str, ...]
    transition_chance: float  # that something strikes right after a transition
    partitions: int
    producers: tuple[ProducerSettings, ...]
    readers: int
    members: int  # of the group of the classic kind
    new_members: int  # of the one of KIP-848
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
    session_s: float
    down_s: tuple[float, ...]  # how long a broker is away, at most: one of these
    replica_lag_ms: int
    replica_wait_ms: int
    replica_bytes_max: int
    transactions: Transacting | None = None
    queueing: Queueing | None = None
    reminding: Reminding | None = None
    drafts: bool = False  # a topic is deleted and made again meanwhile
    eager: bool = False  # producers send several batches before a broker knows them

    @classmethod
    def draw(cls, rng: SeededRng) -> "Swarm":
        brokers = rng.pick((1, 3, 3, 3, 3, 3, 3, 4))
        replicas = 1 if brokers == 1 else rng.pick((1, 2, 3, 3, 3, 3, 3, 3))
        slowest = rng.pick((0.001, 0.003, 0.02))
        session_s = rng.pick((1.5, 3.0, 6.0))
        members = rng.pick((0, 1, 2, 3))
        topic = _topic(rng, replicas)
        return cls(
            brokers=brokers,
            replicas=replicas,
            load_s=rng.uniform(6, 12),
            fault_every_s=rng.uniform(0.3, 1.0),
            faults=_faults(rng, topic),
            transition_chance=rng.pick((0.0, 0.1, 0.4)),
            partitions=1 + rng.below(2),
            producers=tuple(_producer(rng, kind) for kind in ("idempotent", rng.pick(("idempotent", "all", "one")))),
            readers=1,
            members=members,
            new_members=1 + rng.below(2) if not members or rng.chance(0.3) else 0,
            send_every_s=rng.uniform(0.05, 0.2),
            value_bytes=rng.pick((20, 200, 1200)),
            topic=topic,
            conditions=Conditions(
                (0.0001, slowest), rng.pick((0.0, 0.1, 0.5)), rng.pick((4 * KIB, 64 * KIB, 256 * KIB))
            ),
            disk_s=(0.00005, rng.pick((0.001, 0.005, 0.03))),
            cold_chance=rng.pick((0.0, 0.1, 0.6)),
            lag_chance=rng.pick((0.0, 0.02, 0.2)),
            lag_s=rng.pick((0.0001, 0.002)),
            group=GroupSettings(
                session_timeout_ms=6_000,
                rebalance_timeout_ms=rng.pick((1_000, 3_000, 6_000)),
                heartbeat_ms=rng.pick((500, 1_500, 3_000)),
            ),
            fetch=FetchSettings(
                wait_ms=100 + rng.below(500),
                partition_bytes_max=rng.pick((500, 4_000, 100_000)),
                request_timeout_ms=3_000,
            ),
            session_s=session_s,
            down_s=rng.pick(((0.3,), (0.3, 2.0), (0.3, 2.0, 2 * session_s))),
            replica_lag_ms=rng.pick((700, 2_000, 5_000)),
            replica_wait_ms=rng.pick((50, 200, 400)),
            replica_bytes_max=rng.pick((1_024, 100_000)),
            drafts=rng.chance(0.2),
            eager=rng.chance(0.3),
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Those that have members."""
        transforms = self.transactions is not None and self.transactions.transformers > 0
        return (GROUP,) * (self.members > 0) + (NEW_GROUP,) * (self.new_members > 0) + (ACCOUNTING,) * transforms

    def broker(self, number: int, address: Address) -> BrokerConfig:
        """The settings of one broker."""
        return BrokerConfig(
            data="data", kafka=address, http=None, broker_id=number, topic=self.topic,
            session_ms=int(self.session_s * 1000),
            group_partitions=2, transaction_partitions=2, queue_partitions=2,
            schedule_partitions=1 if self.reminding is None else 2,
            group_initial_delay_ms=50, housekeeping_ms=1_500, retention_check_ms=1_500,
            replica_lag_ms=self.replica_lag_ms, replica_fetch_wait_ms=self.replica_wait_ms,
            replica_fetch_bytes_max=self.replica_bytes_max, replica_fetchers=1 + (self.brokers > 3),
        )  # fmt: skip


def _faults(rng: SeededRng, topic: TopicConfig) -> tuple[str, ...]:
    """What is not synced may be lost with the power: then brokers lose it one at a time, and nothing else ends them.

    Nor do bits flip beside power losses: where the power takes the mark of what was synced, rot behind the checkpoint
    looks like a torn tail (docs/evidence/simulation.md).
    """
    kinds = FAULTS
    if topic.flush_mode is not FlushMode.COMMIT:
        kinds = BESIDE_POWER if rng.chance(0.5) else tuple(kind for kind in kinds if kind not in POWER)
    drawn = tuple(kind for kind in kinds if rng.chance(0.35)) or (rng.pick(kinds),)
    if "rot" not in drawn or set(POWER).isdisjoint(drawn):
        return drawn
    left_out = rng.pick((POWER, ("rot",)))
    return tuple(kind for kind in drawn if kind not in left_out)


def flush_mode_beside(faults: Collection[str]) -> FlushMode | None:
    """The flush mode that survives these faults together, if one alone does; None: whichever is drawn."""
    loses = not set(POWER).isdisjoint(faults)
    return FlushMode.COMMIT if loses and not set(faults) <= set(BESIDE_POWER) else None


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


def _topic(rng: SeededRng, replicas: int) -> TopicConfig:
    """Small segments, so that they roll often. (Through the Kafka door, smaller ones than 1 MiB can't be had.)"""
    return TopicConfig(
        flush_mode=rng.pick((FlushMode.COMMIT, FlushMode.COMMIT, FlushMode.COMMIT, FlushMode.OS, FlushMode.INTERVAL)),
        min_insync_replicas=min(rng.pick((1, 2, 2, 2)), replicas),
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
