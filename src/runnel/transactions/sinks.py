"""All sinks of one partition of the internal topic: the verbs. What follows for a sink is decided in `sink`.

Rule 1: a verb never waits. It returns a Step at once; some are answered by a later one.
Rule 2: state in memory may run ahead of the log; replies and orders never do: the caller lets them go when the records
        are committed. So a decision is in the log before the first transaction hears of it.
Rule 3: if an append fails the caller throws the shard away and replays the log. What is not done is ordered again on
        waking; whatever is ordered may be done twice.
"""

from collections.abc import Callable
from typing import TypeVar

from runnel.model.calls import Nothing
from runnel.model.errors import InvalidRequest, RunnelError, UnknownSink
from runnel.model.ids import Millis
from runnel.model.sinks import AbortBatch, BeginAttempt, CommitBatch, ListedSink, ListSinks, NamedSink
from runnel.model.step import Step
from runnel.transactions.sink import Sink
from runnel.transactions.sink_records import NO_BATCH, Attempt, Head, Key, decode, encode_key
from runnel.transactions.sink_values import FinishSlot, SinkConfig, SlotHeld, SlotOpened, Turn

NAME_CHARS_MAX = 200
R = TypeVar("R")
N = TypeVar("N")


class SinkShard:
    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._sinks: dict[str, Sink] = {}
        self._read: dict[Key, Head | Attempt] = {}
        self._look_ms = Millis(0)

    # --- loading
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the log, in its order; call `wake` after the last."""
        record = decode(key, value)
        if record is None:
            return
        where, what = record
        if what is None:
            self._read.pop(where, None)
        else:
            self._read[where] = what

    def wake(self, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        """Begin to serve: go on with what was begun."""
        for (name, slot), what in self._read.items():
            if isinstance(what, Attempt):
                self._loaded(name).attempts[slot] = what
            else:
                self._loaded(name)
        self._read.clear()
        self._look_ms = Millis(now_ms + self._config.check_ms)
        turn = Turn(wall_ms, Step())
        for sink in list(self._sinks.values()):
            sink.resume(turn)
            self._remove_if_gone(sink, turn)
        return turn.step

    def _loaded(self, name: str) -> Sink:
        if name not in self._sinks:
            head = self._read.get(Key(name))
            self._sinks[name] = Sink(name, self._config, head if isinstance(head, Head) else Head("", NO_BATCH, 0))
        return self._sinks[name]

    # --- time
    def next_deadline_ms(self) -> Millis | None:
        return self._look_ms

    def tick(self, now_ms: Millis, view: None, wall_ms: Millis) -> Step:
        turn = Turn(wall_ms, Step())
        if now_ms >= self._look_ms:
            self._look_ms = Millis(now_ms + self._config.check_ms)
            for sink in list(self._sinks.values()):
                sink.look(turn)
                self._remove_if_gone(sink, turn)
        return turn.step

    # --- verbs
    def begin(self, request: BeginAttempt, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._begin, request, ticket, wall_ms)

    def _begin(self, request: BeginAttempt, ticket: object, turn: Turn) -> None:
        _check(request.sink, request.batch)
        self._made(request.sink, request.query, turn).begin(request, ticket, turn)

    def commit(self, request: CommitBatch, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._commit, request, ticket, wall_ms)

    def _commit(self, request: CommitBatch, ticket: object, turn: Turn) -> None:
        _check(request.sink, request.batch)
        self._made(request.sink, request.query, turn).commit(request, ticket, turn)

    def abort(self, request: AbortBatch, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._abort, request, ticket, wall_ms)

    def _abort(self, request: AbortBatch, ticket: object, turn: Turn) -> None:
        sink = self._sinks.get(request.sink)
        if sink is not None:
            sink.abort(request, turn)
        turn.reply(ticket, Nothing())

    def forget(self, request: NamedSink, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._forget, request, ticket, wall_ms)

    def _forget(self, request: NamedSink, ticket: object, turn: Turn) -> None:
        sink = self._known(request.sink)
        sink.forget(ticket, turn)
        self._remove_if_gone(sink, turn)

    def describe(self, request: NamedSink, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._describe, request, ticket, wall_ms)

    def _describe(self, request: NamedSink, ticket: object, turn: Turn) -> None:
        turn.reply(ticket, self._known(request.sink).describe())

    def list(self, request: ListSinks, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._run(self._list, request, ticket, wall_ms)

    def _list(self, request: ListSinks, ticket: object, turn: Turn) -> None:
        found = [
            ListedSink(name, sink.head.last, sink.phase, len(sink.attempts), sink.head.changed_ms)
            for name, sink in self._sinks.items()
            if name.startswith(request.prefix)
        ]
        turn.reply(ticket, found)

    # --- news
    def opened(self, news: SlotOpened, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._told(news.order.sink, lambda sink, turn: sink.opened(news, turn), wall_ms)

    def held(self, news: SlotHeld, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._told(news.order.sink, lambda sink, turn: sink.held(news, turn), wall_ms)

    def finished(self, order: FinishSlot, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        return self._told(order.sink, lambda sink, turn: sink.finished(order, turn), wall_ms)

    def _told(self, name: str, take: Callable[[Sink, Turn], None], wall_ms: Millis) -> Step:
        turn = Turn(wall_ms, Step())
        sink = self._sinks.get(name)
        if sink is not None:
            take(sink, turn)
            self._remove_if_gone(sink, turn)
        return turn.step

    # --- the rest
    def _run(self, verb: Callable[[R, object, Turn], None], request: R, ticket: object, wall_ms: Millis) -> Step:
        turn = Turn(wall_ms, Step())
        try:
            verb(request, ticket, turn)
        except RunnelError as error:
            turn.reply(ticket, error)
        return turn.step

    def _made(self, name: str, query: str, turn: Turn) -> Sink:
        sink = self._sinks.get(name)
        if sink is None:
            sink = self._sinks[name] = Sink(name, self._config, Head(query, NO_BATCH, turn.wall_ms))
            sink.keep(turn)
        return sink

    def _known(self, name: str) -> Sink:
        sink = self._sinks.get(name)
        if sink is None:
            raise UnknownSink(f"there is no sink {name!r}: 'runnel sink ls' shows those that there are")
        return sink

    def _remove_if_gone(self, sink: Sink, turn: Turn) -> None:
        if sink.is_gone:
            del self._sinks[sink.name]
            turn.keep((encode_key(Key(sink.name)), None))
            sink.tell_gone(turn)


def _check(name: str, batch: int) -> None:
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidRequest(f"a sink's id has 1 to {NAME_CHARS_MAX} characters, not {len(name)}: choose another")
    if batch < 0:
        raise InvalidRequest(f"{batch} is no number of a batch: they count up from 0")
