"""Which queues have dead letters, on any broker: a page of them, by name.

Rule 1: a page has a bound for what it returns and one for what is looked at: it may be short, or empty, and not be the
        last. Nobody has to go through all queues to get the first ones.
Rule 2: the leaders of the partitions of dead letters say how many there are: one question to each of them for many
        queues. A partition without a leader counts for nothing.
Rule 3: what is counted is what there is to be repaired (`dead_letter_counts`): the same number wherever it is told.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from runnel.broker.calls import Calls
from runnel.broker.dead_letter_counts import DeadLetterCounts
from runnel.broker.partitions import Partitions
from runnel.broker.queue_calls import At
from runnel.broker.queue_definitions import queues_of
from runnel.broker.sources import Sources
from runnel.broker.turns import by_turns
from runnel.cluster.image import NO_LEADER, Image
from runnel.model.calls import DEAD_QUEUES, DeadQueue, DeadQueues, ListDeadQueues, ListedQueue, Value, Verb
from runnel.model.errors import InvalidRequest, RetriableError, RunnelError
from runnel.model.ids import BrokerId, PartitionKey
from runnel.model.queue_config import config_of

LIST_MAX: Final = 1_000  # queues at once
LOOKED_AT_MAX: Final = 1_000  # for one page
ASK_MS: Final = 30_000


class CountThere(Value, frozen=True):
    places: list[At]
    queues: list[str]  # for each place: whose letters


class CountedThere(Value, frozen=True):
    messages: list[int]  # one for each place


COUNT_THERE: Final = Verb("dead.count.there", CountThere, CountedThere)


class Graves:
    """The verb."""

    def __init__(
        self, partitions: Partitions, calls: Calls, image: Callable[[], Image], sources: Sources,
        counts: DeadLetterCounts,
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._calls = calls
        self._image = image
        self._sources = sources
        self._letters = counts
        calls.serve(DEAD_QUEUES, self.queues)
        calls.serve(COUNT_THERE, self._count_here)

    async def queues(self, request: ListDeadQueues) -> DeadQueues:
        """The queues that have dead letters, from a name on."""
        if not 1 <= request.queues_max <= LIST_MAX:
            raise InvalidRequest(f"{request.queues_max} queues can't be listed: ask for 1 to {LIST_MAX}")
        image = self._image()
        named = list(islice(queues_of(image, since=request.since), LOOKED_AT_MAX + 1))
        topics = {each.queue: _dead_topic(each) for each in named[:LOOKED_AT_MAX]}
        counts = await self._counts(image, topics)
        dead = [DeadQueue(queue, topic, counts[queue]) for queue, topic in topics.items() if counts.get(queue)]
        if len(dead) > request.queues_max:
            return DeadQueues(dead[: request.queues_max], dead[request.queues_max].queue)
        return DeadQueues(dead, named[LOOKED_AT_MAX].queue if len(named) > LOOKED_AT_MAX else None)

    async def count(self, queue: str) -> int:
        """How many dead letters a queue has now; -1 if it can't be learned."""
        topic = self._sources.config(queue).dead_topic_of(queue)
        try:
            return (await self._counts(self._image(), {queue: topic})).get(queue, 0)
        except RetriableError:
            return -1

    async def _counts(self, image: Image, topics: Mapping[str, str]) -> dict[str, int]:
        """How many dead letters each queue has in its topic, as far as that exists."""
        places: defaultdict[BrokerId, list[tuple[str, At]]] = defaultdict(list)
        for queue, name in topics.items():
            topic = image.topic(name) if name else None
            for number, partition in enumerate(topic.partitions if topic is not None else ()):
                assert topic is not None
                if partition.leader != NO_LEADER:
                    places[partition.leader].append((queue, At(topic.id, number)))
        await asyncio.sleep(0)  # a request that was answered at once goes on in a task: timeouts need one
        counted = await asyncio.gather(*(self._count(leader, at) for leader, at in places.items()))
        totals: defaultdict[str, int] = defaultdict(int)
        for some in counted:
            for queue, messages in some:
                totals[queue] += messages
        return dict(totals)

    async def _count(self, leader: BrokerId, places: Sequence[tuple[str, At]]) -> list[tuple[str, int]]:
        asked = CountThere([at for _, at in places], [queue for queue, _ in places])
        counted = await self._calls.ask(leader, COUNT_THERE, asked, timeout_ms=ASK_MS)
        return [(queue, messages) for (queue, _), messages in zip(places, counted.messages, strict=True)]

    async def _count_here(self, request: CountThere) -> CountedThere:
        return CountedThere(
            [
                await self._letters.count(queue, self._partitions.find_by_id(*at.key))
                for queue, at in zip(request.queues, request.places, strict=True)
            ]
        )

    async def led_here(self, within_s: float) -> dict[str, int]:
        """How many dead letters each queue has in the partitions that are led here, as far as it is known in time."""
        image, me = self._image(), self._calls.me
        found: defaultdict[str, int] = defaultdict(int)
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(within_s):
                async for name, queues in by_turns(list(self._sources.graves().items())):
                    topic = image.topic(name)
                    for number, partition in enumerate(topic.partitions if topic is not None else ()):
                        assert topic is not None
                        if partition.leader == me:
                            await self._add(found, PartitionKey(topic.id, number), queues)
        except TimeoutError:
            return dict(found)
        return dict(found)

    async def _add(self, found: dict[str, int], key: PartitionKey, queues: Sequence[str]) -> None:
        for queue in queues:
            try:
                found[queue] += await self._letters.count(queue, self._partitions.find_by_id(*key))
            except RunnelError:
                continue  # it is led elsewhere by now, or can't be read: the next look will tell


def _dead_topic(queue: ListedQueue) -> str:
    return config_of(frozenset(queue.settings.items())).dead_topic_of(queue.queue)
