"""Where a batch begins and ends. Pure: offsets in, offsets out.

Rule 1: a batch is two maps of offsets, written as Spark's Kafka source writes them ({"orders": {"0": 23}}); what lies
        between them is read, however often it is asked for.
Rule 2: a partition that is new is first named with the offset where it begins, and read by the next batch: so every
        range has a beginning that is kept, and a loss is known exactly.
Rule 3: limits are shared out by backlog; every partition with a backlog moves by one message at least: none starves.
Rule 4: a loss is a beginning below the first offset that is kept, a log that ends before a beginning, or a partition
        that is gone or another than it was. Offsets that nobody holds (compaction, transactions) are no loss.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from runnel.client.metadata import TopicPartition
from runnel.client.positions import Bounds, From, Position, offset_of
from runnel.pipelines.connector.reading.edges import Edge
from runnel.pipelines.connector.reading.ranges import Lost, Range
from runnel.pipelines.errors import BadOption, NothingThere

K = TypeVar("K", bound=Hashable)

Offsets = dict[TopicPartition, int]
OffsetJson = dict[str, dict[str, int]]
Sizes = Callable[[Mapping[TopicPartition, Sequence[int]]], Mapping[TopicPartition, Sequence[int]]]

PROBES, ROUNDS = 64, 2  # offsets asked about at once, and how often: a limit is met to 1/4000 of the backlog

EXPIRED, REWOUND, REPLACED, GONE = "expired", "rewound", "replaced", "gone"


# --- as Spark keeps them
def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    """In one order: Spark compares what it keeps as text."""
    told: OffsetJson = {}
    for (topic, number), offset in sorted(offsets.items()):
        told.setdefault(topic, {})[str(number)] = offset
    return told


def from_json(told: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {TopicPartition(topic, int(n)): offset for topic, numbers in told.items() for n, offset in numbers.items()}


# --- edges
def placed(
    edge: Edge,
    bounds: Mapping[TopicPartition, Bounds],
    at_time: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, int],
) -> Offsets:
    """The offset that an edge means in each of these partitions; what a group stored counts even if it is gone."""
    found: Offsets = {}
    for where, position in edge.of(bounds).items():
        if position.anchor is From.TIME and edge.strict and at_time[where] < 0:
            raise NothingThere(
                f"{where} has no message at or after {position.number} ms ({edge.option}): choose an earlier time, or "
                "give startingOffsetsByTimestampStrategy=latest to begin at the end there"
            )
        if position.anchor is From.STORED:
            found[where] = stored.get(where, bounds[where].start)
        else:
            found[where] = offset_of(position, bounds[where], at_time=at_time.get(where, -1))
    return found


def check_end(edge: Edge, found: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]) -> None:
    """Refuse an end that is not there yet: who waits for it waits for ever."""
    for where, offset in found.items():
        if offset > bounds[where].end:
            raise BadOption(edge.option, f"{where} at {offset}", f"it ends at {bounds[where].end}: end there, or wait")


def times_of(wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """Which times have to be looked up."""
    return {where: position.number for where, position in wanted.items() if position.anchor is From.TIME}


# --- limits
def share(backlog: Mapping[K, int], limit: int) -> dict[K, int]:
    """A limit shared out in proportion to backlogs (all above 0): one at least for each, no more than each has.

    Together they are the limit, or all there is, or one for each if the limit is smaller than that.
    """
    total, count = sum(backlog.values()), len(backlog)
    if total <= limit:
        return dict(backlog)
    spare, rest = max(0, limit - count), max(1, total - count)
    shares = {key: 1 + (size - 1) * spare // rest for key, size in backlog.items()}
    left = max(limit, count) - sum(shares.values())
    by_remainder = sorted(backlog, key=lambda key: (backlog[key] - 1) * spare % rest, reverse=True)
    for key in by_remainder[:left]:
        shares[key] += 1
    return shares


def within_rows(starts: Mapping[TopicPartition, int], ends: Offsets, limit: int) -> Offsets:
    """The ends that so many offsets allow."""
    shares = share(_backlog(starts, ends), limit)
    return {where: starts[where] + shares[where] if where in shares else end for where, end in ends.items()}


def within_bytes(starts: Mapping[TopicPartition, int], ends: Offsets, limit: int, sizes: Sizes) -> Offsets:
    """The ends that so many bytes of the log allow. `sizes` tells how many bytes lie before offsets."""
    open_ = _backlog(starts, ends)
    told = sizes({where: (starts[where], ends[where]) for where in open_})
    base = {where: told[where][0] for where in open_}
    backlog = {where: max(1, told[where][1] - base[where]) for where in open_}
    if sum(backlog.values()) <= limit:
        return ends
    shares = share(backlog, limit)
    low = {where: starts[where] for where in open_}
    high = {where: ends[where] for where in open_}
    for _ in range(ROUNDS):
        probes = {where: spread(low[where], high[where], PROBES) for where in open_}
        told = sizes(probes)
        for where, points in probes.items():
            fits = bisect_right(told[where], base[where] + shares[where])
            low[where] = points[max(0, fits - 1)]
            high[where] = points[min(fits, len(points) - 1)]
    return ends | {where: max(low[where], starts[where] + 1) for where in open_}


def spread(first: int, end: int, count: int) -> list[int]:
    """At most so many offsets from `first` to `end`, both among them, evenly."""
    steps = min(count - 1, end - first)
    return [first + (end - first) * step // steps for step in range(steps + 1)] if steps else [first]


def _backlog(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
    return {where: end - starts[where] for where, end in ends.items() if end > starts[where]}


# --- what is new, and what is lost
def reachable(start: Offsets, ends: Mapping[TopicPartition, int], kept: Mapping[TopicPartition, int]) -> Offsets:
    """How far each partition of a query could go now: new ones to their beginning, none back."""
    known = {where: max(offset, ends.get(where, offset)) for where, offset in start.items()}
    return known | {where: kept[where] for where in ends if where not in start}


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two maps of offsets."""
    return [Range(w, start[w], end[w]) for w in sorted(end) if w in start and start[w] < end[w]]


def expired(wanted: Sequence[Range], kept: Mapping[TopicPartition, int]) -> list[Lost]:
    """What of these ranges lies before the first offset that is kept."""
    return [Lost(r.where, r.first, min(kept[r.where], r.end), EXPIRED) for r in wanted if r.first < kept[r.where]]


def left(wanted: Sequence[Range], kept: Mapping[TopicPartition, int]) -> list[Range]:
    """These ranges without what is lost of them."""
    rest = [r._replace(first=max(r.first, kept[r.where])) for r in wanted]
    return [r for r in rest if r.first < r.end]
