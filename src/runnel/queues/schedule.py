"""What a schedule's shard does when: for each target the time of its next message, its front, and what is under way.

Rule 1: nothing is sent before it is due, by the wall clock of the broker that sends it.
Rule 2: before anything is sent, the front of its target is kept beyond its time. Who leads the shard next takes all
        that is due up to the kept front for sent: it sends it again, by the same name and from the kept floor on.
Rule 3: a target is sent to by one at a time, in the order of due times, and not without a pause: what comes due within
        it is sent together. One that fails waits longer and longer, and holds up no other. A clock that is set back
        makes no pause longer: what is due by the new time does not wait for the old one to come again.
Rule 4: a message is changed (cancelled, moved) only if it was never sent, and is not sent while it is changed.
Rule 5: what was sent is buried (its end is kept, and in the index) later on, for many at once. It is not sent again
        until then; there are never more than so many of a target. No front that is kept meanwhile has a floor above it:
        the next leader would not find it there, and send it again.

    idle --front ends before the next message--> fronting --kept--> idle --due--> firing --sent--> idle, to be buried
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from runnel.model.errors import InvalidRequest, NotPending
from runnel.model.ids import PartitionKey
from runnel.model.schedule import DUE_MS_MAX, NEWEST, Front, Parked, Row

LEAD_MS: Final = 250  # a front is kept so long before it is needed, and so far beyond
PACE_MS: Final = 20  # between two sendings to a target: each is a sync of its log
UNBURIED_MAX: Final = 5_000  # of one target: the index shows them as waiting
ANY: Final = 2**63 - 1  # a floor that is above all
PAUSE_MS: Final = 100  # after a first failure; each further one doubles it
PAUSE_MS_MAX: Final = 10_000
ID_BYTES_MAX: Final = 1_000  # its name in the target's log may be a little longer


def check(message: Parked) -> None:
    """Raise unless a message can be kept, read again, and sent under its name when it is due."""
    if not 0 < len(message.id.encode()) <= ID_BYTES_MAX:
        raise InvalidRequest(f"an id has 1 to {ID_BYTES_MAX} bytes, this one has {len(message.id.encode())}")
    if not 0 <= message.due_ms <= DUE_MS_MAX:
        raise InvalidRequest(f"a message can't be due at {message.due_ms}: give milliseconds since 1970")
    if not NEWEST <= message.floor <= ANY:
        raise InvalidRequest(f"a message can't be looked for from offset {message.floor} on: give one that was seen")


class KeepFront(NamedTuple):
    """Keep a front of this target up to then; its floor is to be seen now, and is at most `floor_max`."""

    target: PartitionKey
    upto_ms: int
    floor_max: int


class Fire(NamedTuple):
    """Send what is due up to then, at the target's floor."""

    target: PartitionKey
    upto_ms: int
    floor: int


Order: TypeAlias = KeepFront | Fire


class _Target:
    __slots__ = (
        "armed_ms", "busy", "changing", "failures", "firing", "front", "inherited_ms", "meanwhile_ms", "next_due_ms",
        "not_before_ms", "sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_due_ms: int | None = None
        self.meanwhile_ms: int | None = None  # the first that was parked since the target is busy
        self.armed_ms: int | None = None  # it stands in the heap, once, at this time
        self.front: Front | None = None
        self.inherited_ms = -1  # who led before may have sent what is due until then
        self.busy = False
        self.not_before_ms = 0
        self.failures = 0
        self.firing: set[str] = set()  # they are being sent, or may have been
        self.sent: dict[str, int] = {}  # they were sent, lie there, and are to be buried
        self.changing: set[str] = set()


class Agenda:
    """Of one shard, in one leader epoch."""

    def __init__(self, start_offset: int) -> None:
        self._start_offset = start_offset
        self._targets: dict[PartitionKey, _Target] = {}
        self._wakes: list[tuple[int, PartitionKey]] = []  # a heap; each target once, at its time or before
        self._now_ms = 0  # what the clock said last

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def targets(self) -> Iterable[PartitionKey]:
        return self._targets.keys()

    def restore(self, target: PartitionKey, next_due_ms: int | None, front: Front | None) -> None:
        """What the log says of a target when this epoch begins."""
        one = self._targets[target] = _Target()
        one.front = front
        if front is not None and next_due_ms is not None and next_due_ms <= front.upto_ms:
            one.inherited_ms = front.upto_ms
        one.next_due_ms = next_due_ms
        self._arm(target, one)

    def parked(self, target: PartitionKey, due_ms: int) -> None:
        """A message waits, and that is kept."""
        one = self._of(target)
        if one.busy:
            one.meanwhile_ms = _earlier(one.meanwhile_ms, due_ms)
        elif one.next_due_ms is None or due_ms < one.next_due_ms:
            one.next_due_ms = due_ms
            self._arm(target, one)

    def forget(self, target: PartitionKey) -> None:
        """Nothing waits for it, and nothing will."""
        self._targets.pop(target, None)

    # --- time

    def wake_ms(self) -> int | None:
        """When there is something to do, by the wall clock."""
        while self._wakes:
            at, target = self._wakes[0]
            one = self._targets.get(target)
            if one is not None and one.armed_ms == at:
                if _wake(one) == at:
                    return at
                one.armed_ms = None
                heappop(self._wakes)
                self._arm(target, one)
            else:
                heappop(self._wakes)
        return None

    def orders(self, now_ms: int, orders_max: int) -> list[Order]:
        """What is to be done now; each of these targets is busy until the outcome is told."""
        self._look_at_clock(now_ms)
        orders: list[Order] = []
        while len(orders) < orders_max and (at := self.wake_ms()) is not None and at <= now_ms:
            target = heappop(self._wakes)[1]
            one = self._targets[target]
            one.armed_ms = one.meanwhile_ms = None
            one.busy = True
            orders.append(_order(target, one, now_ms))
        return orders

    def fronted(self, target: PartitionKey, front: Front) -> None:
        """The front is kept."""
        one = self._of(target)
        one.front = front
        self._end(target, one, one.next_due_ms, 0)

    def failed(self, target: PartitionKey, now_ms: int, jitter: float) -> None:
        """An order could not be carried out: try again after a pause. `jitter` is in [0, 1)."""
        self._look_at_clock(now_ms)
        one = self._of(target)
        pause_ms = min(PAUSE_MS * 2**one.failures, PAUSE_MS_MAX)
        failures = min(one.failures + 1, 16)
        self._end(target, one, one.next_due_ms, now_ms + int(pause_ms * (0.5 + jitter / 2)))
        one.failures = failures

    def fired(self, target: PartitionKey, sent: Mapping[str, int], next_due_ms: int | None, now_ms: int) -> None:
        """These were sent, and lie there; the index says what comes next. Whatever was parked since is known here."""
        self._look_at_clock(now_ms)
        one = self._of(target)
        one.firing.difference_update(sent)
        one.sent.update(sent)
        following = _earlier(next_due_ms, one.meanwhile_ms)
        if following is None or following > one.inherited_ms:
            one.inherited_ms = -1
        self._end(target, one, next_due_ms, now_ms + PACE_MS)

    def _look_at_clock(self, now_ms: int) -> None:
        if now_ms < self._now_ms:
            for target, one in self._targets.items():
                one.not_before_ms = min(one.not_before_ms, now_ms + PACE_MS)
                self._arm(target, one)
        self._now_ms = now_ms

    def buried(self, target: PartitionKey, ids: Iterable[str]) -> None:
        """The end of these is kept, and in the index."""
        one = self._targets.get(target)
        if one is not None:
            for id in ids:
                one.sent.pop(id, None)
            self._arm(target, one)

    def unburied(self, target: PartitionKey) -> int:
        """How many the index shows as waiting that were sent."""
        return len(self._of(target).sent)

    def sent(self, target: PartitionKey) -> frozenset[str]:
        """Those."""
        return frozenset(self._of(target).sent)

    def may_have_sent(self, target: PartitionKey, due_ms: int) -> bool:
        """Whether one that is due then, and does not wait, may have been sent, here or by who led before."""
        front = self._of(target).front
        return front is not None and due_ms <= front.upto_ms

    def was_sent(self, row: Row) -> bool:
        """Whether a message that the index shows as waiting does not wait any more."""
        return row.id in self._of(row.target).sent

    def _end(self, target: PartitionKey, one: _Target, next_due_ms: int | None, not_before_ms: int) -> None:
        one.busy = False
        one.failures = 0
        one.next_due_ms = _earlier(next_due_ms, one.meanwhile_ms)
        one.not_before_ms = not_before_ms
        self._arm(target, one)

    def _arm(self, target: PartitionKey, one: _Target) -> None:
        at = _wake(one)
        if at is not None and (one.armed_ms is None or at < one.armed_ms):
            one.armed_ms = at
            heappush(self._wakes, (at, target))

    def _of(self, target: PartitionKey) -> _Target:
        one = self._targets.get(target)
        if one is None:
            one = self._targets[target] = _Target()
        return one

    # --- messages

    def take(self, target: PartitionKey, rows: list[Row]) -> list[Row]:
        """Those of the rows that are sent now; nobody changes them any more."""
        one = self._of(target)
        taken = [row for row in rows if row.id not in one.changing and row.id not in one.sent]
        one.firing.update(row.id for row in taken)
        return taken

    def change(self, row: Row) -> None:
        """Begin to change a message, if that can still be done; until `changed` it is not sent."""
        one = self._of(row.target)
        inherited = row.offset < self._start_offset and row.due_ms <= one.inherited_ms
        if row.id in one.firing or row.id in one.sent or inherited:
            raise NotPending(f"message {row.id!r} is being delivered: it is too late to change that")
        if row.id in one.changing:
            raise NotPending(f"message {row.id!r} is being changed by another request: look again")
        one.changing.add(row.id)

    def changed(self, row: Row, due_ms: int | None) -> None:
        """The change is over, and in the index: when the message is due now, if it still is."""
        self._of(row.target).changing.discard(row.id)
        if due_ms is not None:
            self.parked(row.target, due_ms)


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None or (one is not None and one < other) else other


def _wake(one: _Target) -> int | None:
    if one.busy or one.next_due_ms is None or len(one.sent) >= UNBURIED_MAX:
        return None
    is_fronted = one.front is not None and one.front.upto_ms >= one.next_due_ms
    return max(one.not_before_ms, one.next_due_ms if is_fronted else one.next_due_ms - LEAD_MS)


def _order(target: PartitionKey, one: _Target, now_ms: int) -> Order:
    assert one.next_due_ms is not None
    if one.front is None or one.front.upto_ms < one.next_due_ms:
        return KeepFront(target, max(now_ms, one.next_due_ms) + LEAD_MS, min(one.sent.values(), default=ANY))
    return Fire(target, min(now_ms, one.front.upto_ms), one.front.floor)
