"""Reads an image from a store. What can't be read is an error; it is never taken for absent.

Ephemeral nodes vanish without a change of /changes: so brokers and controller are looked at every time.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from runnel.cluster import nodes
from runnel.cluster.image import NO_LEADER, AdmittedBroker, Controller, Delta, Image
from runnel.cluster.nodes import ChangesNode, ClusterNode, ControllerNode, Recent
from runnel.cluster.store import Node, Store, StoreDamaged
from runnel.model.errors import RequestTimedOut
from runnel.model.ids import BrokerId, Epoch, TopicId

TRIES_MAX: Final = 20
READS_AT_ONCE: Final = 200  # in one trip; more would only hold the loop, and fill buffers
FOLDERS: Final = tuple(
    f"{folder}/" for folder in (nodes.TOPICS_PATH, nodes.DELETED_PATH, nodes.BROKERS_PATH, nodes.CONFIGS_PATH)
)

V = TypeVar("V")


async def load(store: Store) -> tuple[Image, tuple[Recent, ...]]:
    """The image as it is, and the last changes that led to it."""
    for _ in range(TRIES_MAX):
        changes = await must_get(store, nodes.CHANGES_PATH)
        image = await _read(store, changes.version)
        after = await must_get(store, nodes.CHANGES_PATH)
        if after.version == changes.version:  # nothing moved while we read: the image is one state, not a mixture
            return image, _recent(changes)
    raise RequestTimedOut("the metadata changed faster than it could be read: try again")


async def catch_up(
    store: Store, image: Image, recent: tuple[Recent, ...]
) -> AsyncIterator[tuple[Image, tuple[Recent, ...]]]:
    """The states after `image`, up to the one that is now. Reads what changed if the last changes say so, else all.

    Many changes may follow each other quickly, and each is known as soon as it is read, whatever comes after it: what
    later changes did not touch is in an earlier state what it is now.
    """
    changes = await must_get(store, nodes.CHANGES_PATH)
    for _ in range(TRIES_MAX):
        if changes.version != image.version:
            recent = _recent(changes)
        touched = _touched(recent, image.version, changes.version)
        if touched is None:
            yield await load(store)
            return
        delta, read = await _read_some(store, image, touched)
        after = await must_get(store, nodes.CHANGES_PATH)
        if _is_one_state(read, _touched(_recent(after), changes.version, after.version)):
            if delta or changes.version != image.version:
                image = replace(image.apply(delta), version=changes.version)
                yield image, recent
            if after.version == changes.version:
                return
        changes = after
    raise RequestTimedOut("the metadata changed faster than it could be read: try again")


def _is_one_state(read: set[str], later: set[str] | None) -> bool:
    """Whether nodes that were read belong together: none of them is a later change's, as far as that can be told."""
    return later is not None and read.isdisjoint(later)


def _recent(changes: Node) -> tuple[Recent, ...]:
    return nodes.decode(nodes.CHANGES_PATH, changes.value, ChangesNode).recent


def _touched(recent: Sequence[Recent], seen: int, now: int) -> set[str] | None:
    """The nodes that the changes after `seen` touched; None if that can't be told."""
    since = [change for change in recent if seen < change.version <= now]
    if now < seen or len(since) != now - seen:
        return None
    touched: set[str] = set()
    for change in since:
        if change.nodes is None:
            return None
        touched.update(change.nodes)
    return None if nodes.FEATURES_PATH in touched else touched


async def _read_some(store: Store, image: Image, touched: set[str]) -> tuple[Delta, set[str]]:
    """What differs from `image` where it was touched; and all nodes that were read for that."""
    names = await store.children(nodes.BROKERS_PATH)
    alive = {BrokerId(int(name)) for name in names}
    wanted = touched | {nodes.broker_path(broker) for broker in alive - image.brokers.keys()}
    # Sorted: a set has another order in each process.
    paths = sorted(path for path in wanted if path.startswith(FOLDERS) or nodes.is_directory_path(path))
    found = dict(zip(paths, await _get_all(store, paths), strict=True))

    def below(folder: str, read: Callable[[str, Node], V]) -> dict[str, V | None]:
        here = {path: node for path, node in found.items() if path.startswith(folder + "/")}
        return {path.rpartition("/")[2]: node and read(path, node) for path, node in here.items()}

    brokers = {BrokerId(int(name)): broker for name, broker in below(nodes.BROKERS_PATH, nodes.read_broker).items()}
    directories = [(path, node) for path, node in found.items() if nodes.is_directory_path(path)]
    topics = below(nodes.TOPICS_PATH, nodes.read_topic)
    deleted = below(nodes.DELETED_PATH, nodes.read_deleted)
    controller = await _controller(store)
    delta = Delta(
        topics={TopicId(UUID(name)): topic for name, topic in topics.items()},
        deleted={TopicId(UUID(name)): topic for name, topic in deleted.items()},
        brokers={**dict.fromkeys(image.brokers.keys() - alive), **brokers},
        admitted={
            nodes.broker_of_directory(path): node and nodes.read_admission(path, node) for path, node in directories
        },
        configs=nodes.config_keys(below(nodes.CONFIGS_PATH, nodes.read_overrides)),
        controller=controller if controller != image.controller else None,
    )
    return delta, {*paths, nodes.CONTROLLER_PATH, nodes.CONTROLLER_EPOCH_PATH}


async def must_get(store: Store, path: str) -> Node:
    """A node that every cluster has."""
    node = await store.get(path)
    if node is None:
        raise StoreDamaged(f"metadata node {path} is missing: restore the metadata store before starting brokers")
    return node


async def _read(store: Store, version: int) -> Image:
    topics = await _below(store, nodes.TOPICS_PATH, nodes.read_topic)
    deleted = await _below(store, nodes.DELETED_PATH, nodes.read_deleted)
    brokers = await _below(store, nodes.BROKERS_PATH, nodes.read_broker)
    configs = await _below(store, nodes.CONFIGS_PATH, nodes.read_overrides)
    everything = Delta(
        topics={topic.id: topic for topic in topics.values()},
        deleted={topic.id: topic for topic in deleted.values()},
        brokers={broker.id: broker for broker in brokers.values()},
        admitted=await _admissions(store),
        configs=nodes.config_keys(configs),
        controller=await _controller(store),
        features=nodes.read_features(nodes.FEATURES_PATH, await must_get(store, nodes.FEATURES_PATH)),
    )
    return Image(await _cluster_id(store), version - 1).apply(everything)


async def _admissions(store: Store) -> dict[BrokerId, AdmittedBroker]:
    paths = [nodes.directory_path(BrokerId(int(name))) for name in await store.children(nodes.BROKER_EPOCHS_PATH)]
    found = zip(paths, await _get_all(store, paths), strict=True)
    admissions = [nodes.read_admission(path, node) for path, node in found if node is not None]
    return {admission.broker: admission for admission in admissions}


async def _below(store: Store, folder: str, read: Callable[[str, Node], V]) -> dict[str, V]:
    """Every node of a folder, by its name."""
    names = await store.children(folder)
    paths = [f"{folder}/{name}" for name in names]
    found = zip(names, paths, await _get_all(store, paths), strict=True)
    # What is gone since it was listed is left out: then /changes moved, and all is read again.
    return {name: read(path, node) for name, path, node in found if node is not None}


async def _get_all(store: Store, paths: Sequence[str]) -> list[Node | None]:
    found: list[Node | None] = []
    for start in range(0, len(paths), READS_AT_ONCE):
        found += await store.get_all(paths[start : start + READS_AT_ONCE])
    return found


async def _controller(store: Store) -> Controller:
    epoch = Epoch((await must_get(store, nodes.CONTROLLER_EPOCH_PATH)).version)
    node = await store.get(nodes.CONTROLLER_PATH)
    if node is None:
        return Controller(NO_LEADER, epoch)
    return Controller(nodes.decode(nodes.CONTROLLER_PATH, node.value, ControllerNode).broker, epoch)


async def _cluster_id(store: Store) -> str:
    cluster = nodes.decode(nodes.CLUSTER_PATH, (await must_get(store, nodes.CLUSTER_PATH)).value, ClusterNode)
    if cluster.format != nodes.FORMAT:
        raise StoreDamaged(
            f"the metadata has format {cluster.format}, this Runnel reads {nodes.FORMAT}: use the Runnel that wrote it"
        )
    return cluster.id
