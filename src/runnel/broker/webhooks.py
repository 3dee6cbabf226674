"""Webhooks: queues whose settings name a URL are delivered by the brokers themselves.

Rule 1: a webhook is a queue with `webhook.url`: its definition lies in the cluster's image, and its retries, dead
        letters, filter and breaker are the queue's.
Rule 2: one broker delivers a queue: the one that leads the first partition of its topic. When that changes, two may for
        a moment; leases keep them from delivering the same message.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from runnel.broker.calls import Calls
from runnel.broker.courier import Courier
from runnel.broker.fetch import Waits
from runnel.broker.grants import Grants
from runnel.cluster.image import GROUP, Change, Image
from runnel.model.errors import InvalidConfig
from runnel.model.ids import BrokerId
from runnel.model.queue_config import DEFINED, QueueConfig, config_of
from runnel.model.seams import Clock
from runnel.net.posting import Poster

CONSUMER = "webhook"

logger = logging.getLogger("runnel.webhooks")


class Webhooks:
    """The couriers of this broker."""

    def __init__(self, me: BrokerId, calls: Calls, clock: Clock, *, allow_private: bool) -> None:
        self._me = me
        self._calls = calls
        self._clock = clock
        self._poster = Poster(allow_private=allow_private)
        self._couriers: dict[str, Courier] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, image: Image) -> None:
        self._place(image)

    def follow(self, change: Change) -> None:
        delta = change.delta
        if delta.configs or delta.topics:
            self._place(change.after)

    async def stop(self) -> None:
        for queue in list(self._couriers):
            self._end(queue)
        if self._ending:
            await asyncio.wait(self._ending)
        self._poster.close()

    def _place(self, image: Image) -> None:
        wanted = dict(self._ours(image))
        for queue in [queue for queue, one in self._couriers.items() if wanted.get(queue) != one.config]:
            self._end(queue)
        for queue, config in wanted.items():
            if queue not in self._couriers:
                grants: Callable[[Waits], Grants] = partial(self._grants, queue, config)
                self._couriers[queue] = Courier(queue, config, grants, self._poster, self._clock)

    def _ours(self, image: Image) -> list[tuple[str, QueueConfig]]:
        found = []
        for resource, overrides in image.configs.items():
            if not resource.startswith(GROUP) or not overrides.values.get("webhook.url"):
                continue
            queue = resource.removeprefix(GROUP)
            try:
                config = config_of(frozenset(overrides.values.items()))
            except InvalidConfig as error:
                logger.error("the webhook of queue %r is not delivered: %s", queue, error)
                continue
            topic = image.topic(config.topic_of(queue)) if DEFINED in overrides.values else None
            if topic is not None and topic.partitions and topic.partitions[0].leader == self._me:
                found.append((queue, config))
        return found

    def _grants(self, queue: str, config: QueueConfig, waits: Waits) -> Grants:
        return Grants(
            self._calls, self._me, queue, config.lease_ms, config.webhook_concurrency, waits, consumer=CONSUMER
        )

    def _end(self, queue: str) -> None:
        task = asyncio.get_running_loop().create_task(self._couriers.pop(queue).stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
