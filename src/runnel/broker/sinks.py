"""Sinks: which broker keeps one, and the verbs of those kept here (transactions/sinks.py).

The state of sinks lives in an internal compacted topic, as that of groups does; it is made when the first sink is used.
A sink belongs to one partition of that topic by its id. Its leader is asked by a call; any broker passes one on.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.broker.internal import SINKS
from runnel.broker.journal import PartitionJournal
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.broker.shards import Shards
from runnel.broker.sinks_coordinators import Coordinators
from runnel.broker.sinks_errands import Errands
from runnel.cluster.image import Change, Image
from runnel.model.calls import Nothing, Value, Verb
from runnel.model.errors import UnknownSink
from runnel.model.seams import Clock, Rng
from runnel.model.sinks import (
    SINK_ABORT,
    SINK_BEGIN,
    SINK_COMMIT,
    SINK_DESCRIBE,
    SINK_FORGET,
    SINK_LIST,
    AbortBatch,
    BeginAttempt,
    Begun,
    CommitBatch,
    ForgottenSink,
    ListedSink,
    ListSinks,
    NamedSink,
    Published,
    SinkDescription,
)
from runnel.model.sinks import Sinks as SinkList
from runnel.replica.partition import Partition
from runnel.transactions.sink_values import SinkConfig
from runnel.transactions.sinks import SinkShard

Q = TypeVar("Q", BeginAttempt, CommitBatch, AbortBatch, NamedSink)
A = TypeVar("A")


class ListThere(Value, frozen=True):
    shard: int
    prefix: str


BEGIN: Final = Verb("sinks.begin", BeginAttempt, Begun, waits=True)
COMMIT: Final = Verb("sinks.commit", CommitBatch, Published, waits=True)
ABORT: Final = Verb("sinks.abort", AbortBatch, Nothing)
FORGET: Final = Verb("sinks.forget", NamedSink, ForgottenSink, waits=True)
DESCRIBE: Final = Verb("sinks.describe", NamedSink, SinkDescription)
LIST: Final = Verb("sinks.list", ListThere, SinkList)


class Sinks:
    """The shards of the sinks' topic that this broker leads, and the way to the others."""

    def __init__(
        self, partitions: Partitions, calls: Calls, coordinators: Coordinators, config: SinkConfig, clock: Clock,
        rng: Rng, make_topic: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.shards = Shards(SINKS, partitions, self._shard)
        self._calls = calls
        self._errands = Errands(coordinators, rng)
        self._config = config
        self._clock = clock
        self._make_topic = make_topic
        self._image: Image
        calls.serve(BEGIN, self._here("begin"))
        calls.serve(COMMIT, self._here("commit"))
        calls.serve(ABORT, self._here("abort"))
        calls.serve(FORGET, self._here("forget"))
        calls.serve(DESCRIBE, self._here("describe"))
        calls.serve(LIST, self._list_here)
        calls.serve_waiting(SINK_BEGIN, lambda asked, waits: self._there(BEGIN, asked, waits))
        calls.serve_waiting(SINK_COMMIT, lambda asked, waits: self._there(COMMIT, asked, waits))
        calls.serve_waiting(SINK_FORGET, lambda asked, waits: self._known_there(FORGET, asked, waits))
        calls.serve(SINK_ABORT, self._abort)
        calls.serve(SINK_DESCRIBE, lambda asked: self._known_there(DESCRIBE, asked))
        calls.serve(SINK_LIST, self._list)

    def start(self, image: Image) -> None:
        self._see(image)

    def follow(self, change: Change) -> None:
        self._see(change.after)

    def close(self) -> None:
        self._errands.close()
        self.shards.close()

    def _see(self, image: Image) -> None:
        self._image = image
        self.shards.follow(image)

    def _shard(self, partition: Partition, number: int) -> Shard[None]:
        def carry_out(order: object) -> None:
            self._errands.carry_out(shard, order)

        shard: Shard[None] = Shard(
            PartitionJournal(partition, self._clock),
            lambda: SinkShard(self._config), lambda: None, self._clock, carry_out,
        )  # fmt: skip
        return shard

    # --- as who keeps a sink
    def _here(self, verb: str) -> Callable[[Any], Awaitable[Any]]:
        return lambda request: self.shards.ask(request.sink, verb, request)

    async def _list_here(self, request: ListThere) -> SinkList:
        found: list[ListedSink] = await self.shards.numbered(request.shard).ask("list", ListSinks(request.prefix))
        return SinkList(found)

    # --- as who was asked
    async def _there(self, verb: Verb[Q, A], request: Q, waits: Waits | None = None) -> A:
        await self._make_topic()
        return await self._ask(verb, request, waits)

    async def _known_there(self, verb: Verb[NamedSink, A], request: NamedSink, waits: Waits | None = None) -> A:
        if not self._is_made:
            raise UnknownSink(f"there is no sink {request.sink!r}: none was ever used in this cluster")
        return await self._ask(verb, request, waits)

    async def _abort(self, request: AbortBatch) -> Nothing:
        return await self._ask(ABORT, request) if self._is_made else Nothing()

    async def _list(self, request: ListSinks) -> SinkList:
        found: list[ListedSink] = []
        topic = self._image.topic(SINKS)
        for number, partition in enumerate(topic.partitions if topic else ()):
            found += (await self._calls.ask(partition.leader, LIST, ListThere(number, request.prefix))).sinks
        return SinkList(sorted(found, key=lambda each: each.sink))

    @property
    def _is_made(self) -> bool:
        return SINKS in self._image.names

    async def _ask(self, verb: Verb[Q, A], request: Q, waits: Waits | None = None) -> A:
        return await self._calls.ask(self.shards.leader_of(request.sink).id, verb, request, waits=waits)
