"""What the controller decides. Every function looks at an image and returns what is to change; nothing is done here.

A request for many topics has one result for each: what it became, or the error that it gets. Requests that only want
to know (validate_only) call the same function, and the delta is dropped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from runnel.cluster import config_rules, elections, group_rules, topic_rules
from runnel.cluster.config_rules import BrokerResource, ConfigChange, TopicResource
from runnel.cluster.decision import Decision
from runnel.cluster.group_rules import GroupResource
from runnel.cluster.image import VIEW_OF, DeletedTopic, Delta, Image, Overrides, Topic, fold
from runnel.cluster.nodes import topic_value
from runnel.cluster.topic_rules import Defaults, NewPartitions, NewTopic
from runnel.model.errors import (
    BrokerNotRegistered,
    InvalidRequest,
    InvalidTopicName,
    PolicyViolation,
    RunnelError,
    as_value,
)
from runnel.model.ids import BrokerId, TopicId
from runnel.model.limits import CREATE_PARTITIONS_MAX
from runnel.model.seams import Rng
from runnel.model.topic_config import TopicConfig

PRODUCER_IDS_BLOCK: Final = 1_000  # as many as Kafka hands out at once

T = TypeVar("T")
Resource: TypeAlias = TopicResource | BrokerResource | GroupResource


def _each(requests: Iterable[T], decide: Callable[[T], Topic]) -> Decision[Topic]:
    """Decide one by one; what is refused changes nothing."""
    topics: dict[TopicId, Topic | None] = {}
    results: list[Topic | RunnelError] = []
    for request in requests:
        try:
            topic = decide(request)
        except RunnelError as error:
            results.append(as_value(error))
        else:
            topics[topic.id] = topic
            results.append(topic)
    keys = [result.id if isinstance(result, Topic) else None for result in results]
    return Decision(Delta(topics=topics), results, keys)


def create_topics(
    image: Image, specs: Sequence[NewTopic], new_id: Callable[[], TopicId], defaults: Defaults, rng: Rng
) -> Decision[Topic]:
    """New topics, each under an id that was never used before."""
    _bound(sum(_partitions_asked(spec, defaults) for spec in specs))
    refuse_twice = _once([spec.name for spec in specs])
    base = config_rules.topic_defaults(image, None, defaults.config)
    folded: dict[str, str] = {}  # the names of this request, which must not collide with each other either

    def create(spec: NewTopic) -> Topic:
        refuse_twice(spec.name)
        topic_rules.check_name(image, spec.name, beside=spec.beside)
        other = folded.get(fold(spec.name))
        if other is not None and not spec.beside:
            raise InvalidTopicName(f"topic name {spec.name!r} collides with {other!r} of the same request")
        base.with_overrides(spec.config)
        topic = _new_topic(image, spec, new_id, defaults, rng)
        topic_value(topic)  # refuses what no store can hold
        folded[fold(spec.name)] = spec.name
        return topic

    return _each(specs, create)


def _new_topic(
    image: Image, spec: NewTopic, new_id: Callable[[], TopicId], defaults: Defaults, rng: Rng
) -> Topic:  # fmt: skip
    if VIEW_OF in spec.config:
        return Topic(new_id(), spec.name, (), topic_rules.view_config(image, spec))
    topic_rules.check_view_settings(spec.name, {}, spec.config)
    replicas = topic_rules.replicas_of(image, spec, defaults, rng)
    partitions = tuple(topic_rules.new_partition(image, each) for each in replicas)
    return Topic(new_id(), spec.name, partitions, dict(spec.config))


def create_partitions(image: Image, specs: Sequence[NewPartitions], rng: Rng) -> Decision[Topic]:
    """More partitions for topics that exist; those there are stay as they are."""
    _bound(sum(max(0, spec.total - _partition_count(image, spec.name)) for spec in specs))
    refuse_twice = _once([spec.name for spec in specs])

    def grow(spec: NewPartitions) -> Topic:
        refuse_twice(spec.name)
        topic = image.topic_named(spec.name)
        added = (topic_rules.new_partition(image, each) for each in topic_rules.more_replicas(image, spec, rng))
        grown = replace(topic, partitions=(*topic.partitions, *added), version=topic.version + 1)
        topic_value(grown)
        return grown

    return _each(specs, grow)


def delete_topics(image: Image, topics: Sequence[str | TopicId]) -> Decision[Topic]:
    """Topics named or given by id go; a proof of the deletion stays until their data is gone from every broker."""
    refuse_twice = _once([_topic_of(image, which) for which in topics])

    def delete(which: str | TopicId) -> Topic:
        refuse_twice(_topic_of(image, which))
        return image.topic_named(which) if isinstance(which, str) else image.topic_with_id(which)

    found = _each(topics, delete)
    gone = [topic for topic in found.delta.topics.values() if topic is not None]
    proofs = {topic.id: DeletedTopic(topic.id, topic.name, topic.holders) for topic in gone if topic.holders}
    return Decision(Delta(topics={topic.id: None for topic in gone}, deleted=proofs), found.results, found.keys)


def data_removed(image: Image, broker: BrokerId, topic_ids: Iterable[TopicId]) -> Delta:
    """A broker has no data of these deleted topics any more; the last one takes the proof away."""
    deleted: dict[TopicId, DeletedTopic | None] = {}
    for topic_id in topic_ids:
        proof = image.deleted.get(topic_id)
        if proof is not None and broker in proof.holders:
            holders = tuple(holder for holder in proof.holders if holder != broker)
            deleted[topic_id] = replace(proof, holders=holders, version=proof.version + 1) if holders else None
    return Delta(deleted=deleted)


def unregister(image: Image, broker: BrokerId) -> Delta:
    """A broker that is gone for good counts no longer, and nobody waits for it to remove what was deleted.

    Its epoch stays: should it come back, that is a later life, and has no place that it could be trusted in.
    """
    if broker not in image.admitted:
        known = ", ".join(map(str, sorted(image.registered))) or "none"
        raise BrokerNotRegistered(f"broker {broker} is not registered: the brokers of this cluster are {known}")
    if broker in image.brokers:
        raise InvalidRequest(f"broker {broker} is alive: stop it before it is unregistered")
    held = [topic.name for topic in image.topics.values() if broker in topic.holders]
    if held:
        raise InvalidRequest(
            f"broker {broker} holds replicas of {len(held)} topics, {held[0]!r} among them: "
            "move them to other brokers first ('runnel cluster drain')"
        )
    return Delta(deleted=data_removed(image, broker, image.deleted).deleted, admitted={broker: None})


def alter_config(
    image: Image, resource: Resource, changes: Sequence[ConfigChange], *, incremental: bool, base: TopicConfig
) -> Decision[Topic]:
    """Settings of a topic, of a broker, of all brokers or of a group: some of them, or (not incremental) all anew.

    What follows from new settings for who leads, and who is eligible, is stored before them, or with them.
    """
    if isinstance(resource, TopicResource):
        return _alter_topic(image, resource, changes, incremental, base)
    if isinstance(resource, GroupResource):
        return group_rules.alter(image, resource, changes, incremental=incremental)
    if resource.id is not None and resource.id not in image.registered:
        known = ", ".join(map(str, sorted(image.registered))) or "none"
        raise InvalidRequest(f"broker {resource.id} is not registered: name one of {known}, or none for all brokers")
    present = image.configs.get(resource.key)
    was = present.values if present else {}
    values = config_rules.altered(
        was,
        changes,
        incremental=incremental,
        topic_setting=config_rules.topic_setting_of_broker
        if resource.id is None
        else config_rules.topic_setting_of_one_broker,
        effective=config_rules.topic_defaults(image, resource.id, base),
    )
    if values == was:
        return Decision(Delta())
    configs = {resource.key: Overrides(values, present.version + 1 if present else 0)}
    settled = elections.settle(image.apply(Delta(configs=configs)), base)
    return Decision(Delta(topics=settled.delta.topics, configs=configs), unclean=settled.unclean)


def _alter_topic(
    image: Image, resource: TopicResource, changes: Sequence[ConfigChange], incremental: bool, base: TopicConfig
) -> Decision[Topic]:
    topic = image.topic_named(resource.name)
    values = config_rules.altered(
        topic.config,
        changes,
        incremental=incremental,
        topic_setting=config_rules.topic_setting_of_topic,
        effective=config_rules.topic_config(image, topic, None, base),
    )
    if values == topic.config:
        return Decision(Delta())
    topic_rules.check_view_settings(topic.name, topic.config, values)
    return elections.settle_topic(image, replace(topic, config=values, version=topic.version + 1), base)


def producer_id_block(next_id: int) -> range:
    """The ids to hand out next. They may be used once the end of the range is stored, and are never used twice."""
    return range(next_id, next_id + PRODUCER_IDS_BLOCK)


def _once(names: Sequence[object]) -> Callable[[object], None]:
    """A check that refuses whatever a request names more than once."""
    count: Mapping[object, int] = Counter(names)

    def refuse(name: object) -> None:
        if count[name] > 1:
            raise InvalidRequest(f"{name!r} is named {count[name]} times in one request: name it once")

    return refuse


def _bound(partitions: int) -> None:
    if partitions > CREATE_PARTITIONS_MAX:
        raise PolicyViolation(
            f"one request would create {partitions} partitions, at most {CREATE_PARTITIONS_MAX} are allowed: "
            "use several requests, or fewer partitions"
        )


def _partitions_asked(spec: NewTopic, defaults: Defaults) -> int:
    if spec.assignment is not None:
        return len(spec.assignment)
    return defaults.partitions if spec.partitions == topic_rules.USE_DEFAULT else max(0, spec.partitions)


def _partition_count(image: Image, name: str) -> int:
    topic = image.topic(name)
    return len(topic.partitions) if topic else 0


def _topic_of(image: Image, which: str | TopicId) -> object:
    """A topic counts once, whether by name or by id."""
    return image.names.get(which, which) if isinstance(which, str) else which
