"""Messages that leave the queue: dead letters, and copies that are delivered later.

Rule 1: who leaves is done here at once, and stands in the outbox until it is in its target: both are kept together.
Rule 2: it is ordered to leave when that is kept, and again by each new leader; its target knows its name, and takes it
        once. The floor is from before the order was kept, so whatever was appended for it lies above.
Rule 3: whatever happens to the queue meanwhile (purge, rewind) does not concern who has left. But a copy would count
        for nothing after a rewind (see `copies`): it does not leave any more.
Rule 4: what overflows leaves in large pieces, and not all at once: it has room of its own, so that it never keeps
        consumers from what is left in the queue.
"""

from typing import Final

from msgspec.structs import replace

from runnel.model.step import Step
from runnel.queues.records import leaving_record
from runnel.queues.values import Aimed, Leave, Leaving, LeavingId, Why

OVERFLOW_PIECES_MAX: Final = 64
OVERFLOW_PIECE_MAX: Final = 4_096  # messages: all of a piece is sent again if one of them can't be


class Outbox:
    """Who has left, and is not known to have arrived."""

    def __init__(self) -> None:
        self._leaving: dict[LeavingId, Leaving] = {}
        self.messages = 0
        self.overflowing = 0  # of these: messages that the queue had no room for
        self._pieces = 0  # that they are in

    @property
    def overflow_room(self) -> int:
        """How many pieces more may overflow now."""
        return max(0, OVERFLOW_PIECES_MAX - self._pieces)

    def restore(self, id: LeavingId, leaving: Leaving | None) -> None:
        if (was := self._leaving.pop(id, None)) is not None:
            self._count(was, -1)
        if leaving is not None:
            self._leaving[id] = leaving
            self._count(leaving, 1)

    def _count(self, leaving: Leaving, sign: int) -> None:
        size = leaving.last - leaving.first + 1
        self.messages += sign * size
        if leaving.why is Why.OVERFLOW:
            self.overflowing += sign * size
            self._pieces += sign

    def wake(self, step: Step) -> None:
        step.orders.extend(Leave(leaving) for leaving in self._leaving.values())

    def clear(self, step: Step) -> None:
        """Nobody leaves any more: they were another queue's."""
        step.records.extend(leaving_record(id, None) for id in self._leaving)
        self._leaving.clear()
        self.messages = self.overflowing = self._pieces = 0

    def recall(self, step: Step) -> None:
        """No copy leaves any more; dead letters do."""
        for id in [id for id, leaving in self._leaving.items() if not leaving.why.dies]:
            self.left(id, step)

    def add(self, leaving: Leaving, step: Step) -> None:
        self.restore(leaving.id, leaving)
        step.records.append(leaving_record(leaving.id, leaving))
        step.orders.append(Leave(leaving))

    def aim(self, aimed: Aimed, step: Step) -> None:
        """The target is known now. Who has one in the same topic keeps it: something may lie there."""
        was = self._leaving.get(aimed.id)
        if was is None:
            return
        if was.target is None or was.target.topic_id != aimed.target.topic_id:
            self.add(replace(was, target=aimed.target), step)
        else:
            step.orders.append(Leave(was))

    def left(self, id: LeavingId, step: Step) -> None:
        if id in self._leaving:
            self.restore(id, None)
            step.records.append(leaving_record(id, None))
