"""Queues as they are defined: created, altered, deleted and listed.

A definition is the settings of the group of the queue's name, in the cluster's image (cluster/group_rules.py).

Rule 1: every broker takes these verbs; what changes something is done by the controller, and answered when all brokers
        that can be reached have followed. Who sends to a queue that was just created finds it everywhere.
Rule 2: a queue has its topic before it is defined; one that exists is taken as it is, if it has as many partitions as
        the queue has lanes.
Rule 3: a queue that begins at the end of its topic begins there when it is created, or given that topic: it gets all
        that is sent from then on, whenever it is first received from.
Rule 4: what lies in a queue's retry topic is delivered by that queue alone: no other one has that topic as its own.
Rule 5: a queue that is created under the name of one that is being deleted waits until nothing of that is left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

from runnel.broker.calls import Calls
from runnel.broker.forwarding import Forwarding
from runnel.broker.internal import refuse_internal
from runnel.broker.keepers import Keepers
from runnel.broker.queue_deletion import Deleting, QueueDeletion
from runnel.broker.seen import Seen
from runnel.cluster.config_rules import ConfigChange, ConfigOp
from runnel.cluster.controller import Resource
from runnel.cluster.group_rules import GroupResource, Purpose, deleting_of
from runnel.cluster.image import GROUP, VIEW_FILTER, Image, Topic
from runnel.cluster.topic_rules import USE_DEFAULT, NewPartitions, NewTopic
from runnel.model.calls import (
    QUEUE_ALTER,
    QUEUE_CREATE,
    QUEUE_DELETE,
    QUEUE_DESCRIBE,
    QUEUE_LIST,
    AlterQueue,
    CreateQueue,
    DeleteQueue,
    ListedQueue,
    ListQueues,
    NamedQueue,
    Nothing,
    QueueDefined,
    QueueDeleted,
    Queues,
    Verb,
)
from runnel.model.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidTopicName,
    NotController,
    QueueAlreadyExists,
    RequestTimedOut,
    RetriableError,
    RunnelError,
    TopicAlreadyExists,
    UnknownQueue,
)
from runnel.model.ids import BrokerId
from runnel.model.internal_calls import IMAGE_FOLLOWED, ImageFollowed
from runnel.model.limits import topic_name_problem
from runnel.model.queue_config import DEFAULTS, DEFINED, QUEUE, QueueConfig, Start, canonical, config_of
from runnel.route import filter as filters

FOLLOW_MS: Final = 5_000  # how long other brokers may take to follow before they are left to themselves
LOOK_MS: Final = 50
LIST_MAX: Final = 10_000  # queues at once

Q = TypeVar("Q")
A = TypeVar("A")


class Admin(Deleting, Protocol):
    """Those that make topics and partitions, too."""

    async def create(self, specs: Sequence[NewTopic]) -> list[Topic | RunnelError]: ...

    async def create_partitions(self, specs: Sequence[NewPartitions]) -> list[Topic | RunnelError]: ...


class QueueDefinitions:
    """The verbs, served as calls."""

    def __init__(
        self, me: BrokerId, admin: Admin, keepers: Keepers, forwarding: Forwarding, calls: Calls,
        newest: Callable[[], Image], seen: Seen, coordinator: Callable[[str], BrokerId],
    ) -> None:  # fmt: skip
        self._me = me
        self._admin = admin
        self._forwarding = forwarding
        self._calls = calls
        self._newest = newest
        self._seen = seen
        self.deletion = QueueDeletion(
            admin, keepers, calls, newest, lambda: forwarding.is_ours, self._followed, coordinator
        )
        self._serve(QUEUE_CREATE, self._create)
        self._serve(QUEUE_ALTER, self._alter)
        self._serve(QUEUE_DELETE, self._delete)
        calls.serve(QUEUE_LIST, self.queues)
        calls.serve(IMAGE_FOLLOWED, self._follow)

    def _serve(self, verb: Verb[Q, A], do: Callable[[Q], Awaitable[A]]) -> None:
        """Here if this broker is the controller, else by the controller."""
        controllers = verb._replace(name=f"controller.{verb.name}")

        async def here(request: Q) -> A:
            if not self._forwarding.is_ours:
                raise NotController("this broker is not the controller (any more): ask again")
            return await do(request)

        async def anywhere(request: Q) -> A:
            if self._forwarding.is_ours:
                return await do(request)
            return await self._forwarding.call(controllers, request)

        self._calls.serve(controllers, here)
        self._calls.serve(verb, anywhere)

    # --- on the controller

    async def _create(self, request: CreateQueue) -> QueueDefined:
        _check_name(request.queue)
        settings = {DEFINED: request.queue, **_canonical(request.settings)}
        config = config_of(frozenset(settings.items()))
        self._check_free(request.queue)  # after the settings: who does with a queue that exists hears of a typo too
        changes = [ConfigChange(name, value) for name, value in settings.items()]
        _check_topics(request.queue, config)
        _check_retries(request.queue, config, self._newest())
        await self.deletion.finish(request.queue)  # rule 5
        await self._configure(GroupResource(request.queue, Purpose.CREATE), changes, validate_only=True)
        made = await self._make_topic(request, config)
        if not request.validate_only:
            await self._configure(GroupResource(request.queue, Purpose.CREATE), changes)
            await self._followed()
            if config.start is not Start.EARLIEST:
                await self._begin(request.queue)
        return QueueDefined(request.queue, config.topic_of(request.queue), made)

    async def _begin(self, queue: str) -> None:
        """Let a queue find its place in each partition, and keep it (rule 3): the leaders do when they are asked."""
        lost = ""
        for _ in range(FOLLOW_MS // LOOK_MS):
            if not (lost := await self._without_place(queue)):
                return
            await asyncio.sleep(LOOK_MS / 1000)
        raise RequestTimedOut(
            f"queue {queue!r} is created, but its place is not kept everywhere yet ({lost}): what is sent there before"
            " it is first received from may be passed over"
        )

    async def _without_place(self, queue: str) -> str:
        """Why the queue has no place in some partition; nothing, if it has one in each."""
        described = await self._calls.ask(self._me, QUEUE_DESCRIBE, NamedQueue(queue))
        return next((state.failure.message for state in described.partitions if state.failure is not None), "")

    def _check_free(self, queue: str) -> None:
        if DEFINED in self._newest().group_settings(queue):
            raise QueueAlreadyExists(f"queue {queue!r} exists already: alter it, or choose another name")

    async def _make_topic(self, request: CreateQueue, config: QueueConfig) -> bool:
        """Whether it had to be made."""
        name = config.topic_of(request.queue)
        existing = self._newest().topic(name)
        if existing is not None:
            _check_is_topic(existing)
            _check_lanes(existing, config)
            return False
        partitions = config.lanes if config.lanes > 1 else request.partitions
        if config.lanes > 1 and request.partitions not in (USE_DEFAULT, config.lanes):
            raise InvalidConfig(f"a queue with {config.lanes} lanes has a topic of as many partitions: leave them out")
        if request.validate_only:
            return True
        [topic] = await self._admin.create([NewTopic(name, partitions, request.replicas)])
        if isinstance(topic, TopicAlreadyExists):
            return False
        if isinstance(topic, RunnelError):
            raise topic
        return True

    async def _alter(self, request: AlterQueue) -> Nothing:
        own = self._newest().group_settings(request.queue)
        if DEFINED not in own:
            raise UnknownQueue(f"queue {request.queue!r} does not exist: create it first")
        changed = {canonical(name): value for name, value in request.settings.items()}
        after = {name: value for name, value in {**own, **changed}.items() if value is not None}
        config = config_of(frozenset(after.items()))
        _check_topics(request.queue, config)
        _check_retries(request.queue, config, self._newest())
        changes = [
            ConfigChange(name, value, ConfigOp.DELETE if value is None else ConfigOp.SET)
            for name, value in request.settings.items()
        ]
        resource = GroupResource(request.queue, Purpose.ALTER_QUEUE)
        await self._configure(resource, changes, validate_only=True)
        source = self._source(config.topic_of(request.queue))
        if not request.validate_only:
            await self._widen(source, config)
            await self._configure(resource, changes)
            await self._followed()
            if config.start is not Start.EARLIEST:
                await self._begin(request.queue)
        return Nothing()

    def _source(self, name: str) -> Topic:
        """The topic that a queue delivers from now on."""
        topic = self._newest().topic(name)
        if topic is None:
            raise InvalidConfig(f"topic {name!r} does not exist: create it before a queue delivers it")
        _check_is_topic(topic)
        return topic

    async def _widen(self, topic: Topic, config: QueueConfig) -> None:
        """More lanes need more partitions; fewer lanes leave them as they are."""
        if config.lanes > 1 and len(topic.partitions) < config.lanes:
            [grown] = await self._admin.create_partitions([NewPartitions(topic.name, config.lanes)])
            if isinstance(grown, RunnelError):
                raise grown

    async def _delete(self, request: DeleteQueue) -> QueueDeleted:
        image = self._newest()
        own = image.group_settings(request.queue)
        if (begun := deleting_of(image.group_notes(request.queue))) is not None:
            topics = [image.topics[topic_id].name for topic_id in begun.topics if topic_id in image.topics]
        elif DEFINED not in own:
            raise UnknownQueue(f"queue {request.queue!r} does not exist: nothing is deleted")
        else:
            topics = self._its_topics(request.queue, config_of(frozenset(own.items()))) if request.topics else []
        if request.validate_only:
            return QueueDeleted(request.queue, topics)
        if begun is None:
            await self.deletion.begin(request.queue, [image.topic_named(name).id for name in topics])
        await self.deletion.finish(request.queue)
        return QueueDeleted(request.queue, topics)

    def _its_topics(self, queue: str, config: QueueConfig) -> list[str]:
        """Those that exist, and that no other queue needs."""
        image = self._newest()
        others = (each for each in queues_of(image) if each.queue != queue)
        needed = {name for each in others for name in _topics_of(each.queue, _config(each.settings))}
        return [name for name in _topics_of(queue, config) if name in image.names and name not in needed]

    async def _configure(
        self, resource: GroupResource, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        [error] = await self._admin.alter_configs([(resource, changes)], incremental=True, validate_only=validate_only)
        if error is not None:
            raise error

    async def _followed(self) -> None:
        """Wait until every broker that can be reached has followed what is decided by now."""
        image = self._newest()
        request = ImageFollowed(image.version)
        others = [broker.id for broker in image.brokers.values() if broker.serving and broker.id != self._me]
        asked = (self._calls.ask(broker, IMAGE_FOLLOWED, request, timeout_ms=2 * FOLLOW_MS) for broker in others)
        for result in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, RetriableError):
                raise result

    # --- on every broker

    async def _follow(self, request: ImageFollowed) -> Nothing:
        await self._seen.until(lambda image: image.version >= request.version, FOLLOW_MS)
        return Nothing()

    async def queues(self, request: ListQueues) -> Queues:
        """A page of them, by name."""
        if not 1 <= request.queues_max <= LIST_MAX:
            raise InvalidRequest(f"{request.queues_max} queues can't be listed: ask for 1 to {LIST_MAX}")
        from_there = queues_of(self._newest(), request.prefix, request.after)
        behind = (each for each in from_there if each.queue > request.after)
        found = list(islice(behind, request.queues_max + 1))
        return Queues(found[: request.queues_max], len(found) > request.queues_max)


def queues_of(image: Image, prefix: str = "", since: str = "") -> Iterator[ListedQueue]:
    """Those that are defined and whose names begin so, by name, from `since` on."""
    first = GROUP + prefix
    keys = (key for key, each in image.configs.items() if key.startswith(first) and DEFINED in each.values)
    for key in sorted(key for key in keys if key >= GROUP + since):
        name, settings = key.removeprefix(GROUP), image.configs[key].values
        yield ListedQueue(name, _config(settings).topic_of(name), dict(settings))


TARGETS: Final = frozenset((DEFINED, "dead.letter.topic", "retry.topic"))  # settings that name topics


def check_filters(resources: Sequence[tuple[Resource, Sequence[ConfigChange]]]) -> None:
    """Refuse settings of groups and views whose filter is none: the controller's rules do not know what a filter is."""
    for resource, changes in resources:
        name = "filter" if isinstance(resource, GroupResource) else VIEW_FILTER
        for change in changes:
            if change.name == name and change.value:
                filters.compile(change.value)


def check_targets(resources: Sequence[tuple[Resource, Sequence[ConfigChange]]]) -> None:
    """Refuse settings of groups that name an internal topic: the controller's rules do not know which these are."""
    for resource, changes in resources:
        if isinstance(resource, GroupResource):
            for change in changes:
                if canonical(change.name) in TARGETS and change.value:
                    refuse_internal(change.value.replace(QUEUE, resource.name))


def _config(settings: Mapping[str, str]) -> QueueConfig:
    return config_of(frozenset(settings.items()))


def _check_name(queue: str) -> None:
    if problem := topic_name_problem(queue):
        raise InvalidTopicName(f"a queue is named as a topic can be: {problem}")


def _canonical(settings: Mapping[str, str]) -> dict[str, str]:
    return {canonical(name): value for name, value in settings.items()}


def _topics_of(queue: str, config: QueueConfig) -> list[str]:
    names = (config.topic_of(queue), config.retry_topic_of(queue), config.dead_topic_of(queue))
    return list(dict.fromkeys(name for name in names if name))


def _check_topics(queue: str, config: QueueConfig) -> None:
    """A message that leaves a queue must not come back to it as a new one."""
    source, retry, dead = config.topic_of(queue), config.retry_topic_of(queue), config.dead_topic_of(queue)
    for name in (source, retry, dead):
        if name and (problem := topic_name_problem(name)):
            raise InvalidTopicName(problem)
        refuse_internal(name)
    if dead and dead in (source, retry):
        raise InvalidConfig(f"dead letters of queue {queue!r} can't go to {dead!r}: the queue would deliver them again")
    if retry and retry == source:
        raise InvalidConfig(f"queue {queue!r} can't have {retry!r} as its topic and as its retry topic")


def _check_retries(queue: str, config: QueueConfig, image: Image) -> None:
    """Rule 4. Looks at all queues, so at no more of each than it has to."""
    source, retry = config.topic_of(queue), config.retry_topic_of(queue)
    for key, each in image.configs.items():
        other = key.removeprefix(GROUP)
        if not key.startswith(GROUP) or DEFINED not in each.values or other == queue:
            continue
        if retry and each.values[DEFINED].replace(QUEUE, other) == retry:
            raise InvalidConfig(
                f"queue {other!r} delivers topic {retry!r}: queue {queue!r} can't have it for its retries,"
                " give it another retry.topic"
            )
        theirs = each.values.get("retry.topic", DEFAULTS.retry_topic).replace(QUEUE, other)
        if theirs and theirs in (source, retry) and _config(each.values).retry_topic_of(other) == theirs:
            raise InvalidConfig(
                f"topic {theirs!r} has the retries of queue {other!r}: queue {queue!r} can't deliver it,"
                f" give it another {'topic' if theirs == source else 'retry.topic'}"
            )


def _check_is_topic(topic: Topic) -> None:
    if topic.is_view:
        raise InvalidTopicName(
            f"topic {topic.name!r} is a view, and holds no messages: take its source, and give the queue a filter"
        )


def _check_lanes(topic: Topic, config: QueueConfig) -> None:
    if config.lanes > len(topic.partitions):
        raise InvalidConfig(
            f"a queue with {config.lanes} lanes needs as many partitions, topic {topic.name!r} has "
            f"{len(topic.partitions)}: give it more, or use fewer lanes"
        )
