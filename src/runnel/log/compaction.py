"""What compaction keeps. It thinks over batches; the log does the files, off the loop.

Rule 1: the last record of each key stays, with its offset. Nothing is invented, moved or put in another order.
Rule 2: a tombstone stays until `delete.retention.ms` after the pass that first kept it, and so removed all before it.
        That pass marks its batch with the delete horizon (KIP-534): whoever reads from the start in time sees it.
Rule 3: nothing at or beyond the map's end is touched: it is in the active segment, not replicated yet, or too young.
Rule 4: the last batch of each producer stays, empty if need be, for its sequence numbers.
Rule 5: what can't be read is kept as it is: compaction gives no damaged batch a fresh checksum.
Rule 6: only what is decided is touched: the end is never behind the first transaction that is open. Records of aborted
        transactions go, and supersede none; those of committed ones are as any.
Rule 7: a marker stays while anything of its transaction is left, as what is left would be open without it, and then
        until `delete.retention.ms` have passed, as tombstones do: a consumer that has read of the transaction needs to
        see its end. So does the last of a producer, for its epoch.

    latest = KeyMap(the first offset that was not compacted yet); map_keys(latest, batches from there on, ...)
    for each group of closed segments below latest.end_offset, in order of offsets (a tombstone must not be marked
    before the records it deletes are durably gone): write what clean(its batches, latest, ...) yields
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from runnel.log.producers import LastBatches
from runnel.model.errors import InvalidRecord
from runnel.model.seams import Buffer
from runnel.model.topic_config import TopicConfig
from runnel.record import records
from runnel.record.batch import DELETE_HORIZON, BatchHeader, assemble, intact, read_header
from runnel.record.compression import compress
from runnel.record.records import Span, varint

KEYS_MAX = 400_000  # about 50 MB for one pass; a log with more keys takes several
DIGEST_BYTES = 16  # two keys of one digest would need 2**64 tries
TIMESTAMP_MAX = 2**62  # a delta between two timestamps below fits into 64 bits


@dataclass(slots=True)
class CompactionStats:
    """What one pass did."""

    batches_read: int = 0
    batches_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_dropped: int = 0
    tombstones_dropped: int = 0  # of those, because their time was over
    aborted_dropped: int = 0  # of those, because their transaction was aborted
    markers_dropped: int = 0  # of those, because nothing of their transaction was left for long enough
    batches_unreadable: int = 0  # kept as they were


class AbortedBatches:
    """Which batches belong to aborted transactions, in some part of a log."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int, int]] = ()) -> None:
        """Of each transaction its producer id, first offset and the offset of its marker."""
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, marker in sorted(ranges):
            self._ranges.setdefault(producer_id, []).append((first, marker))

    def has(self, header: BatchHeader) -> bool:
        ranges = self._ranges.get(header.producer_id)
        if ranges is None or header.control or not header.transactional:
            return False
        at = bisect_right(ranges, header.base_offset, key=lambda one: one[0]) - 1
        return at >= 0 and header.base_offset < ranges[at][1]


NONE_ABORTED = AbortedBatches()


class KeyMap:
    """The last offset of each key in [start, end_offset)."""

    __slots__ = ("_keys_max", "_latest", "complete", "end_offset")

    def __init__(self, start: int, keys_max: int = KEYS_MAX) -> None:
        self._latest: dict[bytes, int] = {}
        self._keys_max = keys_max
        self.end_offset = start
        self.complete = False  # there is no more to be mapped in this pass

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, raw: Buffer, header: BatchHeader) -> bool:
        """Take in a batch that was not aborted; False if the map was full before its end."""
        if not header.control:
            _, spans = _read(raw, header) or (b"", [])
            for span in spans:
                if span.key is not None and span.offset >= self.end_offset and not self._put(span.key, span.offset):
                    self.end_offset = span.offset
                    return False
        self.pass_over(header)
        return True

    def pass_over(self, header: BatchHeader) -> None:
        """Go behind a batch."""
        self.end_offset = max(self.end_offset, header.last_offset + 1)

    def _put(self, key: bytes, offset: int) -> bool:
        name = _name(key)
        if name not in self._latest and len(self._latest) >= self._keys_max:
            return False
        self._latest[name] = offset
        return True

    def superseded(self, span: Span) -> bool:
        """Whether a later record has the key; records without a key are kept by nothing."""
        if span.offset >= self.end_offset:
            return False
        return span.key is None or self._latest.get(_name(span.key), -1) > span.offset


def _name(key: bytes) -> bytes:
    """A short name for a key: itself, or a digest, which is longer than any key that stands for itself."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def keyless(batch: Buffer) -> list[int]:
    """The places of the records without a key, which a compacted topic refuses; InvalidRecord if they can't be read."""
    header, _, spans = records.spans(batch)
    return [span.offset - header.base_offset for span in spans if span.key is None]


def is_due(*, clean_bytes: int, dirty_bytes: int, dirty_since_ms: int, config: TopicConfig, now_ms: int) -> bool:
    """Whether a pass is worth its while; `dirty_since_ms` is the timestamp of the oldest record not compacted yet."""
    if dirty_bytes == 0:
        return False
    if now_ms - dirty_since_ms > config.max_compaction_lag_ms:
        return True
    return dirty_bytes / (clean_bytes + dirty_bytes) >= config.min_cleanable_dirty_ratio


def map_keys(
    latest: KeyMap, batches: Iterator[Buffer], *, bound: int, config: TopicConfig, now_ms: int, bytes_max: int,
    aborted: AbortedBatches = NONE_ABORTED,
) -> bool:  # fmt: skip
    """Map the keys of the next `bytes_max` of batches; False at their end, and when the map is complete: at the first
    that reaches `bound` or is too young, or when it is full. To be called again while it is True: a slice is what may
    run without a break."""
    lag_ms = config.min_compaction_lag_ms
    young_ms = now_ms - lag_ms if lag_ms else TIMESTAMP_MAX  # without a lag, timestamps in the future are no matter
    size = 0
    for raw in batches:
        header = read_header(raw)
        if header.last_offset >= bound or header.max_timestamp > young_ms:
            latest.complete = True
            return False
        if aborted.has(header):
            latest.pass_over(header)
        elif not latest.add(raw, header):
            latest.complete = True
            return False
        size += len(raw)
        if size >= bytes_max:
            return True
    return False


def clean(
    batches: Iterable[Buffer],
    latest: KeyMap,
    *,
    config: TopicConfig,
    now_ms: int,
    last: LastBatches,
    stats: CompactionStats,
    complete: bool = True,
    aborted: AbortedBatches = NONE_ABORTED,
    opened: Iterable[int] = (),
) -> Iterator[Buffer]:
    """The batches that stay, in order; `last` knows the last batch of each producer.

    `complete` says that every segment before these was cleaned too. If one was left out, or a batch could not be read,
    it may hold records that a tombstone deletes, so all tombstones behind it stay, and all markers. `opened` are the
    producers of whose transactions something is left in the segments before these, where they are open.
    """
    horizon_ms = min(now_ms + config.delete_retention_ms, TIMESTAMP_MAX - 1) if complete else None
    cleaning = _Cleaning(latest, now_ms, horizon_ms, last, aborted, set(opened), stats)
    for raw in batches:
        stats.batches_read += 1
        stats.bytes_read += len(raw)
        kept = cleaning.kept_of(raw, read_header(raw))
        if kept is not None:
            stats.batches_written += 1
            stats.bytes_written += len(kept)
            yield kept


@dataclass(slots=True)
class _Cleaning:
    """What is decided about the batches of one group of segments, one after the other."""

    latest: KeyMap
    now_ms: int
    horizon_ms: int | None
    last: LastBatches
    aborted: AbortedBatches
    left: set[int]  # producers of whose transactions something is left
    stats: CompactionStats

    def kept_of(self, raw: Buffer, header: BatchHeader) -> Buffer | None:
        """What stays of one batch; None if nothing does."""
        if self.stats.batches_unreadable:
            self.horizon_ms = None
        if header.control:
            return self._marker(raw, header)
        kept = self._records(raw, header) if header.base_offset < self.latest.end_offset else raw
        if kept is None and self.last.has(header):
            kept = records.emptied(header)
        if kept is not None and header.transactional:
            self.left.add(header.producer_id)
        return kept

    def _records(self, raw: Buffer, header: BatchHeader) -> Buffer | None:
        read = _read(raw, header)
        if read is None:
            self.stats.batches_unreadable += 1
            return raw
        data, spans = read
        if header.last_offset < self.latest.end_offset and self.aborted.has(header):
            self.stats.records_dropped += len(spans)
            self.stats.aborted_dropped += len(spans)
            return None
        kept = self._live([span for span in spans if not self.latest.superseded(span)], header)
        self.stats.records_dropped += len(spans) - len(kept)
        if not kept:
            return None
        if self.horizon_ms is not None and _wants_horizon(header, kept, self.latest):
            return _rewritten(header, data, kept, self.horizon_ms)
        return raw if len(kept) == len(spans) else _rewritten(header, data, kept, None)

    def _live(self, spans: list[Span], header: BatchHeader) -> list[Span]:
        """Without the tombstones whose time is over."""
        if self.horizon_ms is None or not self._is_over(header):
            return spans
        live = [span for span in spans if not span.tombstone]
        self.stats.tombstones_dropped += len(spans) - len(live)
        return live

    def _marker(self, raw: Buffer, header: BatchHeader) -> Buffer | None:
        if header.producer_id in self.left:
            self.left.remove(header.producer_id)
            return raw
        if self.horizon_ms is None or header.last_offset >= self.latest.end_offset or header.producer_id < 0:
            return raw
        read = _read(raw, header)
        if read is None:
            self.stats.batches_unreadable += 1
            return raw
        if header.delete_horizon_ms is None:
            return _rewritten(header, *read, self.horizon_ms)
        if not self._is_over(header) or self.last.has(header):
            return raw
        self.stats.records_dropped += 1
        self.stats.markers_dropped += 1
        return None

    def _is_over(self, header: BatchHeader) -> bool:
        marked_ms = header.delete_horizon_ms
        return marked_ms is not None and marked_ms <= self.now_ms


def _read(raw: Buffer, header: BatchHeader) -> tuple[bytes, list[Span]] | None:
    """The records of a batch; None if it is damaged, or was nonsense when it was sent."""
    if not intact(raw, header):
        return None
    try:
        _, data, spans = records.spans(raw)
    except InvalidRecord:
        return None
    return (data, spans) if all(-TIMESTAMP_MAX < span.timestamp < TIMESTAMP_MAX for span in spans) else None


def _wants_horizon(header: BatchHeader, kept: list[Span], latest: KeyMap) -> bool:
    if header.delete_horizon_ms is not None or header.last_offset >= latest.end_offset:
        return False
    return any(span.tombstone for span in kept)


def _rewritten(header: BatchHeader, data: bytes, kept: list[Span], horizon_ms: int | None) -> bytes:
    """The batch with some of its records, at the same offsets; with a horizon, times count from there."""
    if horizon_ms is None:
        return records.thinned(header, data, kept)
    section = b"".join([_retimed(data, span, header.base_offset, horizon_ms) for span in kept])
    header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
    header = header._replace(max_timestamp=max(span.timestamp for span in kept), count=len(kept))
    return assemble(header, compress(header.compression, section))


def _retimed(data: bytes, span: Span, base_offset: int, base_timestamp: int) -> bytes:
    deltas = b"\x00" + varint(span.timestamp - base_timestamp) + varint(span.offset - base_offset)
    rest = data[span.key_start : span.end]
    return b"".join((varint(len(deltas) + len(rest)), deltas, rest))
