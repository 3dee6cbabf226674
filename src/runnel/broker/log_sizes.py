"""How many bytes of logs lie before offsets, for who reads much and wants to know how much beforehand.

Rule 1: the leader measures; every other broker asks it, and the next one if it moved.
Rule 2: a view has the sizes of its source.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from runnel.broker.calls import Calls
from runnel.broker.elsewhere import PAUSE_MS, is_elsewhere
from runnel.broker.partitions import Partitions
from runnel.cluster.image import Image, Topic
from runnel.model.errors import InvalidRequest, NotLeader, RunnelError
from runnel.model.log_calls import LOG_SIZES, LOG_SIZES_HERE, OFFSETS_MAX, Sizes, SizesAsked, SizesOf
from runnel.model.seams import Rng

ANSWER_MS: Final = 15_000


class LogSizes:
    """The verb."""

    def __init__(self, partitions: Partitions, calls: Calls, image: Callable[[], Image], rng: Rng) -> None:
        self._partitions = partitions
        self._calls = calls
        self._image = image
        self._rng = rng
        calls.serve(LOG_SIZES, self.sizes)
        calls.serve(LOG_SIZES_HERE, self._sizes_here)

    async def sizes(self, asked: SizesOf) -> Sizes:
        """The bytes before each offset of each place, in their order."""
        if sum(len(place.offsets) for place in asked.places) > OFFSETS_MAX:
            raise InvalidRequest(f"sizes of more than {OFFSETS_MAX} offsets were asked for: ask in parts")
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        return Sizes(list(await asyncio.gather(*(self._sizes_at(place) for place in asked.places))))

    async def _sizes_at(self, place: SizesAsked) -> list[int]:
        end = asyncio.get_running_loop().time() + ANSWER_MS / 1000
        while True:
            image = self._image()
            topic = image.topic_named(place.topic)
            source = image.source_of(topic) if topic.is_view else topic
            try:
                return await self._ask(source, place)
            except RunnelError as error:
                if not is_elsewhere(error, image, source.id):
                    raise
                await self._pause(end, error)

    async def _ask(self, topic: Topic, place: SizesAsked) -> list[int]:
        try:
            partition = self._partitions.find_by_id(topic.id, place.partition)
        except NotLeader:
            leader = self._image().topic_with_id(topic.id).partitions[place.partition].leader
            there = SizesOf([SizesAsked(topic.name, place.partition, place.offsets)])
            return (await self._calls.ask(leader, LOG_SIZES_HERE, there)).places[0]
        return await partition.log.bytes_before(place.offsets)

    async def _sizes_here(self, asked: SizesOf) -> Sizes:
        found = [(self._partitions.find(place.topic, place.partition), place.offsets) for place in asked.places]
        return Sizes([await partition.log.bytes_before(offsets) for partition, offsets in found])

    async def _pause(self, end: float, error: RunnelError) -> None:
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if asyncio.get_running_loop().time() + pause_s >= end:
            raise error
        await asyncio.sleep(pause_s)
