"""Which coordinators of transactions have spoken here: an image that does not know of them yet is behind.

The image says whom to ask about a transaction. Until it has arrived here, the old coordinator may still be asked, and
may not know either that it is none any more: it would call a transaction open that the new one has ended. Whoever
leads a partition later knows the new coordinator, since its image is newer. So memory is enough, and of the last
producers only: images are behind for moments.
"""

from typing import Final

LIMIT: Final = 10_000  # producers


class Heard:
    """The newest epoch of a coordinator that has ended a transaction here, by producer."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._epochs: dict[int, int] = {}

    def note(self, producer_id: int, coordinator_epoch: int) -> None:
        newest = max(coordinator_epoch, self._epochs.pop(producer_id, -1))
        self._epochs[producer_id] = newest
        if len(self._epochs) > self._limit:
            del self._epochs[next(iter(self._epochs))]

    def newest(self, producer_id: int) -> int:
        return self._epochs.get(producer_id, -1)
