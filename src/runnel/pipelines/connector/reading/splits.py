"""How what is read is cut into tasks. Pure.

Rule 1: pieces of a range follow each other without gap and overlap, and none is empty.
Rule 2: without options there is a task for each partition of a topic, as in Spark's Kafka source.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from runnel.client.metadata import TopicPartition
from runnel.pipelines.connector.reading.options import Splitting
from runnel.pipelines.connector.reading.plan import Sizes, share, spread
from runnel.pipelines.connector.reading.ranges import Range

POINTS_PER_PIECE = 8  # places where a range may be cut, for each piece that is wanted of it
POINTS_MAX = 65_536  # of one range: thousands of tasks, which is more than Spark bears


def split(ranges: Sequence[Range], splitting: Splitting, sizes: Sizes) -> list[Range]:
    """The ranges, cut as the options say. `sizes` tells how many bytes lie before offsets; it is asked if need be."""
    if splitting.bytes_max is not None and ranges:
        ranges = _by_bytes(ranges, splitting.bytes_max, sizes)
    counts = dict.fromkeys(ranges, 1)
    if splitting.tasks_min is not None and len(ranges) < splitting.tasks_min:
        counts = share({span: span.size for span in ranges}, splitting.tasks_min)
    if splitting.rows_max is not None:
        counts = {span: max(count, -(-span.size // splitting.rows_max)) for span, count in counts.items()}
    return [piece for span, count in counts.items() for piece in cut(span, spread(span.first, span.end, count + 1))]


def cut(span: Range, points: Sequence[int]) -> list[Range]:
    """A range, cut at these offsets, of which the first and the last are its own."""
    return [Range(span.where, first, end) for first, end in pairwise(points)]


def _by_bytes(ranges: Sequence[Range], bytes_max: int, sizes: Sizes) -> list[Range]:
    """Each range, cut so that no piece has more bytes, as far as the places that are asked about are near enough."""
    spans = {span.where: span for span in ranges}
    ends = sizes({where: (span.first, span.end) for where, span in spans.items()})
    points: Mapping[TopicPartition, list[int]] = {
        where: spread(span.first, span.end, _points(ends[where][1] - ends[where][0], bytes_max))
        for where, span in spans.items()
    }
    told = sizes(points)
    return [
        piece for where, span in spans.items() for piece in cut(span, packed(points[where], told[where], bytes_max))
    ]


def _points(size: int, bytes_max: int) -> int:
    return min(POINTS_MAX, 1 + POINTS_PER_PIECE * -(-max(1, size) // bytes_max))


def packed(points: Sequence[int], told: Sequence[int], bytes_max: int) -> list[int]:
    """The points where a new piece must begin, and both ends."""
    chosen, since = [points[0]], told[0]
    for at in range(1, len(points) - 1):
        if told[at + 1] - since > bytes_max:
            chosen.append(points[at])
            since = told[at]
    return [*chosen, points[-1]]
