"""Messages that leave the queue: dead letters, and copies that are delivered later.

Rule 1: who leaves is done here at once, and stands in the outbox until it is in its target: both are kept together.
Rule 2: it is ordered to leave when that is kept, and again by each new leader; its target knows its name, and takes it
        once. The floor is from before the order was kept, so whatever was appended for it lies above.
Rule 3: whatever happens to the queue meanwhile (purge, rewind) does not concern who has left.
Rule 4: who has left was not accepted, and a consumer that comes late is told so, also when all have arrived. Of those
        the last ones are remembered; below the others (`sure_from`) nobody is told that what is done was accepted.
"""

from typing import Final

from msgspec.structs import replace

from runnel.model.step import Step
from runnel.queues.records import arrived_record, leaving_record
from runnel.queues.values import Aimed, Leave, Leaving, LeavingId

ARRIVED_MAX: Final = 256  # that are remembered


class Outbox:
    """Who has left."""

    def __init__(self) -> None:
        self._leaving: dict[LeavingId, Leaving] = {}
        self._arrived: dict[LeavingId, Leaving] = {}  # the oldest first
        self.messages = 0  # that are not known to have arrived
        self.sure_from = 0

    def restore(self, id: LeavingId, leaving: Leaving | None) -> None:
        """Take over what was kept of who leaves."""
        self._drop(id)
        if leaving is not None:
            self._put(leaving)

    def restore_arrived(self, id: LeavingId, arrived: Leaving | None) -> None:
        """Take over what was kept of who has arrived."""
        self._arrived.pop(id, None)
        if arrived is not None:
            self._arrived[id] = arrived

    def wake(self, step: Step) -> None:
        self._arrived = dict(sorted(self._arrived.items(), key=lambda item: item[1].left_ms))
        step.orders.extend(Leave(leaving) for leaving in self._leaving.values())

    def add(self, leaving: Leaving, step: Step) -> None:
        self._drop(leaving.id)
        self._put(leaving)
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
        """They are in their target."""
        leaving = self._drop(id)
        if leaving is None:
            return
        self._arrived[id] = replace(leaving, reason="", target=None)
        step.records += [leaving_record(id, None), arrived_record(id, self._arrived[id])]
        while len(self._arrived) > ARRIVED_MAX:
            oldest = next(iter(self._arrived))
            self.sure_from = max(self.sure_from, self._arrived[oldest].last + 1)
            self._forget(oldest, step)

    def rewind(self, step: Step) -> None:
        """All receipts are void: nobody asks for those who have arrived."""
        self.sure_from = 0
        for id in list(self._arrived):
            self._forget(id, step)

    def may_have(self, generation: int, first: int, last: int) -> bool:
        """Whether one of these may have left."""
        if first < self.sure_from:
            return True
        known = (*self._leaving.values(), *self._arrived.values())
        return any(one.generation == generation and one.first <= last and first <= one.last for one in known)

    def _put(self, leaving: Leaving) -> None:
        self._leaving[leaving.id] = leaving
        self.messages += leaving.last - leaving.first + 1

    def _drop(self, id: LeavingId) -> Leaving | None:
        leaving = self._leaving.pop(id, None)
        if leaving is not None:
            self.messages -= leaving.last - leaving.first + 1
        return leaving

    def _forget(self, id: LeavingId, step: Step) -> None:
        del self._arrived[id]
        step.records.append(arrived_record(id, None))
