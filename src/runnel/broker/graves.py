"""Which queues have dead letters, on any broker: a page of them, by name.

Rule 1: a page has a bound for what it returns and one for what is looked at: it may be short, or empty, and not be the
        last. Nobody has to go through all queues to get the first ones.
Rule 2: the leaders of the partitions of dead letters say how many there are: one question to each of them for many
        queues. A partition without a leader counts for nothing.
Rule 3: what is counted is what the topics hold: letters that went back, and those of another queue with the same topic,
        are not told apart.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from runnel.broker.calls import Calls
from runnel.broker.partitions import Partitions
from runnel.broker.queue_calls import At
from runnel.broker.queue_definitions import queues_of
from runnel.cluster.image import NO_LEADER, Image
from runnel.model.calls import DEAD_QUEUES, DeadQueue, DeadQueues, ListDeadQueues, ListedQueue, Value, Verb
from runnel.model.errors import InvalidRequest
from runnel.model.ids import BrokerId, TopicId
from runnel.model.queue_config import config_of

LIST_MAX: Final = 1_000  # queues at once
LOOKED_AT_MAX: Final = 1_000  # for one page
ASK_MS: Final = 30_000


class CountThere(Value, frozen=True):
    places: list[At]


class CountedThere(Value, frozen=True):
    messages: list[int]  # one for each place


COUNT_THERE: Final = Verb("dead.count.there", CountThere, CountedThere)


class Graves:
    """The verb."""

    def __init__(self, partitions: Partitions, calls: Calls, image: Callable[[], Image]) -> None:
        self._partitions = partitions
        self._calls = calls
        self._image = image
        calls.serve(DEAD_QUEUES, self.queues)
        calls.serve(COUNT_THERE, self._count_here)

    async def queues(self, request: ListDeadQueues) -> DeadQueues:
        """The queues that have dead letters, from a name on."""
        if not 1 <= request.queues_max <= LIST_MAX:
            raise InvalidRequest(f"{request.queues_max} queues can't be listed: ask for 1 to {LIST_MAX}")
        image = self._image()
        named = list(islice(queues_of(image, since=request.since), LOOKED_AT_MAX + 1))
        topics = {each.queue: _dead_topic(each) for each in named[:LOOKED_AT_MAX]}
        counts = await self._counts(image, set(topics.values()))
        dead = [DeadQueue(queue, topic, counts[topic]) for queue, topic in topics.items() if counts.get(topic)]
        if len(dead) > request.queues_max:
            return DeadQueues(dead[: request.queues_max], dead[request.queues_max].queue)
        return DeadQueues(dead, named[LOOKED_AT_MAX].queue if len(named) > LOOKED_AT_MAX else None)

    async def _counts(self, image: Image, names: Iterable[str]) -> dict[str, int]:
        """How many messages each of these topics holds, as far as they exist."""
        places: defaultdict[BrokerId, list[tuple[str, At]]] = defaultdict(list)
        for name in names:
            topic = image.topic(name) if name else None
            for number, partition in enumerate(topic.partitions if topic is not None else ()):
                assert topic is not None
                if partition.leader != NO_LEADER:
                    places[partition.leader].append((name, At(topic.id, number)))
        await asyncio.sleep(0)  # a request that was answered at once goes on in a task: timeouts need one
        counted = await asyncio.gather(*(self._count(leader, at) for leader, at in places.items()))
        totals: defaultdict[str, int] = defaultdict(int)
        for some in counted:
            for name, messages in some:
                totals[name] += messages
        return dict(totals)

    async def _count(self, leader: BrokerId, places: Sequence[tuple[str, At]]) -> list[tuple[str, int]]:
        asked = CountThere([at for _, at in places])
        counted = await self._calls.ask(leader, COUNT_THERE, asked, timeout_ms=ASK_MS)
        return [(name, messages) for (name, _), messages in zip(places, counted.messages, strict=True)]

    async def _count_here(self, request: CountThere) -> CountedThere:
        led = [self._partitions.find_by_id(TopicId(at.topic_id), at.partition) for at in request.places]
        return CountedThere([each.high_watermark - each.log.start_offset for each in led])


def _dead_topic(queue: ListedQueue) -> str:
    return config_of(frozenset(queue.settings.items())).dead_topic_of(queue.queue)
