"""Topics as doors ask for them: made, grown, deleted, altered; and when that is done here.

Rule 1: the controller decides; whoever asks hears of it when this broker has followed, so that it can be used at once.
Rule 2: nobody but brokers themselves changes the topics that they keep their own state in.
Rule 3: topics that clients merely ask for are created a few at a time, and none beyond `topics-max`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from runnel.broker.creation_rate import CreationRate
from runnel.broker.forwarding import TIMEOUT_MS, Forwarding
from runnel.broker.inbox import growth_refused
from runnel.broker.internal import INTERNAL, refusal
from runnel.broker.internal_settings import check_settings
from runnel.broker.queue_definitions import check_filters, check_targets
from runnel.broker.seen import WAIT_MS, Seen
from runnel.broker.views import filter_problem
from runnel.cluster.config_rules import ConfigChange, TopicResource
from runnel.cluster.controller import Resource
from runnel.cluster.image import VIEW_OF, Topic
from runnel.cluster.metadata import Metadata
from runnel.cluster.topic_rules import NewPartitions, NewTopic
from runnel.model.errors import InvalidTopicName, PolicyViolation, RunnelError, TopicAlreadyExists, UnknownTopic
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.limits import topic_name_problem
from runnel.net.bounds import Bounds

logger = logging.getLogger("runnel.broker")
R = TypeVar("R")


class Topics:
    """The verbs about topics."""

    def __init__(
        self, metadata: Metadata, forwarding: Forwarding, seen: Seen, bounds: Bounds, *,
        auto_create: bool, topics_max: int, created_per_second_max: int,
    ) -> None:  # fmt: skip
        self._metadata = metadata
        self._forwarding = forwarding
        self._seen = seen
        self._bounds = bounds
        self._auto_create = auto_create
        self._topics_max = topics_max
        self._rate = CreationRate(created_per_second_max)

    async def caught_up(self) -> None:
        """Wait until this broker has done what the newest image says."""
        wanted = self._metadata.image.version
        await self._seen.until(lambda image: image.version >= wanted)

    def check_name(self, name: str) -> None:
        if problem := topic_name_problem(name):
            raise InvalidTopicName(problem)

    def is_internal(self, name: str) -> bool:
        return name in INTERNAL

    def partition_key(self, topic: str | TopicId, number: int) -> PartitionKey:
        """The partition's lasting name, if there is such a partition."""
        image = self._seen.image
        found = image.shown(image.topic_named(topic) if isinstance(topic, str) else image.topic_with_id(topic))
        if not 0 <= number < len(found.partitions):
            raise UnknownTopic(f"topic {found.name!r} has partitions 0 to {len(found.partitions) - 1}, not {number}")
        return PartitionKey(found.id, number)

    async def create(
        self, specs: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = WAIT_MS
    ) -> list[Topic | RunnelError]:
        """For each topic: what it became, or why not. It is open for clients when this returns."""
        return await self._change_topics(
            specs,
            lambda spec: (
                refusal(spec.name)
                or refusal(spec.config.get(VIEW_OF, ""))
                or self._too_many(len(specs))
                or filter_problem(spec.config)
            ),
            lambda some: self._metadata.create_topics(some, validate_only=validate_only),
            None if validate_only else timeout_ms,
        )

    async def create_partitions(
        self, specs: Sequence[NewPartitions], *, validate_only: bool = False, timeout_ms: int = WAIT_MS
    ) -> list[Topic | RunnelError]:
        return await self._change_topics(
            specs,
            lambda spec: refusal(spec.name) or growth_refused(spec.name),
            lambda some: self._metadata.create_partitions(some, validate_only=validate_only),
            None if validate_only else timeout_ms,
        )

    async def delete(self, topics: Sequence[str | TopicId], *, timeout_ms: int = WAIT_MS) -> list[Topic | RunnelError]:
        return await self._change_topics(
            topics, lambda topic: refusal(self._name_of(topic)), self._metadata.delete_topics, timeout_ms
        )

    def _name_of(self, topic: str | TopicId) -> str:
        if isinstance(topic, str):
            return topic
        known = self._metadata.image.topics.get(topic)  # this broker may not have followed yet
        return known.name if known else ""

    def _too_many(self, more: int) -> RunnelError | None:
        if len(self._seen.image.topics) + more <= self._topics_max:
            return None
        self._bounds.met["topics-max"] += 1
        return PolicyViolation(
            f"the cluster would have more than {self._topics_max} topics: delete some, or raise topics-max"
        )

    def _may_create(self, missing: Sequence[NewTopic]) -> Sequence[NewTopic]:
        """As many of these as clients may have created by merely asking for them."""
        if missing and (refused := self._too_many(len(missing))) is not None:
            logger.warning("%d topics are not created automatically: %s", len(missing), refused)
            return []
        allowed = self._rate.take(len(missing), asyncio.get_running_loop().time())
        if allowed < len(missing):
            self._bounds.met["auto-create-per-second-max"] += 1
        return missing[:allowed]

    async def _change_topics(
        self,
        requests: Sequence[R],
        refusal: Callable[[R], RunnelError | None],
        change: Callable[[list[R]], Awaitable[list[Topic | RunnelError]]],
        timeout_ms: int | None,
    ) -> list[Topic | RunnelError]:
        """Change what is not refused, and wait until this broker has followed; one result for each request.

        It waits for the topics of this request alone; of those that it has not followed in time, it says so.
        """
        refused = [refusal(request) for request in requests]
        allowed = [request for request, error in zip(requests, refused, strict=True) if error is None]
        changed = await change(allowed)
        if timeout_ms is not None:
            changed = await self._seen.topics(changed, self._metadata.image, timeout_ms)
        left = iter(changed)
        return [next(left) if error is None else error for error in refused]

    async def create_asked_for(self, names: Sequence[str]) -> None:
        """Create the topics that are not there yet, if this broker is set up to."""
        if self._auto_create:
            await self.create_missing_topics(names)

    async def create_missing_topics(
        self, names: Sequence[str], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[str, RunnelError]:
        """Create the topics that are not there yet, if they can be; for those that can't, why."""
        missing = [
            NewTopic(name)
            for name in dict.fromkeys(names)
            if name not in self._seen.image.names and not topic_name_problem(name) and not self.is_internal(name)
        ]
        return await self.create_missing(self._may_create(missing), timeout_ms=timeout_ms)

    async def create_missing(
        self, missing: Sequence[NewTopic], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[str, RunnelError]:
        """Create topics as they are described, on whichever broker that can be done, if they are not there."""
        if not missing:
            return {}
        results: Sequence[object]
        if self._forwarding.is_ours:
            results = await self._metadata.create_topics(missing)
        else:
            results = await self._forwarding.create_topics(missing, timeout_ms=timeout_ms)
        refused = report_failures(missing, results)
        made = [spec.name for spec in missing if spec.name not in refused]
        await self._seen.until(lambda image: all(name in image.names for name in made), timeout_ms)
        return refused

    async def alter_configs(
        self,
        resources: Sequence[tuple[Resource, Sequence[ConfigChange]]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[RunnelError | None]:
        check_filters(resources)
        check_targets(resources)
        for resource, changes in resources:
            if isinstance(resource, TopicResource) and (topic := self._metadata.image.topic(resource.name)) is not None:
                check_settings(topic, changes, incremental=incremental)
        errors = await self._metadata.alter_configs(resources, incremental=incremental, validate_only=validate_only)
        await self.caught_up()
        return errors


def report_failures(specs: Sequence[NewTopic], results: Sequence[object]) -> dict[str, RunnelError]:
    """Why topics are not there. It is logged, too: nobody asked for these topics to be made."""
    refused = {
        spec.name: result
        for spec, result in zip(specs, results, strict=True)
        if isinstance(result, RunnelError) and not isinstance(result, TopicAlreadyExists)
    }
    for name, error in refused.items():
        logger.warning("topic %r could not be created automatically: %s", name, error)
    return refused
