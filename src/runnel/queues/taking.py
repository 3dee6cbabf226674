"""One pass over what is offered to a consumer: what it gets, what is passed over, and what is done with.

Rule 1: messages are taken in the order of offsets, as long as there is room for them; what is left is offered again.
Rule 2: neighbours that end up alike are put at once: a thousand messages of a plain queue cost what one costs.
Rule 3: a message that a line of its key holds up is passed over; so is one that was not offered though one behind it
        was: its receiver chose.
Rule 4: the window has room for so many messages that somebody has, or had; what is passed over has its own, much larger
        room, because it needs little memory as long as it lies together. With key order all of it needs memory for
        its keys, and takes room alike.
"""

from collections.abc import Callable, Iterable

from runnel.queues.keys import Keys
from runnel.queues.status import DONE, DONE_STATUS, FRESH, FRESH_STATUS, LEASED, READY, Status
from runnel.queues.values import Granted, Maker, Offered
from runnel.queues.window import SHIFT, Piece, Window

PASSED_OVER = Status(READY)
PASSED_PER_PLACE = 50  # messages that may be passed over, for each that the window has room for
RUNS_PER_PLACE = 4  # runs: so many are needed at the most if nothing is passed over
RUNS_SPARE = 64  # for the smallest windows


class Taking:
    def __init__(
        self, window: Window, keys: Keys | None, owner: str, until: int, wall_ms: int, *,
        messages_max: int, bytes_max: int, window_max: int, bound: bool = False,
        counts: Callable[[Maker], bool] = lambda maker: True,
    ) -> None:  # fmt: skip
        self._window = window
        self._keys = keys
        self._owner = owner
        self._until = until
        self._bound = bound
        self._wall_ms = wall_ms
        self._counts = counts  # whether what made a copy does
        self._messages_left = messages_max
        self._bytes_left = bytes_max
        self._new_left = window_max - (window.tried if keys is None else window.open)
        self._passing_left = PASSED_PER_PLACE * window_max - window.passed
        self._runs_left = RUNS_PER_PLACE * window_max + RUNS_SPARE - window.runs
        self._group: Piece | None = None  # neighbours that are put next
        self.grants: list[Granted] = []
        self.expired: list[Granted] = []
        self.delivered = 0
        self.filtered = 0

    def take(self, offers: Iterable[Offered]) -> None:
        for offer in offers:
            if not self._take(offer):
                break
        self._put_group()

    def _take(self, offer: Offered) -> bool:
        """Take what can be taken of one offer; False if that is the end."""
        if self._keys is not None and not self._keys.learn(offer.first, offer.last, offer.key):
            return False
        if not self._reach(offer.first):
            return False
        passes = offer.passes and (offer.maker is None or self._counts(offer.maker))
        for piece in self._pieces(offer):
            if piece.status.kind not in (FRESH, READY):
                continue
            if not passes:
                self.filtered += piece.last - piece.first + 1
                self._finish(piece)
            elif 0 < offer.expires_ms <= self._wall_ms:
                self.expired.append(Granted(piece.first, piece.last, piece.status.attempts or offer.attempts))
                self._finish(piece)
            elif not self._lease(piece, offer):
                return False
        return True

    def _reach(self, offset: int) -> bool:
        """Whether there is room to pass over what is fresh below this offset."""
        edge = self._window.next if self._group is None else max(self._window.next, self._group.last + 1)
        if offset <= edge:
            return True
        if self._keys is not None:
            self._new_left -= offset - edge
            return self._new_left >= 0
        self._passing_left -= offset - edge
        self._runs_left -= 3 + (offset - edge >> SHIFT)  # in its first chunk, its last, and those between
        return self._passing_left >= 0 and self._runs_left >= 0

    def _pieces(self, offer: Offered) -> list[Piece]:
        """What is known of an offer; what is about to be put lies below it."""
        if self._group is not None and offer.first <= self._group.last:
            self._put_group()
        if offer.first >= self._window.next:
            return [Piece(offer.first, offer.last, FRESH_STATUS)]
        return list(self._window.pieces(offer.first, offer.last))

    def _is_new(self, status: Status) -> bool:
        """Whether it takes room in the window from now on that it did not take before."""
        return status.kind == FRESH if self._keys is not None else not status.attempts

    def _finish(self, piece: Piece) -> None:
        if not self._is_new(piece.status):
            self._new_left += piece.last - piece.first + 1
        self._stroke(piece.first, piece.last, DONE_STATUS)

    def _lease(self, piece: Piece, offer: Offered) -> bool:
        new = self._is_new(piece.status)
        if new and self._new_left <= 0:
            return False
        if self._keys is not None and not (offer.wanted and self._is_first(piece.first, self._keys)):
            if new:
                self._new_left -= piece.last - piece.first + 1
                self._stroke(piece.first, piece.last, PASSED_OVER)
            return True
        size = piece.last - piece.first + 1
        count = self._fitting(size, offer, self._new_left if new else size)
        if count <= 0:
            return False
        self._new_left -= count if new else 0
        self._messages_left -= count
        self.delivered += count
        attempt = (piece.status.attempts or offer.attempts) + 1
        leased = Status(LEASED, attempt, self._until, self._owner, self._bound)
        self._stroke(piece.first, piece.first + count - 1, leased)
        return count == size

    def _is_first(self, offset: int, keys: Keys) -> bool:
        if self._group is not None and self._group.status.kind == DONE:
            self._put_group()  # whoever was in its way may be done
        return keys.is_first(offset)

    def _fitting(self, size: int, offer: Offered, room: int) -> int:
        """How many of so many messages may be had; the first of all is never too large."""
        count = min(size, self._messages_left, room)
        each = offer.size // (offer.last - offer.first + 1)
        if each and count > 0:
            count = min(count, max(self._bytes_left // each, 0 if self.delivered else 1))
            self._bytes_left -= count * each
        return count

    # --- putting
    def _stroke(self, first: int, last: int, status: Status) -> None:
        group = self._group
        if group is not None and group.last + 1 == first and group.status == status:
            self._group = Piece(group.first, last, status)
            return
        self._put_group()
        self._group = Piece(first, last, status)

    def _put_group(self) -> None:
        if self._group is None:
            return
        first, last, status = self._group
        self._group = None
        self._window.put(first, last, status)
        if status.kind == LEASED:
            self.grants.append(Granted(first, last, status.attempts))
        elif status.kind == DONE and self._keys is not None:
            self._keys.finish(first, last)
        elif self._keys is not None:
            self._keys.check(first, last)  # who was not wanted may be the first of its key, for others
