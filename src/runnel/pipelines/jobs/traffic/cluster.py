"""What the traffic job asks of the cluster: how far groups are, and how many partitions topics have.

Rule 1: a group that can't be asked now (it was deleted, or its coordinator moves) is left out of the sample; so is a
        broker that does not answer.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.group_admin import GroupAdmin
from runnel.model.errors import RunnelError, TopicAlreadyExists
from runnel.pipelines.jobs.traffic.records import Lag, lags_of

KEPT_MS: Final = 7 * 86_400_000
OUTPUT: Final = {"cleanup.policy": "compact,delete", "retention.ms": str(KEPT_MS)}  # keys have times in them: they age


async def make_output(cluster: Cluster, topic: str) -> None:
    """The topic of records, with one partition: they are few, and read in one go."""
    if topic in (await Admin(cluster).view([topic])).topics:
        return
    try:
        await Admin(cluster).create_topics([NewTopic(topic, 1, config=OUTPUT)])
    except TopicAlreadyExists:
        return  # somebody else was faster


async def partition_counts(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """How many partitions topics have; those that are gone are left out."""
    found = (await Admin(cluster).view(sorted(set(topics)))).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


async def sample_lags(cluster: Cluster) -> list[Lag]:
    """How far every group is behind, now."""
    admin, now = GroupAdmin(cluster), datetime.now(UTC)
    records: list[Lag] = []
    for group in await admin.groups():
        try:
            lags = await admin.lags(await admin.describe(group.name))
        except RunnelError:
            continue
        records += lags_of(group.name, [(lag.where.topic, lag.lag) for lag in lags], now)
    return records
