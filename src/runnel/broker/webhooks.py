"""Webhooks: queues whose settings name a URL are delivered by the brokers themselves.

Rule 1: a webhook is a queue with `webhook.url`: its definition lies in the cluster's image, and its retries, dead
        letters, filter and breaker are the queue's.
Rule 2: one broker delivers a queue: the one that leads the first partition of its topic. When that changes, two may for
        a moment; leases keep them from delivering the same message.
Rule 3: a change of the image costs what it changes, however many queues there are.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
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
NOBODY: frozenset[str] = frozenset()

logger = logging.getLogger("runnel.webhooks")


class Webhooks:
    """The couriers of this broker."""

    def __init__(self, me: BrokerId, calls: Calls, clock: Clock, *, allow_private: bool) -> None:
        self._me = me
        self._calls = calls
        self._clock = clock
        self._poster = Poster(allow_private=allow_private)
        self._hooks: dict[str, QueueConfig] = {}  # the queues that have a webhook, wherever that is delivered
        self._of_topic: dict[str, set[str]] = {}  # those, by their topic
        self.couriers: dict[str, Courier] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, image: Image) -> None:
        for queue in sorted(self._learn(image, image.configs)):
            self._place(queue, image)

    def follow(self, change: Change) -> None:
        """Look at the queues that changed, and at those whose topic did (rule 3)."""
        queues = self._learn(change.after, change.delta.configs)
        for topic_id, topic in change.delta.topics.items():
            known = topic or change.before.topics.get(topic_id)
            if known is not None:
                queues |= self._of_topic.get(known.name, NOBODY)
        for queue in sorted(queues):
            self._place(queue, change.after)

    async def stop(self) -> None:
        for queue in list(self.couriers):
            self._end(queue)
        if self._ending:
            await asyncio.wait(self._ending)
        self._poster.close()

    def _learn(self, image: Image, resources: Iterable[str]) -> set[str]:
        """Note which webhooks there are among some settings; gives the queues that have one, or had."""
        queues = set()
        for queue in (each.removeprefix(GROUP) for each in resources if each.startswith(GROUP)):
            before = self._hooks.pop(queue, None)
            config = _hook(queue, image.group_settings(queue))
            if before is not None:
                self._forget(before.topic_of(queue), queue)
            if config is not None:
                self._hooks[queue] = config
                self._of_topic.setdefault(config.topic_of(queue), set()).add(queue)
            if before is not None or config is not None:
                queues.add(queue)
        return queues

    def _forget(self, topic: str, queue: str) -> None:
        self._of_topic[topic].discard(queue)
        if not self._of_topic[topic]:
            del self._of_topic[topic]

    def _place(self, queue: str, image: Image) -> None:
        """Deliver a queue here, with the settings that it has, or not."""
        wanted = self._hooks.get(queue)
        topic = image.topic(wanted.topic_of(queue)) if wanted is not None else None
        if topic is None or not topic.partitions or topic.partitions[0].leader != self._me:
            wanted = None
        present = self.couriers.get(queue)
        if present is not None and present.config != wanted:
            self._end(queue)
        if wanted is not None and queue not in self.couriers:
            grants: Callable[[Waits], Grants] = partial(self._grants, queue, wanted)
            self.couriers[queue] = Courier(queue, wanted, grants, self._poster, self._clock)

    def _grants(self, queue: str, config: QueueConfig, waits: Waits) -> Grants:
        return Grants(
            self._calls, self._me, queue, config.lease_ms, config.webhook_concurrency, waits, consumer=CONSUMER
        )

    def _end(self, queue: str) -> None:
        task = asyncio.get_running_loop().create_task(self.couriers.pop(queue).stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _hook(queue: str, settings: Mapping[str, str]) -> QueueConfig | None:
    """The settings of a queue that has a webhook."""
    if DEFINED not in settings or not settings.get("webhook.url"):
        return None
    try:
        return config_of(frozenset(settings.items()))
    except InvalidConfig as error:
        logger.error("the webhook of queue %r is not delivered: %s", queue, error)
        return None
