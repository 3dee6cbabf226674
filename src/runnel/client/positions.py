"""Where to begin reading a partition: words that are turned into offsets by asking the brokers."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from runnel.client.cluster import Cluster
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, fetch_committed, list_known_offsets, list_offsets


class From(Enum):
    START = "start"  # the number of messages after it
    END = "end"  # the number of messages before it
    OFFSET = "offset"  # this offset
    TIME = "time"  # the first message at or after this time, in ms since 1970; the end if there is none
    STORED = "stored"  # what the group committed, moved by the number; START where it committed nothing


class Position(NamedTuple):
    anchor: From
    number: int = 0


START, END, STORED = Position(From.START), Position(From.END), Position(From.STORED)


class Bounds(NamedTuple):
    """The offsets a partition holds: from `start` up to, but without, `end`."""

    start: int
    end: int


async def bounds(
    cluster: Cluster, partitions: list[TopicPartition], *, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, Bounds]:
    """What partitions hold; for READ_COMMITTED they end where the first open transaction begins."""
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation=isolation)
    return {where: Bounds(starts[where].offset, ends[where].offset) for where in partitions}


async def known_bounds(cluster: Cluster, partitions: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """What partitions hold, of those whose leaders know it."""
    starts = await list_known_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_known_offsets(cluster, dict.fromkeys(starts, LATEST))
    return {where: Bounds(starts[where].offset, end.offset) for where, end in ends.items()}


async def resolve(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Position],
    *,
    group: str | None = None,
    isolation: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """The offset each position means now. Relative ones stay within what the partition holds."""
    limits = await bounds(cluster, list(wanted), isolation=isolation)
    times = {where: p.number for where, p in wanted.items() if p.anchor is From.TIME}
    at_times = await list_offsets(cluster, times, isolation=isolation) if times else {}
    stored_at = [where for where, p in wanted.items() if p.anchor is From.STORED]
    stored = await fetch_committed(cluster, group, stored_at) if group is not None and stored_at else {}
    return {
        where: offset_of(
            position,
            limits[where],
            at_time=at_times[where].offset if where in at_times else -1,
            stored=stored[where].offset if where in stored else None,
        )
        for where, position in wanted.items()
    }


def offset_of(position: Position, limits: Bounds, *, at_time: int = -1, stored: int | None = None) -> int:
    """What a position means in a partition that holds these offsets."""
    match position.anchor:
        case From.START:
            return min(limits.start + position.number, limits.end)
        case From.END:
            return max(limits.end - position.number, limits.start)
        case From.TIME:
            return at_time if at_time >= 0 else limits.end
        case From.STORED:
            if stored is None:
                return limits.start
            return min(max(stored + position.number, limits.start), limits.end)
        case From.OFFSET:
            return position.number
