"""Who waits until this broker has done what an image says."""

import asyncio
from uuid import UUID

import pytest

from runnel.broker.seen import Seen
from runnel.cluster.image import Delta, Image, Partition, Topic
from runnel.model.errors import RequestTimedOut, RunnelError, TopicAlreadyExists
from runnel.model.ids import BrokerId, Epoch, TopicId

ME = BrokerId(1)
LONG_MS = 60_000


def topic(number: int, version: int = 0) -> Topic:
    placed = Partition(ME, Epoch(0), Epoch(0), (ME,), (ME,))
    return Topic(TopicId(UUID(int=number)), f"t{number}", (placed,), version=version)


def after(image: Image, *topics: Topic) -> Image:
    return image.apply(Delta(topics={each.id: each for each in topics}))


def test_who_waits_for_topics_does_not_wait_for_those_of_others() -> None:
    async def main() -> None:
        first = Image("c")
        mine = after(first, topic(1))
        newest = after(mine, topic(2))
        seen = Seen(first)
        waiting = asyncio.ensure_future(seen.topics([topic(1)], newest, LONG_MS))
        await asyncio.sleep(0)
        assert not waiting.done()
        seen.reach(mine)
        assert await waiting == [topic(1)]

    asyncio.run(main())


def test_a_topic_that_grew_is_there_when_all_of_it_is() -> None:
    async def main() -> None:
        small = after(Image("c"), topic(1))
        grown = after(small, topic(1, version=1))
        seen = Seen(small)
        waiting = asyncio.ensure_future(seen.topics([topic(1, version=1)], after(grown, topic(2)), LONG_MS))
        await asyncio.sleep(0)
        assert not waiting.done()
        seen.reach(grown)
        assert await waiting == [topic(1, version=1)]

    asyncio.run(main())


def test_what_was_deleted_is_gone_when_that_image_is_reached() -> None:
    async def main() -> None:
        before = after(Image("c"), topic(1))
        gone = before.apply(Delta(topics={topic(1).id: None}))
        seen = Seen(before)
        waiting = asyncio.ensure_future(seen.topics([topic(1)], gone, LONG_MS))
        await asyncio.sleep(0)
        assert not waiting.done()
        seen.reach(gone)
        assert await waiting == [topic(1)]

    asyncio.run(main())


def test_who_says_how_long_waits_no_longer_and_learns_what_is_late() -> None:
    async def main() -> None:
        first = Image("c")
        mine = after(first, topic(1))
        newest = after(mine, topic(2))
        refused = TopicAlreadyExists("it is there")
        asked: list[Topic | RunnelError] = [topic(1), refused, topic(2)]
        early, because, late = await Seen(mine).topics(asked, newest, 1)
        assert (early, because) == (topic(1), refused)
        assert isinstance(late, RequestTimedOut)
        assert isinstance((await Seen(first).topics([topic(1)], newest, -5))[0], RequestTimedOut)
        with pytest.raises(RequestTimedOut):
            await Seen(first).until(lambda image: False, 1)

    asyncio.run(main())
