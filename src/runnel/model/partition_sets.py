"""Sets of partitions as records keep them: by topic, in order, so that equal sets are equal bytes."""

from collections.abc import Iterable
from typing import TypeAlias
from uuid import UUID

from runnel.model.ids import PartitionKey, TopicId

Grouped: TypeAlias = tuple[tuple[UUID, tuple[int, ...]], ...]  # topics with their partitions, both in order
Partitions: TypeAlias = frozenset[PartitionKey]


def grouped(partitions: Iterable[PartitionKey]) -> Grouped:
    topics: dict[UUID, list[int]] = {}
    for topic_id, number in partitions:
        topics.setdefault(topic_id, []).append(number)
    return tuple((topic_id, tuple(sorted(topics[topic_id]))) for topic_id in sorted(topics))


def ungrouped(topics: Grouped) -> Partitions:
    return frozenset(PartitionKey(TopicId(topic_id), number) for topic_id, numbers in topics for number in numbers)
