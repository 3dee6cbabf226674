"""A shard, the log behind it, and short words for what is asked of it."""

from typing import Any
from uuid import UUID

from runnel.model.errors import RunnelError
from runnel.model.ids import NO_PRODUCER, Millis, PartitionKey, ProducerId, TopicId
from runnel.model.step import Record, Step
from runnel.transactions.records import Transaction, decode, encode_key, encode_value
from runnel.transactions.shard import TransactionShard
from runnel.transactions.values import (
    NOBODY,
    AddPartitions,
    EndTransaction,
    Identity,
    InitProducer,
    ListTransactions,
    NeedsProducerId,
    PartitionsAdded,
    TransactionConfig,
    Verdict,
)

ID = "tx"
CONFIG = TransactionConfig(timeout_max_ms=60_000, expiration_ms=1_000_000, expiration_check_ms=100_000)
TIMEOUT_MS = 10_000
TOPICS = {name: TopicId(UUID(int=number)) for number, name in enumerate(("t", "u"), 1)}
T0, T1 = PartitionKey(TOPICS["t"], 0), PartitionKey(TOPICS["t"], 1)


class Topics:
    """Two topics of three partitions."""

    def __init__(self) -> None:
        self.there = dict(TOPICS)

    def id_of(self, name: str) -> TopicId | None:
        return self.there.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, each in self.there.items() if each == topic_id), None)

    def partition_count(self, topic_id: TopicId) -> int:
        return 3 if topic_id in self.there.values() else 0


def who(text: str) -> Identity:
    """`1:5`: producer 1 in epoch 5; nothing: nobody."""
    if not text:
        return NOBODY
    producer_id, epoch = text.split(":")
    return Identity(ProducerId(int(producer_id)), int(epoch))


class Rig:
    """Keeps every record, as the log would, and hands out new producer ids."""

    def __init__(self, state: Transaction | None = None, *, wall_ms: int = 1_000_000) -> None:
        self.topics = Topics()
        self.now_ms = 0
        self.wall_ms = wall_ms
        self.next_id = 100
        self.log: list[Record] = []
        self.orders: list[Verdict] = []
        if state is not None:
            self.log.append((encode_key(ID), encode_value(state)))
        self.restart()

    def restart(self) -> None:
        """Another coordinator, with nothing but the log."""
        self.orders.clear()
        self.shard = self.replayed()
        self._take(self.shard.wake(self.topics, Millis(self.now_ms), Millis(self.wall_ms)))

    def replayed(self) -> TransactionShard:
        shard = TransactionShard(CONFIG)
        for key, value in self.log:
            shard.replay(key, value)
        return shard

    def state(self, transactional_id: str = ID) -> Transaction | None:
        """What the log knows."""
        found: Transaction | None = None
        for key, value in self.log:
            record = decode(key, value)
            if record is not None and record[0] == transactional_id:
                found = record[1]
        return found

    def _take(self, step: Step) -> None:
        self.log += step.records
        for order in step.orders:
            assert isinstance(order, Verdict)
            self.orders.append(order)

    def ask(self, verb: str, request: Any) -> Any:
        """The answer, which may be an error; every verb answers at once."""
        ticket = object()
        step = getattr(self.shard, verb)(request, ticket, self.topics, Millis(self.now_ms), Millis(self.wall_ms))
        self._take(step)
        [reply] = step.replies
        assert reply.ticket is ticket
        return reply.result

    def _with_new_id(self, verb: str, make: Any) -> Any:
        answer = self.ask(verb, make(NO_PRODUCER))
        if isinstance(answer, NeedsProducerId):
            self.next_id += 1
            answer = self.ask(verb, make(ProducerId(self.next_id)))
        return answer

    # --- verbs

    def init(self, producer: str = "", *, transactional_id: str = ID, timeout_ms: int = TIMEOUT_MS) -> Any:
        return self._with_new_id(
            "init_producer", lambda new_id: InitProducer(transactional_id, timeout_ms, who(producer), new_id)
        )

    def end(self, producer: str, *, commit: bool, bumps: bool, transactional_id: str = ID) -> Any:
        return self._with_new_id(
            "end", lambda new_id: EndTransaction(transactional_id, who(producer), commit, bumps, new_id)
        )

    def add(self, producer: str, *partitions: str, verify: bool = False, transactional_id: str = ID) -> Any:
        """Partitions as `t/0`; the error, if all of them have the same."""
        named = tuple((name, int(number)) for name, _, number in (each.partition("/") for each in partitions))
        answer = self.ask("add_partitions", AddPartitions(transactional_id, who(producer), named, verify))
        if isinstance(answer, PartitionsAdded):
            errors = list(answer.errors.values())
            return errors[0] if len({type(error) for error in errors}) == 1 else errors
        return answer

    def list(self, *states: str, producer_ids: tuple[int, ...] = (), duration_ms: int = -1) -> list[str]:
        found = self.ask("list", ListTransactions(states, producer_ids, duration_ms))
        return [each.transactional_id for each in found]

    def mark(self) -> None:
        """All partitions have heard of all ends."""
        orders, self.orders = self.orders, []
        for order in orders:
            self._take(self.shard.marked(order, self.topics, Millis(self.now_ms), Millis(self.wall_ms)))

    def wait(self, ms: int) -> None:
        """Time passes, and what is due happens when it is."""
        end_ms = self.now_ms + ms
        while (due := self.shard.next_deadline_ms()) is not None and due <= end_ms:
            self._pass(max(0, due - self.now_ms))
            self._take(self.shard.tick(Millis(self.now_ms), self.topics, Millis(self.wall_ms)))
        self._pass(end_ms - self.now_ms)

    def _pass(self, ms: int) -> None:
        self.now_ms += ms
        self.wall_ms += ms


def shown(answer: Any) -> str:
    """An answer in one word."""
    if isinstance(answer, Identity):
        return f"{answer.producer_id}:{answer.epoch}"
    if isinstance(answer, RunnelError):
        return type(answer).__name__
    return "ok" if answer is None else repr(answer)
