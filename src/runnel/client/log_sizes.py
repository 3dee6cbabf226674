"""How many bytes of the logs lie before offsets: to cut work into equal parts, or to say how far behind somebody is."""

from collections.abc import Mapping, Sequence

from runnel.client.calls import call_until_done
from runnel.client.cluster import Cluster
from runnel.client.metadata import TopicPartition
from runnel.model.log_calls import LOG_SIZES, OFFSETS_MAX, SizesAsked, SizesOf


async def log_sizes(
    cluster: Cluster, offsets: Mapping[TopicPartition, Sequence[int]], *, timeout_ms: int | None = None
) -> dict[TopicPartition, list[int]]:
    """For each offset of each partition: the bytes of the log from its start up to there, about."""
    out: dict[TopicPartition, list[int]] = {where: [] for where in offsets}
    for part in _parts(offsets):
        request = SizesOf([SizesAsked(where.topic, where.partition, list(some)) for where, some in part])
        answer = await call_until_done(cluster, LOG_SIZES, request, timeout_ms=timeout_ms)
        for (where, _), sizes in zip(part, answer.places, strict=True):
            out[where] += sizes
    return out


def _parts(offsets: Mapping[TopicPartition, Sequence[int]]) -> list[list[tuple[TopicPartition, Sequence[int]]]]:
    """As many as one call may ask for."""
    parts: list[list[tuple[TopicPartition, Sequence[int]]]] = [[]]
    room = OFFSETS_MAX
    for where, some in offsets.items():
        for at in range(0, len(some), OFFSETS_MAX):
            piece = some[at : at + OFFSETS_MAX]
            if len(piece) > room:
                parts.append([])
                room = OFFSETS_MAX
            parts[-1].append((where, piece))
            room -= len(piece)
    return [part for part in parts if part]
