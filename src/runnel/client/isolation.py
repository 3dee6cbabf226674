"""Which batches of an answer belong to aborted transactions. Pure: out of the list that the answer brings with it.

Rule 1: a producer's transactional batches are aborted from the first offset that the list tells up to its next marker.
Rule 2: an answer lists all aborted transactions that reach into it, so nothing is carried over from one to the next: a
        marker that was compacted away, or that was in an answer we dropped, must not hide what comes later.
Rule 3: markers are no messages: they end what is aborted, and are passed over themselves.
"""

from collections import deque
from collections.abc import Iterable

from runnel.record.batch import BatchHeader


class Aborted:
    """Judges the batches of one answer for one partition, in their order."""

    def __init__(self, told: Iterable[tuple[int, int]]) -> None:
        self._to_come = deque(sorted(told))  # (first offset, producer id)
        self._open: set[int] = set()  # producers whose transaction here ends with an abort

    def judge(self, header: BatchHeader) -> bool:
        """Whether this batch was aborted."""
        while self._to_come and self._to_come[0][0] <= header.last_offset:
            self._open.add(self._to_come.popleft()[1])
        if header.control:
            self._open.discard(header.producer_id)
            return False
        return header.transactional and header.producer_id in self._open
