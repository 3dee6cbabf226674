"""How the image lies in the store: paths, values as JSON, and the operations that a delta comes to.

docs/formats/metadata.md draws every node. A topic is one node under its id, so that a topic deleted and created again
is another node. Every change also sets /changes: its version is the image's version, it puts all writers in one line,
and it is the one node that a follower has to watch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from runnel.cluster.image import (
    NOTE,
    AdmittedBroker,
    Broker,
    BrokerState,
    ConfigKey,
    DeletedTopic,
    Delta,
    Endpoint,
    Features,
    Image,
    Overrides,
    Partition,
    Topic,
)
from runnel.cluster.store import Check, Create, Delete, Node, Op, Set, StoreDamaged
from runnel.model.errors import InvalidPartitions
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.model.limits import KIB

CLUSTER_PATH: Final = "/cluster"
CHANGES_PATH: Final = "/changes"
CONTROLLER_PATH: Final = "/controller"
CONTROLLER_EPOCH_PATH: Final = "/controller-epoch"
TOPICS_PATH: Final = "/topics"
DELETED_PATH: Final = "/deleted"
BROKERS_PATH: Final = "/brokers"
BROKER_EPOCHS_PATH: Final = "/broker-epochs"
DIRECTORY: Final = "directory"  # the name of a node below each broker's epoch
CONFIGS_PATH: Final = "/configs"
FEATURES_PATH: Final = "/features"
PRODUCER_IDS_PATH: Final = "/producer-ids"

FORMAT: Final = 1
# ZooKeeper takes 1 MiB a request (jute.maxbuffer) and handles 1,000 operations in some 50 ms. Of fewer, each is known
# to followers while the next is still being written.
MULTI_OPS_MAX: Final = 100
MULTI_BYTES_MAX: Final = 512 * KIB
NODE_BYTES_MAX: Final = 900 * KIB  # a multi of one node and its fence still fits
RECENT_CHANGES_MAX: Final = 32  # how far behind a follower may be and still read only what changed
RECENT_NODES_MAX: Final = 1_000  # that all of these changes name, some 50 KB: who needs more reads everything again

S = TypeVar("S")


class ClusterNode(msgspec.Struct, frozen=True):
    id: str
    format: int = FORMAT


class TopicNode(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    partitions: tuple[Partition, ...]
    config: Mapping[str, str] = msgspec.field(default_factory=dict)


class DeletedNode(msgspec.Struct, frozen=True):
    name: str
    holders: tuple[BrokerId, ...]


class BrokerNode(msgspec.Struct, frozen=True):
    epoch: Epoch
    listeners: dict[str, Endpoint]
    rack: str | None
    state: BrokerState
    clean: bool
    directory: str
    directory_version: int
    new_disk: bool = False
    damaged: tuple[tuple[TopicId, int], ...] = ()


class DirectoryNode(msgspec.Struct, frozen=True, omit_defaults=True):
    directory: str
    rack: str | None = None


class ControllerNode(msgspec.Struct, frozen=True):
    broker: BrokerId


class ProducerIdsNode(msgspec.Struct, frozen=True):
    next: int


class Recent(msgspec.Struct, frozen=True):
    """One of the last changes: the nodes it touched, or None for too many to name."""

    version: int
    nodes: tuple[str, ...] | None


class ChangesNode(msgspec.Struct, frozen=True):
    recent: tuple[Recent, ...] = ()


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def decode(path: str, value: bytes, kind: type[S]) -> S:
    """A node's value; one that can't be read is damage, never "not there"."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"metadata node {path} can't be read ({error}): the broker can't start until it is repaired"
        ) from None


def topic_path(topic_id: TopicId) -> str:
    return f"{TOPICS_PATH}/{topic_id}"


def deleted_path(topic_id: TopicId) -> str:
    return f"{DELETED_PATH}/{topic_id}"


def broker_path(broker: BrokerId) -> str:
    return f"{BROKERS_PATH}/{broker}"


def broker_epoch_path(broker: BrokerId) -> str:
    return f"{BROKER_EPOCHS_PATH}/{broker}"


def directory_path(broker: BrokerId) -> str:
    """Below the epoch, not in it: the version of that node must not move when a directory is noted."""
    return f"{broker_epoch_path(broker)}/{DIRECTORY}"


def is_directory_path(path: str) -> bool:
    return path.startswith(f"{BROKER_EPOCHS_PATH}/") and path.endswith(f"/{DIRECTORY}")


def broker_of_directory(path: str) -> BrokerId:
    return BrokerId(int(path.split("/")[-2]))


def config_path(key: ConfigKey) -> str:
    """The name of a group may be anything, that of a node may not."""
    return f"{CONFIGS_PATH}/{quote(key, safe=':')}"


def config_keys(configs: Mapping[str, S]) -> dict[ConfigKey, S]:
    """What was read below CONFIGS_PATH, by what it is about."""
    return {unquote(name): value for name, value in configs.items()}


def _id_of(path: str) -> TopicId:
    try:
        return TopicId(UUID(path.rpartition("/")[2]))
    except ValueError:
        raise StoreDamaged(f"metadata node {path} is not named by a topic id: the broker can't start") from None


def read_topic(path: str, node: Node) -> Topic:
    value = decode(path, node.value, TopicNode)
    return Topic(_id_of(path), value.name, value.partitions, value.config, node.version)


def read_deleted(path: str, node: Node) -> DeletedTopic:
    value = decode(path, node.value, DeletedNode)
    return DeletedTopic(_id_of(path), value.name, value.holders, node.version)


def read_broker(path: str, node: Node) -> Broker:
    value = decode(path, node.value, BrokerNode)
    return Broker(BrokerId(int(path.rpartition("/")[2])), version=node.version, **msgspec.structs.asdict(value))


def read_admission(path: str, node: Node) -> AdmittedBroker:
    value = decode(path, node.value, DirectoryNode)
    return AdmittedBroker(broker_of_directory(path), value.directory, value.rack, node.version)


def broker_value(broker: Broker) -> bytes:
    return encode(msgspec.convert(broker, BrokerNode, from_attributes=True))


def read_overrides(path: str, node: Node) -> Overrides:
    stored = decode(path, node.value, dict[str, str])
    notes = {name: value for name, value in stored.items() if name.startswith(NOTE)}
    return Overrides({name: stored[name] for name in stored if name not in notes}, node.version, notes)


def read_features(path: str, node: Node) -> Features:
    return Features(decode(path, node.value, dict[str, int]), node.version)


def topic_value(topic: Topic) -> bytes:
    """A topic's node; refuses one that no store could hold."""
    value = encode(TopicNode(topic.name, topic.partitions, topic.config))
    if len(value) > NODE_BYTES_MAX:
        raise InvalidPartitions(
            f"topic {topic.name!r} with {len(topic.partitions)} partitions needs {len(value)} bytes of metadata, "
            f"at most {NODE_BYTES_MAX} are possible: use fewer partitions or replicas"
        )
    return value


def first_nodes(cluster_id: str, features: Mapping[str, int]) -> Sequence[Op]:
    """What a new cluster begins with, in one multi."""
    values: dict[str, object] = {
        CLUSTER_PATH: ClusterNode(cluster_id),
        CHANGES_PATH: ChangesNode(),
        CONTROLLER_EPOCH_PATH: ControllerNode(BrokerId(-1)),
        FEATURES_PATH: features,
        PRODUCER_IDS_PATH: ProducerIdsNode(0),
    }
    folders = (TOPICS_PATH, DELETED_PATH, BROKERS_PATH, BROKER_EPOCHS_PATH, CONFIGS_PATH)
    return [Create(path, encode(value)) for path, value in values.items()] + [Create(path, b"") for path in folders]


@dataclass(frozen=True, slots=True)
class Fence:
    """What every change of metadata is checked against, and leaves behind."""

    version: int  # of /changes
    recent: tuple[Recent, ...]
    controller_epoch: Epoch | None  # None: a change that is not the controller's (a registration)

    def ops(self, touched: Sequence[str]) -> list[Op]:
        ops: list[Op] = []
        if self.controller_epoch is not None:
            ops.append(Check(CONTROLLER_EPOCH_PATH, self.controller_epoch))
        return [*ops, Set(CHANGES_PATH, encode(ChangesNode(self.after(touched))), self.version)]

    def after(self, touched: Sequence[str]) -> tuple[Recent, ...]:
        nodes = tuple(touched) if len(touched) <= RECENT_NODES_MAX else None
        return _newest((*self.recent[-(RECENT_CHANGES_MAX - 1) :], Recent(self.version + 1, nodes)))


def _newest(recent: tuple[Recent, ...]) -> tuple[Recent, ...]:
    """As many of the last changes as do not name too many nodes together."""
    left = RECENT_NODES_MAX
    for count, change in enumerate(reversed(recent)):
        left -= len(change.nodes or ())
        if left < 0:
            return recent[len(recent) - count :]
    return recent


class Piece(NamedTuple):
    """A part of a delta that fits into one multi."""

    delta: Delta
    ops: list[Op]


def pieces(image: Image, delta: Delta) -> Iterator[Piece]:
    """Cut a delta of many topics into multis that a store can take; each is whole in itself."""
    topic_ids: list[TopicId] = []
    ops: list[Op] = []
    size = 0
    for topic_id in dict.fromkeys([*delta.topics, *delta.deleted]):
        own = _topic_ops(image, delta, topic_id)
        weight = sum(_weight(op) for op in own)
        if ops and (len(ops) + len(own) > MULTI_OPS_MAX or size + weight > MULTI_BYTES_MAX):
            yield Piece(_only(delta, topic_ids), ops)
            topic_ids, ops, size = [], [], 0
        topic_ids.append(topic_id)
        ops.extend(own)
        size += weight
    if ops:
        yield Piece(_only(delta, topic_ids), ops)
    if delta.configs:
        yield Piece(Delta(configs=delta.configs), [_config_op(image, key, now) for key, now in delta.configs.items()])
    registered = [broker for broker in delta.brokers.values() if broker is not None]
    if registered or delta.admitted:  # last: a broker may serve once all that it leads is its own
        ops = [Set(broker_path(each.id), broker_value(each), each.version - 1) for each in registered]
        ops += [_admission_op(image, broker, now) for broker, now in delta.admitted.items()]
        yield Piece(Delta(brokers=delta.brokers, admitted=delta.admitted), ops)


def _admission_op(image: Image, broker: BrokerId, admission: AdmittedBroker | None) -> Op:
    if admission is None:
        return Delete(directory_path(broker), image.admitted[broker].version)
    return _put(directory_path(broker), encode(DirectoryNode(admission.directory, admission.rack)), admission.version)


def _topic_ops(image: Image, delta: Delta, topic_id: TopicId) -> list[Op]:
    """A topic and the proof of its deletion change together."""
    ops: list[Op] = []
    if topic_id in delta.topics:
        topic = delta.topics[topic_id]
        if topic is None:
            ops.append(Delete(topic_path(topic_id), image.topics[topic_id].version))
        else:
            ops.append(_put(topic_path(topic_id), topic_value(topic), topic.version))
    if topic_id in delta.deleted:
        gone = delta.deleted[topic_id]
        if gone is None:
            ops.append(Delete(deleted_path(topic_id), image.deleted[topic_id].version))
        else:
            value = encode(DeletedNode(gone.name, gone.holders))
            ops.append(_put(deleted_path(topic_id), value, gone.version))
    return ops


def _config_op(image: Image, key: ConfigKey, overrides: Overrides | None) -> Op:
    if overrides is None:
        return Delete(config_path(key), image.configs[key].version)
    return _put(config_path(key), encode({**overrides.values, **overrides.notes}), overrides.version)


def _put(path: str, value: bytes, version: int) -> Op:
    """The operation after which the node has this version."""
    return Create(path, value) if version == 0 else Set(path, value, version - 1)


def _weight(op: Op) -> int:
    return len(op.path) + len(op.value if isinstance(op, Create | Set) else b"") + 32  # 32: headers and access list


def _only(delta: Delta, topic_ids: Sequence[TopicId]) -> Delta:
    return Delta(
        topics={topic_id: delta.topics[topic_id] for topic_id in topic_ids if topic_id in delta.topics},
        deleted={topic_id: delta.deleted[topic_id] for topic_id in topic_ids if topic_id in delta.deleted},
    )
