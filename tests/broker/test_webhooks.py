"""Which webhooks a broker delivers, and what it costs to follow the image."""

import asyncio
from collections import UserDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.serving import serve

from runnel.broker.broker import Broker
from runnel.broker.webhooks import Webhooks
from runnel.cluster.image import GROUP, NO_LEADER, Change, Delta, Image, Overrides, Partition, Topic
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.shell.clock import SystemClock

ME, OTHER = BrokerId(1), BrokerId(2)


class Counted(UserDict[str, Any]):
    """Settings that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        self.looks += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.looks += 1
            yield key


def topic(number: int, leader: BrokerId) -> Topic:
    partition = Partition(leader, Epoch(0), Epoch(0), (ME, OTHER), (ME, OTHER))
    return Topic(TopicId(UUID(int=number)), f"t{number}", (partition,))


def queue(number: int, **more: str) -> dict[str, Overrides]:
    settings = {"topic": f"t{number}", "webhook.url": "http://127.0.0.1:1/", **more}
    return {f"{GROUP}{number}": Overrides({name.replace("_", "."): text for name, text in settings.items()})}


def hooked(tmp_path: Path, scenario: Callable[[Webhooks], Awaitable[None]]) -> None:
    """Run a scenario with the webhooks of a broker that has none of its own."""

    async def work(broker: Broker) -> None:
        webhooks = Webhooks(ME, broker.calls, SystemClock(), allow_private=True)
        try:
            await scenario(webhooks)
        finally:
            await webhooks.stop()

    serve(tmp_path, work)


def follow(webhooks: Webhooks, image: Image, **parts: Any) -> Image:
    delta = Delta(**parts)
    after = image.apply(delta)
    webhooks.follow(Change(image, after, delta))
    return after


def test_a_webhook_is_where_the_first_partition_is_led(tmp_path: Path) -> None:
    async def scenario(webhooks: Webhooks) -> None:
        mine, others = topic(1, ME), topic(2, OTHER)
        image = Image("c").apply(Delta(topics={mine.id: mine, others.id: others}, configs=queue(1) | queue(2)))
        webhooks.start(image)
        assert list(webhooks.couriers) == ["1"]
        image = follow(webhooks, image, topics={others.id: topic(2, ME), mine.id: topic(1, NO_LEADER)})
        assert list(webhooks.couriers) == ["2"]
        before = webhooks.couriers["2"]
        image = follow(webhooks, image, configs={"2": Overrides({"num.io.threads": "1"})})
        assert webhooks.couriers["2"] is before, "broker 2 is no queue"
        image = follow(webhooks, image, configs=queue(2, lease_ms="5000"))
        assert webhooks.couriers["2"].config.lease_ms == 5_000
        image = follow(webhooks, image, configs=queue(2, topic="t1"))
        assert list(webhooks.couriers) == []
        image = follow(webhooks, image, topics={others.id: None, mine.id: topic(1, ME)})
        assert sorted(webhooks.couriers) == ["1", "2"]
        image = follow(webhooks, image, configs={f"{GROUP}1": None, **queue(2, webhook_url="")})
        assert list(webhooks.couriers) == []
        follow(webhooks, image, topics={mine.id: None})

    hooked(tmp_path, scenario)


@pytest.mark.parametrize("part", ["configs", "topics"])
def test_a_change_costs_what_it_changes_however_many_queues_there_are(tmp_path: Path, part: str) -> None:
    async def scenario(webhooks: Webhooks) -> None:
        topics = [topic(number, OTHER) for number in range(2_000)]
        configs = {key: value for number in range(2_000) for key, value in queue(number).items()}
        image = Image("c").apply(Delta(topics={each.id: each for each in topics}, configs=configs))
        webhooks.start(image)
        if part == "configs":
            delta = Delta(configs=queue(7, lease_ms="5000"))
        else:
            delta = Delta(topics={topics[7].id: topic(7, ME)})
        counted = Counted(image.apply(delta).configs)
        counted.looks = 0
        webhooks.follow(Change(image, replace(image.apply(delta), configs=counted), delta))
        assert counted.looks <= 5
        await asyncio.sleep(0)

    hooked(tmp_path, scenario)
