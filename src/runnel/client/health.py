"""How a cluster is: what each broker leads and holds, and which partitions lack what. Pure: out of one Metadata answer.

A partition is under-replicated if a replica that belongs to it is not in sync; replicas that a reassignment is still
adding do not count. It is offline if it has no leader. min.insync.replicas is asked of who knows it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runnel.client.metadata import ClusterView, Partition, TopicPartition


class Share(NamedTuple):
    """What one broker has of the cluster."""

    leads: int = 0
    holds: int = 0
    behind: int = 0  # of those it holds, how many are not in sync
    preferred: int = 0  # of those it holds, how many it would lead if every broker was there


@dataclass(frozen=True, slots=True)
class Health:
    shares: Mapping[int, Share]  # by broker, also of those that are gone
    partitions: int
    under_replicated: tuple[TopicPartition, ...] = ()
    offline: tuple[TopicPartition, ...] = ()
    under_min: tuple[TopicPartition, ...] = ()  # acks=all is refused
    at_min: tuple[TopicPartition, ...] = ()  # one more loss, and it will be
    displaced: tuple[TopicPartition, ...] = ()  # led by another than the preferred leader, though that is in sync

    @property
    def well(self) -> bool:
        return not (self.under_replicated or self.offline or self.under_min)


@dataclass(slots=True)
class _Found:
    under_replicated: list[TopicPartition] = field(default_factory=list)
    offline: list[TopicPartition] = field(default_factory=list)
    under_min: list[TopicPartition] = field(default_factory=list)
    at_min: list[TopicPartition] = field(default_factory=list)
    displaced: list[TopicPartition] = field(default_factory=list)


def health_of(
    view: ClusterView,
    *,
    minimum: Mapping[str, int] | None = None,
    adding: Mapping[TopicPartition, tuple[int, ...]] | None = None,
) -> Health:
    """`minimum`: min.insync.replicas of each topic, where known; `adding`: replicas that are not there yet."""
    found = _Found()
    count = 0
    for where, p in partitions_of(view):
        count += 1
        wanted = [r for r in p.replicas if r not in (adding or {}).get(where, ())]
        _note(found, where, p, wanted, (minimum or {}).get(where.topic))
    return Health(
        _shares(view),
        count,
        tuple(found.under_replicated),
        tuple(found.offline),
        tuple(found.under_min),
        tuple(found.at_min),
        tuple(found.displaced),
    )


def partitions_of(view: ClusterView) -> Iterator[tuple[TopicPartition, Partition]]:
    for name, topic in sorted(view.topics.items()):
        for number, partition in topic.partitions.items():
            yield TopicPartition(name, number), partition


def _note(found: _Found, where: TopicPartition, p: Partition, wanted: list[int], minimum: int | None) -> None:
    in_sync = set(p.in_sync)
    if not in_sync.issuperset(wanted):
        found.under_replicated.append(where)
    if p.leader < 0:
        found.offline.append(where)
    elif p.replicas and p.leader != p.replicas[0] and p.replicas[0] in in_sync:
        found.displaced.append(where)
    if minimum is not None:
        needed = min(minimum, len(p.replicas))
        if len(in_sync) < needed:
            found.under_min.append(where)
        elif len(in_sync) == needed and needed < len(wanted):
            found.at_min.append(where)


def _shares(view: ClusterView) -> dict[int, Share]:
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    for _, p in partitions_of(view):
        leads[p.leader] += 1
        holds.update(p.replicas)
        behind.update(set(p.replicas) - set(p.in_sync))
        preferred.update(p.replicas[:1])
    ids = sorted({*view.brokers, *holds})
    return {n: Share(leads[n], holds[n], behind[n], preferred[n]) for n in ids}
