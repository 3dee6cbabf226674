"""Removing the oldest messages of a topic: first what it would do, then the same."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runnel.client.admin import Admin
from runnel.client.cluster import Cluster
from runnel.client.metadata import TopicPartition
from runnel.client.positions import Position, bounds, resolve


class TrimStep(NamedTuple):
    """A partition: where it begins now, and where it would begin."""

    where: TopicPartition
    before: int
    after: int

    @property
    def removed(self) -> int:
        return self.after - self.before


async def plan_trim(cluster: Cluster, partitions: Sequence[TopicPartition], upto: Position) -> list[TrimStep]:
    """Plan to remove all before a position, which stays within what a partition holds."""
    limits = await bounds(cluster, list(partitions))
    offsets = await resolve(cluster, dict.fromkeys(partitions, upto))
    return [
        TrimStep(where, limits[where].start, min(max(offsets[where], limits[where].start), limits[where].end))
        for where in partitions
    ]


async def trim(cluster: Cluster, steps: Iterable[TrimStep]) -> None:
    """Carry out a plan."""
    targets = {step.where: step.after for step in steps if step.removed}
    if targets:
        await Admin(cluster).delete_records(targets)
