"""The cluster as everyone sees it: immutable, versioned, shared.

A change makes a new image out of the old one and a Delta; whatever the delta does not name is the very same object in
both. `apply(old, diff(old, new))` is `new`. The version of a node in the store is the version, or the epoch, here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from runnel.model.errors import StaleBrokerEpoch, UnknownTopic, UnknownTopicId, ViewSourceGone
from runnel.model.ids import BrokerId, Epoch, TopicId

NO_LEADER: Final = BrokerId(-1)
VIEW_OF: Final = "view.of"
VIEW_OF_ID: Final = "view.of.id"
VIEW_FILTER: Final = "view.filter"
CLUSTER: Final = "cluster"  # the config resource that holds for every broker
NOTE: Final = "#"  # begins the name of what stands among the settings of a group in the store, and is none
GROUP: Final = "group:"  # begins the config resource of a group, which is a queue or has share consumers

K = TypeVar("K")
V = TypeVar("V")
ConfigKey: TypeAlias = str  # CLUSTER, a broker's id in digits, or GROUP and the name of a group


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who holds one partition. The first replica is the preferred leader."""

    leader: BrokerId
    leader_epoch: Epoch
    epoch: Epoch  # of the partition: grows with every change, fences AlterPartition
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...] = ()  # left the ISR below min.insync.replicas, and lost nothing (KIP-966)
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


class Topic(msgspec.Struct, frozen=True):
    id: TopicId
    name: str
    partitions: tuple[Partition, ...]
    config: Mapping[str, str] = msgspec.field(default_factory=dict)  # overrides only
    version: int = 0

    @property
    def is_view(self) -> bool:
        """Whether it shows messages of another topic, and has no partitions of its own."""
        return VIEW_OF in self.config

    @property
    def holders(self) -> tuple[BrokerId, ...]:
        """Every broker that may have bytes of this topic."""
        return tuple(sorted({replica for partition in self.partitions for replica in partition.replicas}))


class DeletedTopic(msgspec.Struct, frozen=True):
    """Proof that a topic was deleted on purpose: the only reason to remove a partition's data."""

    id: TopicId
    name: str
    holders: tuple[BrokerId, ...]  # brokers that have not yet said that its data is gone
    version: int = 0


class Endpoint(NamedTuple):
    host: str
    port: int


class BrokerState(StrEnum):
    """The life of a broker, as its registration says."""

    STARTING = "starting"  # registered under a new epoch; it opens its logs, and has no role
    READY = "ready"  # its logs are open; it waits for the controller
    SERVING = "serving"  # admitted: it can lead, and be in sync
    STOPPING = "stopping"  # it serves until others have taken over what they can


class Broker(msgspec.Struct, frozen=True):
    """A broker that is registered."""

    id: BrokerId
    listeners: Mapping[str, Endpoint]  # by name, e.g. "kafka"
    rack: str | None = None
    epoch: Epoch = Epoch(0)  # grows with each registration, so that an earlier life is told apart
    state: BrokerState = BrokerState.SERVING
    clean: bool = True  # its last life ended in an orderly way: nothing that it had written is missing
    new_disk: bool = False  # its data directory is another one than when it was last admitted
    damaged: tuple[tuple[TopicId, int], ...] = ()  # partitions whose copy it lost, until the controller has heard it
    directory: str = ""  # the id of its data directory
    directory_version: int = 0  # that the node of this id has once the broker is admitted
    version: int = 0

    @property
    def serving(self) -> bool:
        """Whether it can lead and be in sync."""
        return self.state is BrokerState.SERVING

    @property
    def alive(self) -> bool:
        """Whether it can be talked to about partitions: it serves, or still does."""
        return self.state in (BrokerState.SERVING, BrokerState.STOPPING)


class AdmittedBroker(msgspec.Struct, frozen=True):
    """A broker of the cluster, from its first admission until it is unregistered, whether it lives or not."""

    broker: BrokerId
    directory: str  # the id of its data directory when it was last admitted
    rack: str | None = None
    version: int = 0


class Overrides(msgspec.Struct, frozen=True):
    """Settings of one broker, of all of them, or of a group."""

    values: Mapping[str, str] = msgspec.field(default_factory=dict)
    version: int = 0
    notes: Mapping[str, str] = msgspec.field(default_factory=dict)  # of a queue: no settings, see group_rules


class Controller(NamedTuple):
    """Who decides; broker NO_LEADER while nobody does."""

    broker: BrokerId
    epoch: Epoch


class Features(msgspec.Struct, frozen=True):
    levels: Mapping[str, int]
    version: int = 0


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Delta:
    """What changes from one image to the next; None for what is gone."""

    topics: Mapping[TopicId, Topic | None] = field(default_factory=_nothing)
    deleted: Mapping[TopicId, DeletedTopic | None] = field(default_factory=_nothing)
    brokers: Mapping[BrokerId, Broker | None] = field(default_factory=_nothing)
    admitted: Mapping[BrokerId, AdmittedBroker | None] = field(default_factory=_nothing)
    configs: Mapping[ConfigKey, Overrides | None] = field(default_factory=_nothing)
    controller: Controller | None = None
    features: Features | None = None

    @property
    def keys(self) -> set[object]:
        """What is written piece by piece, each under a key of its own."""
        return {*self.topics, *self.deleted, *self.brokers, *self.admitted, *self.configs}

    def __bool__(self) -> bool:
        return any(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True)
class Image:
    """One state of the cluster. All look-ups take the same time however many topics there are."""

    cluster_id: str
    version: int = 0
    controller: Controller = Controller(NO_LEADER, Epoch(0))
    brokers: Mapping[BrokerId, Broker] = field(default_factory=_nothing)  # alive
    admitted: Mapping[BrokerId, AdmittedBroker] = field(default_factory=_nothing)  # alive or not
    topics: Mapping[TopicId, Topic] = field(default_factory=_nothing)
    deleted: Mapping[TopicId, DeletedTopic] = field(default_factory=_nothing)
    configs: Mapping[ConfigKey, Overrides] = field(default_factory=_nothing)
    features: Features = Features({})
    names: Mapping[str, TopicId] = field(default_factory=_nothing)
    folded: Mapping[str, str] = field(default_factory=_nothing)  # names with '.' or '_': folded form -> name

    @property
    def registered(self) -> frozenset[BrokerId]:
        """The brokers of the cluster: those that are alive, and those that are away and have not been unregistered."""
        return frozenset((*self.brokers, *self.admitted))

    def serves(self, broker: BrokerId) -> bool:
        registration = self.brokers.get(broker)
        return registration is not None and registration.serving

    def topic(self, name: str) -> Topic | None:
        topic_id = self.names.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_named(self, name: str) -> Topic:
        topic = self.topic(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return topic

    def topic_with_id(self, topic_id: TopicId) -> Topic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic

    def check_life(self, broker: BrokerId, epoch: Epoch) -> None:
        """Raise unless a broker is registered under exactly this epoch.

        A higher epoch is refused as well: either this image is behind, and the broker asks again, or it is no broker.
        """
        registered = self.brokers.get(broker)
        if registered is None:
            raise StaleBrokerEpoch(f"broker {broker} is not registered, as far as is known here: ask again once it is")
        if registered.epoch != epoch:
            raise StaleBrokerEpoch(
                f"broker {broker} is registered under epoch {registered.epoch}, not {epoch}: end an earlier life, and"
                " ask again in a later one"
            )

    def group_settings(self, name: str) -> Mapping[str, str]:
        """What was set for a group."""
        overrides = self.configs.get(GROUP + name)
        return overrides.values if overrides else {}

    def group_notes(self, name: str) -> Mapping[str, str]:
        """What the controller noted of the queue of that name (cluster/group_rules.py)."""
        overrides = self.configs.get(GROUP + name)
        return overrides.notes if overrides else {}

    def source_of(self, view: Topic) -> Topic:
        """The topic that a view shows messages of: the very one it was made for, not one that has its name now."""
        source = self.topics.get(TopicId(UUID(view.config[VIEW_OF_ID])))
        if source is None:
            name = view.config[VIEW_OF]
            raise ViewSourceGone(f"topic {name!r}, which {view.name!r} is a view of, was deleted: delete the view too")
        return source

    def shown(self, topic: Topic) -> Topic:
        """A topic as clients see it: a view has the partitions of its source."""
        return msgspec.structs.replace(topic, partitions=self.source_of(topic).partitions) if topic.is_view else topic

    def collision(self, name: str) -> str | None:
        """The other topic whose name differs only in '.' and '_', if there is one (metrics can't tell them apart)."""
        other = self.folded.get(fold(name))
        return other if other != name else None

    def apply(self, delta: Delta) -> "Image":
        """The next image. Costs one pointer per topic at most, never one per partition."""
        return replace(
            self,
            version=self.version + 1,
            controller=delta.controller or self.controller,
            brokers=_patched(self.brokers, delta.brokers),
            admitted=_patched(self.admitted, delta.admitted),
            topics=_patched(self.topics, delta.topics),
            deleted=_patched(self.deleted, delta.deleted),
            configs=_patched(self.configs, delta.configs),
            features=delta.features or self.features,
            names=_patched(self.names, dict(self._names(delta.topics, _identity))),
            folded=_patched(self.folded, dict(self._names(delta.topics, _folded))),
        )

    def reflects(self, delta: Delta) -> bool:
        """Whether a change of topics, brokers and settings is part of this image."""
        pairs = (
            (self.topics, delta.topics),
            (self.deleted, delta.deleted),
            (self.brokers, delta.brokers),
            (self.admitted, delta.admitted),
            (self.configs, delta.configs),
        )
        return all(_holds(now, change) for now, change in pairs)

    def _names(
        self, topics: Mapping[TopicId, Topic | None], entry: Callable[[Topic], tuple[str, V] | None]
    ) -> Iterable[tuple[str, V | None]]:
        """Changes of an index over names; removals first, since a new topic may take the name of a deleted one."""
        gone = [
            self.topics[topic_id] for topic_id, topic in topics.items() if topic is None and topic_id in self.topics
        ]
        added = [topic for topic_id, topic in topics.items() if topic is not None and topic_id not in self.topics]
        yield from ((pair[0], None) for pair in map(entry, gone) if pair is not None)
        yield from (pair for pair in map(entry, added) if pair is not None)


def fold(name: str) -> str:
    return name.replace(".", "_")


def _identity(topic: Topic) -> tuple[str, TopicId] | None:
    return topic.name, topic.id


def _folded(topic: Topic) -> tuple[str, str] | None:
    folded = fold(topic.name)
    return (folded, topic.name) if "_" in folded else None


def _patched(old: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    if not changes:
        return old
    new = dict(old)
    for key, value in changes.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = value
    return new


def _holds(now: Mapping[Any, Any], change: Mapping[Any, Any]) -> bool:
    return all(now.get(key) == value for key, value in change.items())


def _difference(old: Mapping[K, V], new: Mapping[K, V]) -> Mapping[K, V | None]:
    if old is new:
        return {}
    gone: dict[K, V | None] = dict.fromkeys(old.keys() - new.keys())
    changed = {key: value for key, value in new.items() if (was := old.get(key)) is not value and was != value}
    return {**gone, **changed}


def diff(old: Image, new: Image) -> Delta:
    """What leads from one image to another, for instance after a reload."""
    return Delta(
        topics=_difference(old.topics, new.topics),
        deleted=_difference(old.deleted, new.deleted),
        brokers=_difference(old.brokers, new.brokers),
        admitted=_difference(old.admitted, new.admitted),
        configs=_difference(old.configs, new.configs),
        controller=new.controller if new.controller != old.controller else None,
        features=new.features if new.features != old.features else None,
    )


class Change(NamedTuple):
    """What subscribers get: the image before, the image now, and what differs."""

    before: Image
    after: Image
    delta: Delta
