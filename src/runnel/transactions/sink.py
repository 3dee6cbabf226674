"""One sink: which batch is published, and which transactions it consists of.

Rule 1: a batch is published once: only if its number is above that of the last one. Who asks again is told that it was.
Rule 2: all of a batch or nothing. First it is kept which transactions are meant, then each of them is held, then it is
        kept that they are to be committed (the decision), and only then the first of them is.
Rule 3: if one can't be held (it was replaced, took too long, or was aborted), nothing is decided, and all are aborted.
Rule 4: one batch at a time. What was begun goes on after a crash, from the phase that was kept.
Rule 5: an attempt has a slot of its own, hence a transactional id, as long as it is not ended everywhere. Its handle is
        known from the start: one that was replaced, or that somebody made up, is refused without asking anybody.
Rule 6: attempts that the batch was not published with are aborted, once it is; so are those of a sink to be forgotten.

    IDLE --commit--> HOLDING --all held--> PUBLISHING --all committed--> IDLE, last = batch
                        +--one refused, abort, forget--> DROPPING --all aborted--> IDLE
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from runnel.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTransactionState,
    PolicyViolation,
    RunnelError,
)
from runnel.model.sinks import (
    AbortBatch,
    BeginAttempt,
    Begun,
    CommitBatch,
    ForgottenSink,
    Handle,
    OpenAttempt,
    Published,
    SinkDescription,
)
from runnel.transactions.sink_records import (
    NO_BATCH,
    Attempt,
    Chosen,
    Head,
    Key,
    Phase,
    encode_key,
    encode_value,
    handle_of,
    slot_of,
)
from runnel.transactions.sink_slots import Slots
from runnel.transactions.sink_values import FinishSlot, HoldSlot, OpenSlot, SinkConfig, SlotHeld, SlotOpened, Turn


class Opening(NamedTuple):
    """An attempt whose transaction is not known yet."""

    order: OpenSlot
    request: BeginAttempt
    ticket: object | None  # None: it was replaced


class Waiter(NamedTuple):
    ticket: object
    repeated: bool


class Sink:
    """What is known of one sink, and what follows."""

    def __init__(self, name: str, config: SinkConfig, head: Head) -> None:
        self.name = name
        self.head = head
        self.attempts: dict[int, Attempt] = {}
        self._config = config
        self._slots = Slots()
        self._places: dict[tuple[int, int, int], int] = {}  # the slot of an attempt, the newest of its number
        self._opening: dict[int, Opening] = {}
        self._chosen = frozenset(head.chosen)
        self._left: set[int] = set()  # slots of the batch in hand that have not ended
        self._ending: dict[int, FinishSlot] = {}  # slots whose transactions are being ended
        self._held: set[int] = set()
        self._waiters: list[Waiter] = []
        self._forgetters: list[object] = []
        self._open_before = 0  # attempts, when it was to be forgotten

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of a sink that is to be forgotten."""
        return self.head.forgetting and self.head.phase is Phase.IDLE and not self.is_busy

    @property
    def is_busy(self) -> bool:
        return bool(self.attempts or self._opening or self._ending)

    # --- beginning again
    def resume(self, turn: Turn) -> None:
        """Go on where whoever led before was."""
        self._slots.load(self.attempts)
        self._places = {attempt.place: slot for slot, attempt in self.attempts.items()}
        if self.head.phase is Phase.HOLDING:
            self._hold(turn)
        elif self.head.phase is not Phase.IDLE:
            self._finish_chosen(turn)
        self._drop_outdated(turn)

    # --- attempts
    def begin(self, request: BeginAttempt, ticket: object, turn: Turn) -> None:
        self._own(request.query, turn)
        if request.batch <= self.head.last:
            turn.reply(ticket, Begun(decided=True))
            return
        self._check_open()
        if self.head.phase is Phase.HOLDING:
            raise self._under_way()
        if len(self.attempts) + len(self._opening) >= self._config.attempts_max:
            raise PolicyViolation(
                f"{self._config.attempts_max} attempts of sink {self.name!r} are open, and none more is allowed: commit"
                f" or abort its batch, or end them all with 'runnel sink forget {self.name}'"
            )
        self._replace(request, turn)
        order = OpenSlot(self.name, self._slots.take(), min(request.timeout_ms, self._config.attempt_ms_max))
        self._opening[order.slot] = Opening(order, request, ticket)
        self._places[request.place] = order.slot
        turn.order(order)

    def _replace(self, request: BeginAttempt, turn: Turn) -> None:
        """The same attempt again: nobody waits for the answer to the earlier one, or its writer is dead or alone."""
        slot = self._places.get(request.place, -1)
        if slot in self._opening:
            replaced = ConcurrentTransactions(f"the same attempt of sink {self.name!r} began again: try again")
            self._answer(self._opening[slot], replaced, turn)
            self._opening[slot] = self._opening[slot]._replace(ticket=None)
        elif slot in self.attempts and not self._is_chosen(slot):
            self._drop(slot, turn)

    def opened(self, news: SlotOpened, turn: Turn) -> None:
        """Somebody may write now, unless that is not wanted any more."""
        slot, result = news.order.slot, news.result
        opening = self._opening.get(slot)
        if opening is None or opening.order is not news.order:
            return  # ordered by who led before: nobody writes under this identity
        del self._opening[slot]
        if isinstance(result, RunnelError):
            self._free(slot, opening.request.place)
            self._answer(opening, result, turn)
            return
        attempt = Attempt(*opening.request.place, result.producer_id, result.epoch, turn.wall_ms)
        self.attempts[slot] = attempt
        turn.keep((encode_key(Key(self.name, slot)), encode_value(attempt)))
        if opening.ticket is None or self.head.forgetting:
            self._drop(slot, turn)
            self._answer(opening, self._under_way(), turn)
        elif attempt.batch <= self.head.last:
            self._drop(slot, turn)
            self._answer(opening, Begun(decided=True), turn)
        else:
            self._answer(opening, Begun(False, result, news.timeout_ms), turn)

    def _answer(self, opening: Opening, answer: object, turn: Turn) -> None:
        if opening.ticket is not None:
            turn.reply(opening.ticket, answer)

    # --- publishing
    def commit(self, request: CommitBatch, ticket: object, turn: Turn) -> None:
        self._own(request.query, turn)
        head = self.head
        same = head.batch == request.batch and self._chosen == set(self._named(request.handles))
        if head.phase is Phase.PUBLISHING and request.batch == head.batch:
            self._wait(Waiter(ticket, not same), turn)
        elif request.batch <= head.last:
            turn.reply(ticket, Published(repeated=True))
        elif head.phase is Phase.HOLDING and same and not head.forgetting:
            self._wait(Waiter(ticket, False), turn)
        else:
            self._commit(request, ticket, turn)

    def _commit(self, request: CommitBatch, ticket: object, turn: Turn) -> None:
        self._check_open()
        if self.head.phase is not Phase.IDLE:
            raise self._under_way()
        chosen = self._checked(request)
        final = request.final or self.head.final
        self._keep(replace(self.head, phase=Phase.HOLDING, batch=request.batch, chosen=chosen, final=final), turn)
        self._wait(Waiter(ticket, False), turn)
        self._hold(turn)

    def _checked(self, request: CommitBatch) -> tuple[Chosen, ...]:
        """Rule 5, and: each partition of the job once."""
        partitions: set[int] = set()
        chosen = self._named(request.handles)
        for each, handle in zip(chosen, request.handles, strict=True):
            attempt = self.attempts.get(each.slot)
            if attempt is None or attempt.batch != request.batch or not _is(attempt, each) or each.slot in self._ending:
                raise InvalidTransactionState(
                    f"batch {request.batch} of sink {self.name!r} can't be published: the attempt with"
                    f" {handle.transactional_id!r}, epoch {handle.epoch}, was replaced or dropped. Write the batch anew"
                )
            if attempt.partition in partitions:
                raise InvalidRequest(
                    f"batch {request.batch} of sink {self.name!r} names two attempts at partition {attempt.partition}:"
                    " it would be published twice. Choose one"
                )
            partitions.add(attempt.partition)
        return chosen

    def _hold(self, turn: Turn) -> None:
        self._held.clear()
        for each in self.head.chosen:
            turn.order(HoldSlot(self.name, each.slot, self._handle(each)))
        self._decide_if_held(turn)

    def held(self, news: SlotHeld, turn: Turn) -> None:
        slot, handle = news.order.slot, news.order.handle
        is_meant = Chosen(slot, handle.producer_id, handle.epoch) in self._chosen
        if self.head.phase is not Phase.HOLDING or not is_meant:
            return
        if news.refused is not None:
            self._give_up(f"{handle.transactional_id!r} is not open any more: {news.refused}", turn)
            return
        self._held.add(slot)
        self._decide_if_held(turn)

    def _decide_if_held(self, turn: Turn) -> None:
        """Rule 2: the decision."""
        if len(self._held) == len(self.head.chosen):
            self._keep(replace(self.head, phase=Phase.PUBLISHING, last=self.head.batch), turn)
            self._finish_chosen(turn)
            self._drop_outdated(turn)

    def _give_up(self, why: str, turn: Turn) -> None:
        """Rule 3."""
        error = InvalidTransactionState(
            f"batch {self.head.batch} of sink {self.name!r} can't be published: {why}. Nothing of it was: write it anew"
        )
        self._keep(replace(self.head, phase=Phase.DROPPING), turn)
        for waiter in self._waiters:
            turn.reply(waiter.ticket, error)
        self._waiters.clear()
        self._finish_chosen(turn)

    def _finish_chosen(self, turn: Turn) -> None:
        commit = self.head.phase is Phase.PUBLISHING
        self._left = {each.slot for each in self.head.chosen if self._is_open(each)}
        for slot in sorted(self._left):
            self._end(slot, turn, commit=commit, held=True)
        self._settle_if_done(turn)

    def finished(self, order: FinishSlot, turn: Turn) -> None:
        """A transaction has ended everywhere: its slot is free."""
        slot = order.slot
        attempt = self.attempts.get(slot)
        if attempt is None or self._ending.get(slot) is not order:
            return
        del self._ending[slot]
        del self.attempts[slot]
        self._free(slot, attempt.place)
        turn.keep((encode_key(Key(self.name, slot)), None))
        self._left.discard(slot)
        self._settle_if_done(turn)

    def _free(self, slot: int, place: tuple[int, int, int]) -> None:
        self._slots.give(slot)
        if self._places.get(place) == slot:
            del self._places[place]

    def _settle_if_done(self, turn: Turn) -> None:
        """The batch in hand is done with, once none of its transactions is left."""
        if self.head.phase not in (Phase.PUBLISHING, Phase.DROPPING) or self._left:
            return
        self._keep(replace(self.head, phase=Phase.IDLE, batch=NO_BATCH, chosen=()), turn)
        for waiter in self._waiters:
            turn.reply(waiter.ticket, Published(waiter.repeated))
        self._waiters.clear()

    # --- giving up
    def abort(self, request: AbortBatch, turn: Turn) -> None:
        if request.batch <= self.head.last:
            return  # rule 6 sees to it
        named = self._named(request.handles)
        if self.head.phase is Phase.HOLDING and not self._chosen.isdisjoint(named):
            self._give_up("it was aborted", turn)
        for each in named:
            attempt = self.attempts.get(each.slot)
            if attempt is not None and _is(attempt, each) and not self._is_chosen(each.slot):
                self._drop(each.slot, turn)

    def forget(self, ticket: object, turn: Turn) -> None:
        if not self.head.forgetting:
            self._open_before = len(self.attempts)
            self._keep(replace(self.head, forgetting=True), turn)
        self._forgetters.append(ticket)
        if self.head.phase is Phase.HOLDING:
            self._give_up("the sink is to be forgotten", turn)
        self._drop_outdated(turn)

    def tell_gone(self, turn: Turn) -> None:
        for ticket in self._forgetters:
            turn.reply(ticket, ForgottenSink(self._open_before))

    def look(self, turn: Turn) -> None:
        """Time has passed: drop what nobody will publish any more, and forget what nobody needs."""
        oldest_ms = turn.wall_ms - self._config.attempt_ms_max
        for slot, attempt in list(self.attempts.items()):
            if attempt.began_ms <= oldest_ms and not self._is_chosen(slot):
                self._drop(slot, turn)
        is_spent = self.head.final or self.head.last == NO_BATCH
        is_old = self.head.changed_ms <= turn.wall_ms - self._config.idle_ms_max
        if is_spent and is_old and self.head.phase is Phase.IDLE and not self.is_busy and not self.head.forgetting:
            self._keep(replace(self.head, forgetting=True), turn)

    def _drop_outdated(self, turn: Turn) -> None:
        """Rule 6."""
        for slot, attempt in self.attempts.items():
            if (attempt.batch <= self.head.last or self.head.forgetting) and not self._is_chosen(slot):
                self._drop(slot, turn)

    def _drop(self, slot: int, turn: Turn) -> None:
        """Abort it, unless it is held: then it was chosen since. With the sink goes what it holds, whoever chose it."""
        self._end(slot, turn, commit=False, held=self.head.forgetting)

    def _end(self, slot: int, turn: Turn, *, commit: bool, held: bool) -> None:
        known = self._ending.get(slot)
        if known is not None and known.held == held:
            return
        handle = handle_of(self.name, slot, self.attempts[slot])
        self._ending[slot] = order = FinishSlot(self.name, slot, handle, commit, held)
        turn.order(order)

    # --- looking
    def describe(self) -> SinkDescription:
        head = self.head
        attempts = [
            OpenAttempt(
                handle_of(self.name, slot, each), each.batch, each.partition, each.attempt, each.began_ms,
                self._is_chosen(slot),
            )
            for slot, each in sorted(self.attempts.items())
        ]  # fmt: skip
        return SinkDescription(self.name, head.query, head.last, self.phase, head.batch, head.changed_ms, attempts)

    @property
    def phase(self) -> str:
        return "forgetting" if self.head.forgetting and self.head.phase is Phase.IDLE else self.head.phase.label

    # --- the rest
    def _own(self, query: str, turn: Turn) -> None:
        """The first query that names itself has the sink: another one has other batches under the same numbers."""
        if query and not self.head.query:
            self._keep(replace(self.head, query=query), turn)
        if query and self.head.query and query != self.head.query:
            raise InvalidRequest(
                f"sink {self.name!r} belongs to the query {self.head.query}, whose batches have other numbers than"
                f" those of {query}: use another sink id, or 'runnel sink forget {self.name}' if the old query is over"
            )

    def _check_open(self) -> None:
        if self.head.forgetting:
            raise ConcurrentTransactions(f"sink {self.name!r} is being forgotten: try again")

    def _under_way(self) -> ConcurrentTransactions:
        return ConcurrentTransactions(
            f"batch {self.head.batch} of sink {self.name!r} is being worked on ({self.phase}): try again"
        )

    def _wait(self, waiter: Waiter, turn: Turn) -> None:
        if len(self._waiters) >= self._config.waiters_max:
            turn.reply(self._waiters.pop(0).ticket, self._under_way())
        self._waiters.append(waiter)

    def _named(self, handles: Sequence[Handle]) -> tuple[Chosen, ...]:
        return tuple(Chosen(slot_of(self.name, each), each.producer_id, each.epoch) for each in handles)

    def _handle(self, chosen: Chosen) -> Handle:
        return handle_of(self.name, chosen.slot, self.attempts[chosen.slot])

    def _is_open(self, chosen: Chosen) -> bool:
        attempt = self.attempts.get(chosen.slot)
        return attempt is not None and _is(attempt, chosen)

    def _is_chosen(self, slot: int) -> bool:
        attempt = self.attempts[slot]
        return Chosen(slot, attempt.producer_id, attempt.epoch) in self._chosen

    def _keep(self, head: Head, turn: Turn) -> None:
        self.head = replace(head, changed_ms=turn.wall_ms)
        self._chosen = frozenset(head.chosen)
        self.keep(turn)

    def keep(self, turn: Turn) -> None:
        """As it is."""
        turn.keep((encode_key(Key(self.name)), encode_value(self.head)))


def _is(attempt: Attempt, chosen: Chosen) -> bool:
    return (attempt.producer_id, attempt.epoch) == (chosen.producer_id, chosen.epoch)
