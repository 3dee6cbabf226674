"""Everything that the commands of `runnel cluster` want to know, asked at once."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runnel.client.admin import Disk
from runnel.client.balancing import Ground
from runnel.client.cluster import Cluster
from runnel.client.cluster_admin import ClusterAdmin, ClusterDescription, Reassignment
from runnel.client.health import Health, health_of, partitions_of
from runnel.client.metadata import ClusterView, TopicPartition


@dataclass(frozen=True, slots=True)
class Survey:
    description: ClusterDescription
    view: ClusterView
    health: Health
    disks: Mapping[int, Disk | None]  # None: that broker did not answer
    reassignments: Mapping[TopicPartition, Reassignment]
    rates: Mapping[int, int]  # bytes a second, of brokers that are held back

    @property
    def serving(self) -> list[int]:
        return [number for number, broker in self.description.brokers.items() if not broker.fenced]

    def size_on(self, broker: int) -> int | None:
        disk = self.disks.get(broker)
        return sum(disk.sizes.values()) if disk is not None else None

    def sizes(self) -> dict[TopicPartition, int]:
        """Bytes of one replica of each partition, where it is largest."""
        sizes: dict[TopicPartition, int] = {}
        for disk in self.disks.values():
            for where, size in (disk.sizes if disk else {}).items():
                sizes[where] = max(size, sizes.get(where, 0))
        return sizes

    def ground(self) -> Ground:
        """What plans start from: what moves already, or has no leader to copy from, stays as it will be."""
        racks = {number: self.description.brokers[number].address.rack for number in self.serving}
        held = {where: p.replicas for where, p in partitions_of(self.view)}
        held |= {where: moving.target for where, moving in self.reassignments.items() if where in held}
        fixed = {where for where, p in partitions_of(self.view) if p.leader < 0} | set(self.reassignments)
        return Ground(racks, held, self.sizes(), fixed)


async def survey(cluster: Cluster) -> Survey:
    admin = ClusterAdmin(cluster)
    view = await _own_partitions(admin, await admin.admin.view())
    description, disks, minimums, reassignments, rates = await asyncio.gather(
        admin.describe(), admin.disks(), _minimums(admin, view), admin.reassignments(), admin.copy_rates()
    )
    adding = {where: moving.adding for where, moving in reassignments.items()}
    health = health_of(view, minimum=minimums, adding=adding)
    return Survey(description, view, health, disks, reassignments, rates)


async def _own_partitions(admin: ClusterAdmin, view: ClusterView) -> ClusterView:
    """Without views, which have the partitions of other topics: nobody can move those twice."""
    views = await admin.views(view.topics) if view.topics else set()
    return replace(view, topics={name: topic for name, topic in view.topics.items() if name not in views})


async def _minimums(admin: ClusterAdmin, view: ClusterView) -> dict[str, int]:
    return await admin.minimums(view.topics) if view.topics else {}
