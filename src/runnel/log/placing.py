"""Giving a batch its place at the end of a log: its offsets, in its buffer and in what is known of its producer.

Rule 1: nothing is written here. Until it is, the producers can be taken back.
Rule 2: a batch that is refused leaves no trace.
"""

from crc32c import crc32c

from runnel.log.appending import Admit, Appended, Waiting, check_continuity
from runnel.log.producers import SOMEWHERE, Duplicate
from runnel.log.state import State
from runnel.log.transactions import ABORTED_MAX
from runnel.model.errors import FencedEpoch
from runnel.model.ids import Offset
from runnel.model.seams import Buffer
from runnel.model.topic_config import INT_MAX, TimestampType, TopicConfig
from runnel.record.batch import CONTROL, BatchHeader, patch, stamp_append_time
from runnel.record.control import marker_in, read_marker


class Placing:
    """The places behind the end of one log."""

    __slots__ = ("_config", "_stamps", "_state")

    def __init__(self, state: State, config: TopicConfig) -> None:
        self._state = state
        self.reconfigure(config)

    def reconfigure(self, config: TopicConfig) -> None:
        self._config = config
        self._stamps = config.message_timestamp_type is TimestampType.APPEND

    def is_full(self, position: int, size: int, last_offset: int, now_ms: int) -> bool:
        """Whether the active segment has to be rolled before a batch of this size."""
        active, config = self._state.active, self._config
        assert active.index is not None
        return position > 0 and (
            position + size > config.segment_bytes
            or last_offset - active.base_offset > INT_MAX
            or active.index.size >= config.segment_index_bytes
            or active.crowded
            or now_ms - active.created_ms >= config.segment_ms - (self._jitter_ms() if config.segment_jitter_ms else 0)
        )

    def is_full_for(self, waiting: Waiting, end: int, position: int, now_ms: int) -> bool:
        """The same for one that waits in line, and would begin here."""
        last = waiting.given[-1].last_offset if waiting.given else end + waiting.header.last_offset_delta
        return self.is_full(position, len(waiting.buffer), last, now_ms)

    def _jitter_ms(self) -> int:
        """The same for a segment whoever asks, and different for partitions created together."""
        return crc32c(self._state.active.log_path.encode()) % self._config.segment_jitter_ms

    def place(
        self, buffer: Buffer, header: BatchHeader, leader_epoch: int, base: int, now_ms: int, admit: Admit | None
    ) -> Appended:
        """Give a batch its offsets, in its buffer and in the producer state; neither is written yet."""
        if leader_epoch < self._state.epochs.latest:
            raise FencedEpoch(
                f"{self._state.folder} has batches of leader epoch {self._state.epochs.latest}, {leader_epoch} is over"
            )
        if header.producer_id >= 0:
            marker = read_marker(buffer) if header.attributes & CONTROL else None
            known = self._state.producers.check(header, marker)
            if known is not None:
                return self._found(known, base)
            if admit is not None:
                admit(self._state.producers.get(header.producer_id))
            # What the log will say: a replay must give the same state.
            kept = header._replace(max_timestamp=now_ms) if self._stamps else header
            self._state.producers.record(kept, base, now_ms, marker)
            if marker is not None:
                self._watch_aborted()
        assert not isinstance(buffer, bytes)
        patch(buffer, base, leader_epoch)
        if self._stamps:
            stamp_append_time(buffer, now_ms)
            return Appended(Offset(base), Offset(base + header.last_offset_delta), now_ms, False)
        return Appended(Offset(base), Offset(base + header.last_offset_delta), -1, False)

    def _found(self, known: Duplicate, base: int) -> Appended:
        """It is in the log; of a marker nobody knows where: it is committed at the latest when all this is."""
        if known is SOMEWHERE:
            return Appended(Offset(base - 1), Offset(base - 1), -1, True)
        time = known.timestamp if self._stamps else -1
        return Appended(Offset(known.base_offset), Offset(known.last_offset), time, True)

    def place_given(self, buffer: Buffer, given: list[BatchHeader], base: int, now_ms: int) -> Appended:
        """Take batches that carry their offsets, if they continue the log."""
        check_continuity(given, base, self._state.epochs.latest)
        producers, position = self._state.producers, 0
        for header in given:
            if header.producer_id >= 0:
                control = header.attributes & CONTROL
                marker = marker_in(memoryview(buffer)[position : position + header.size]) if control else None
                producers.record(header, header.base_offset, now_ms, marker)
            position += header.size
        if producers.transactions.aborted:
            self._watch_aborted()
        return Appended(Offset(given[0].base_offset), Offset(given[-1].last_offset), -1, False)

    def _watch_aborted(self) -> None:
        """A segment in which too many transactions were aborted is rolled: while it is written to, memory has them."""
        if len(self._state.producers.transactions.aborted) >= ABORTED_MAX:
            self._state.active.crowded = True
