"""All transactional ids of one partition of the internal topic: the verbs.

Rule 1: a verb never waits. It returns a Step at once.
Rule 2: state in memory may run ahead of the log; replies and markers never do: the caller lets them go when the records
        are committed. So a decision is in the log before the first partition hears of it.
Rule 3: if an append fails the caller throws the shard away and replays the log. Whatever was decided and is not
        complete is ordered again on waking, so partitions may hear of an end twice.
Rule 4: only the present producer of a transactional id is served; who it was before it may have forgotten is told
        what became of it, if it asks for the same again, and everybody else is fenced (KIP-360, KIP-890).
Rule 5: while a transaction ends, the next one does not begin (KAFKA-18575).
Rule 6: what a sink holds, nobody but that sink ends: no producer, no other producer of its id, no clock (`holding`).
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from runnel.model.calls import Nothing
from runnel.model.errors import (
    InvalidProducerMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    RunnelError,
    TransactionalIdNotFound,
)
from runnel.model.ids import NO_PRODUCER, Millis, PartitionKey
from runnel.model.sinks import Finish, Finished, Hold
from runnel.model.step import Record, Reply, Step
from runnel.model.timers import Timers
from runnel.transactions import holding, life, refusals
from runnel.transactions.records import Transaction, decode, encode_key, encode_value
from runnel.transactions.values import (
    EPOCH_LAST,
    NOBODY,
    STATES,
    AddPartitions,
    Cause,
    DescribedTransaction,
    EndTransaction,
    Identity,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    NamedPartition,
    NeedsProducerId,
    PartitionsAdded,
    State,
    TopicView,
    TransactionConfig,
    Verdict,
)

R = TypeVar("R")
NEEDS_ID: Final = NeedsProducerId()


class Alarm(IntEnum):
    TIMEOUT = 1  # a transaction runs for too long
    EXPIRE = 2  # the shard: look for transactional ids that nobody uses


class Timer(NamedTuple):
    alarm: Alarm
    transactional_id: str = ""


class Turn(NamedTuple):
    """A verb under way, with the moment it happens in."""

    topics: TopicView
    now_ms: Millis  # never goes back: for deadlines
    wall_ms: Millis  # what people read: for what is stored
    step: Step

    def reply(self, ticket: object, result: object) -> None:
        self.step.replies.append(Reply(ticket, result))


class TransactionShard:
    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self._transactions: dict[str, Transaction] = {}
        self._timers = Timers[Timer]()

    # --- loading
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the log, in its order; call `wake` after the last."""
        record = decode(key, value)
        if record is None:
            return
        transactional_id, transaction = record
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction

    def wake(self, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: go on with what was decided, and let what runs have the time that it has left."""
        turn = Turn(topics, now_ms, wall_ms, Step())
        for transactional_id, transaction in self._transactions.items():
            if transaction.state.ending:
                turn.step.orders.append(_verdict(transactional_id, transaction))
            elif transaction.state is State.ONGOING and not transaction.holder:
                ran_ms = max(0, wall_ms - transaction.began_ms)  # a clock that was set back gives no more than all
                self._timers.set(Timer(Alarm.TIMEOUT, transactional_id), now_ms + transaction.timeout_ms - ran_ms)
        self._look_later(now_ms)
        return turn.step

    # --- time
    def next_deadline_ms(self) -> Millis | None:
        return self._timers.next_ms()

    def tick(self, now_ms: Millis, topics: TopicView, wall_ms: Millis) -> Step:
        """Do what is due."""
        turn = Turn(topics, now_ms, wall_ms, Step())
        while timer := self._timers.pop_due(now_ms):
            if timer.alarm is Alarm.EXPIRE:
                self._expire(turn)
            else:
                was = self._transactions[timer.transactional_id]
                self._decide(timer.transactional_id, life.fenced(was, Cause.TIMED_OUT, wall_ms, may_return=True), turn)
        return turn.step

    def _expire(self, turn: Turn) -> None:
        oldest_ms = turn.wall_ms - self._config.expiration_ms
        for transactional_id, transaction in list(self._transactions.items()):
            if not transaction.state.running and transaction.changed_ms <= oldest_ms:
                del self._transactions[transactional_id]
                turn.step.records.append((encode_key(transactional_id), None))
        self._look_later(turn.now_ms)

    def _look_later(self, now_ms: Millis) -> None:
        pause_ms = min(self._config.expiration_check_ms, self._config.expiration_ms)
        self._timers.set(Timer(Alarm.EXPIRE), now_ms + pause_ms)

    # --- beginning
    def init_producer(
        self, request: InitProducer, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._init_producer, request, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _init_producer(self, request: InitProducer, turn: Turn) -> Identity | NeedsProducerId:
        _check_id(request.transactional_id)
        self._check_timeout(request.timeout_ms)
        was = self._transactions.get(request.transactional_id)
        if was is None:
            if request.new_id == NO_PRODUCER:
                return NEEDS_ID
            return self._put(
                request.transactional_id, life.created(request.new_id, request.timeout_ms, turn.wall_ms), turn
            ).identity
        asks_again = request.producer != NOBODY and request.producer == was.previous
        is_known = request.producer in (NOBODY, was.identity) or asks_again
        if not is_known or request.producer.epoch > EPOCH_LAST:
            raise refusals.fenced(request.transactional_id, request.producer, was)
        if was.holder:
            raise refusals.held_by_sink(request.transactional_id, was)
        if was.state is State.ONGOING:
            return self._fence(request, was, asks_again, turn)
        if was.state.ending:
            raise refusals.still_ending(request.transactional_id)
        if asks_again and was.epoch <= EPOCH_LAST:
            return was.identity
        return self._renew(request, was, turn)

    def _fence(self, request: InitProducer, was: Transaction, asks_again: bool, turn: Turn) -> Identity:
        """Another producer takes over, or the same one gives up what it began: that is aborted first."""
        if asks_again:  # it has heard the answer since then, and gone on: this comes late
            raise refusals.fenced(request.transactional_id, request.producer, was)
        ended = life.fenced(was, Cause.FENCED, turn.wall_ms, may_return=request.producer != NOBODY)
        self._decide(request.transactional_id, ended, turn)
        raise refusals.still_ending(request.transactional_id)

    def _renew(self, request: InitProducer, was: Transaction, turn: Turn) -> Identity | NeedsProducerId:
        if life.exhausted(was) and request.new_id == NO_PRODUCER:
            return NEEDS_ID
        now = life.renewed(was, request.producer, request.new_id, request.timeout_ms, turn.wall_ms)
        return self._put(request.transactional_id, now, turn).identity

    def _check_timeout(self, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._config.timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"transaction timeout {timeout_ms} ms is not allowed: use 1 to {self._config.timeout_max_ms} ms, or"
                " raise the broker's transaction-max-timeout-ms"
            )

    # --- adding
    def add_partitions(
        self, request: AddPartitions, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._add_partitions, request, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _add_partitions(self, request: AddPartitions, turn: Turn) -> PartitionsAdded:
        was = self._of(request.transactional_id)
        if was.state.ending and request.producer in (was.identity, was.successor):
            raise refusals.still_ending(request.transactional_id)
        _check_producer(request.transactional_id, request.producer, was)
        if was.holder:
            raise refusals.held(request.transactional_id, was)
        keys = {named: _key_of(named, turn.topics) for named in request.partitions}
        if request.verify_only:
            known = was.partition_set
            return PartitionsAdded(
                {named: refusals.verified(request, named, key in known) for named, key in keys.items()}
            )
        if missing := [named for named, key in keys.items() if key is None]:
            return PartitionsAdded({named: refusals.not_added(named, missing) for named in keys})
        self._add(request.transactional_id, was, frozenset(key for key in keys.values() if key is not None), turn)
        return PartitionsAdded(dict.fromkeys(keys))

    def _add(self, transactional_id: str, was: Transaction, keys: frozenset[PartitionKey], turn: Turn) -> None:
        if keys <= was.partition_set:
            return
        if was.state is not State.ONGOING:
            self._timers.set(Timer(Alarm.TIMEOUT, transactional_id), turn.now_ms + was.timeout_ms)
        self._put(transactional_id, life.added(was, keys, turn.wall_ms), turn)

    # --- ending
    def end(self, request: EndTransaction, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._end, request, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _end(self, request: EndTransaction, turn: Turn) -> Identity | NeedsProducerId:
        was = self._of(request.transactional_id)
        if request.bumps and request.producer == was.previous and was.state not in (State.EMPTY, State.ONGOING):
            return self._end_again(request, was, turn)
        if was.state.ending and request.bumps and request.producer in (was.identity, was.successor):
            raise refusals.still_ending(request.transactional_id)
        _check_producer(request.transactional_id, request.producer, was)
        if was.holder:
            raise refusals.held(request.transactional_id, was)
        if was.state is State.ONGOING:
            return self._prepare(request, was, turn)
        if request.bumps and not request.commit:
            return self._abort_nothing(request, was, turn)
        if not request.bumps and was.state is not State.EMPTY:
            return self._end_again(request, was, turn)
        raise InvalidTransactionState(
            f"transactional id {request.transactional_id!r} has no transaction to end: begin one, and write to it"
        )

    def _prepare(self, request: EndTransaction, was: Transaction, turn: Turn) -> Identity | NeedsProducerId:
        if request.bumps and life.exhausted(was) and request.new_id == NO_PRODUCER:
            return NEEDS_ID
        new_id = request.new_id if request.bumps and life.exhausted(was) else NO_PRODUCER
        now = life.prepared(was, request.commit, turn.wall_ms, bumps=request.bumps, new_id=new_id)
        self._decide(request.transactional_id, now, turn)
        return now.successor

    def _abort_nothing(self, request: EndTransaction, was: Transaction, turn: Turn) -> Identity | NeedsProducerId:
        if life.exhausted(was) and request.new_id == NO_PRODUCER:
            return NEEDS_ID
        now = life.aborted_empty(was, request.producer, request.new_id, turn.wall_ms)
        return self._put(request.transactional_id, now, turn).identity

    def _end_again(self, request: EndTransaction, was: Transaction, turn: Turn) -> Identity | NeedsProducerId:
        """It has ended already: the same wish gets the same answer."""
        committed = was.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        if committed != request.commit:
            raise refusals.other_outcome(request, was)
        if was.state.ending:
            raise refusals.still_ending(request.transactional_id)
        if was.epoch > EPOCH_LAST:  # it timed out in its last epoch
            return self._abort_nothing(request, was, turn)
        return was.identity

    def marked(self, verdict: Verdict, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        """Every partition knows how a transaction ended."""
        turn = Turn(topics, now_ms, wall_ms, Step())
        was = self._transactions.get(verdict.transactional_id)
        if was is not None and was.state.ending and was.identity == verdict.producer:
            self._put(verdict.transactional_id, life.completed(was, wall_ms), turn)
        return turn.step

    # --- sinks
    def hold(self, request: Hold, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._hold, request, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _hold(self, request: Hold, turn: Turn) -> Nothing:
        name = request.handle.transactional_id
        was = self._of(name)
        if holding.check_hold(was, request):
            self._timers.cancel(Timer(Alarm.TIMEOUT, name))
            self._put(name, life.held(was, request.sink, turn.wall_ms), turn)
        return Nothing()

    def finish(self, request: Finish, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._finish, request, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _finish(self, request: Finish, turn: Turn) -> Finished:
        name = request.handle.transactional_id
        was = self._transactions.get(name)
        if was is None or not holding.is_meant(was, request.handle):
            return holding.fate(was, request.handle)
        if was.state is State.ONGOING:
            holding.check_finish(was, request)
            self._decide(name, life.finished(was, request.commit, turn.wall_ms), turn)
            return Finished(complete=False, committed=request.commit)
        holding.check_nothing_to_commit(request)
        self._put(name, life.closed(was, turn.wall_ms), turn)
        return Finished(complete=True)

    # --- administration
    def describe(
        self, transactional_id: str, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._describe, transactional_id, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _describe(self, transactional_id: str, turn: Turn) -> DescribedTransaction:
        _check_id(transactional_id)
        found = self._transactions.get(transactional_id)
        if found is None:
            raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
        named = ((turn.topics.name_of(key.topic_id), key.number) for key in found.partition_set)
        partitions = sorted((name, number) for name, number in named if name is not None)
        return DescribedTransaction(
            transactional_id, found.state, found.identity, found.timeout_ms, found.began_ms, tuple(partitions),
            found.holder,
        )  # fmt: skip

    def list(
        self, request: ListTransactions, ticket: object, topics: TopicView, now_ms: Millis, wall_ms: Millis
    ) -> Step:
        return self._run(self._list, request, ticket, Turn(topics, now_ms, wall_ms, Step()))

    def _list(self, request: ListTransactions, turn: Turn) -> tuple[ListedTransaction, ...]:
        states = {STATES[name] for name in request.states if name in STATES}
        return tuple(
            ListedTransaction(transactional_id, found.producer_id, found.state)
            for transactional_id, found in self._transactions.items()
            if (not request.states or found.state in states)
            and (not request.producer_ids or found.producer_id in request.producer_ids)
            and (request.duration_ms < 0 or _runs_longer(found, request.duration_ms, turn.wall_ms))
        )

    # --- the rest
    def _run(self, verb: Callable[[R, Turn], object], request: R, ticket: object, turn: Turn) -> Step:
        try:
            turn.reply(ticket, verb(request, turn))
        except RunnelError as error:
            turn.reply(ticket, error)
        return turn.step

    def _of(self, transactional_id: str) -> Transaction:
        _check_id(transactional_id)
        found = self._transactions.get(transactional_id)
        if found is None:
            raise InvalidProducerMapping(f"transactional id {transactional_id!r} has no producer: initialise one")
        return found

    def _put(self, transactional_id: str, transaction: Transaction, turn: Turn) -> Transaction:
        self._transactions[transactional_id] = transaction
        record: Record = (encode_key(transactional_id), encode_value(transaction))
        turn.step.records.append(record)
        return transaction

    def _decide(self, transactional_id: str, transaction: Transaction, turn: Turn) -> None:
        """How a transaction ends: its partitions are to hear of it."""
        self._timers.cancel(Timer(Alarm.TIMEOUT, transactional_id))
        self._put(transactional_id, transaction, turn)
        turn.step.orders.append(_verdict(transactional_id, transaction))


def _verdict(transactional_id: str, transaction: Transaction) -> Verdict:
    return Verdict(
        transactional_id,
        transaction.identity,
        transaction.state is State.PREPARE_COMMIT,
        transaction.version,
        transaction.cause,
        transaction.partition_set,
        transaction.changed_ms - transaction.began_ms,
    )


def _key_of(named: NamedPartition, topics: TopicView) -> PartitionKey | None:
    name, number = named
    topic_id = topics.id_of(name)
    if topic_id is None or not 0 <= number < topics.partition_count(topic_id):
        return None
    return PartitionKey(topic_id, number)


def _runs_longer(transaction: Transaction, duration_ms: int, wall_ms: Millis) -> bool:
    return transaction.state.running and wall_ms - transaction.began_ms > duration_ms


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("a transactional id must not be empty: set transactional.id")


def _check_producer(transactional_id: str, producer: Identity, was: Transaction) -> None:
    """Rule 4, for those who must be the present producer."""
    if producer.producer_id != was.producer_id:
        raise InvalidProducerMapping(
            f"transactional id {transactional_id!r} belongs to producer {was.producer_id}, not {producer.producer_id}:"
            " initialise the producer again"
        )
    if producer.epoch != was.epoch or producer.epoch > EPOCH_LAST:
        raise refusals.fenced(transactional_id, producer, was)
