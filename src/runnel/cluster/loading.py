"""Reads an image from a store. What can't be read is an error; it is never taken for absent."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from runnel.cluster import nodes
from runnel.cluster.image import NO_LEADER, Controller, Delta, Image
from runnel.cluster.nodes import ChangesNode, ClusterNode, ControllerNode, Recent
from runnel.cluster.store import Node, Store, StoreDamaged, StoreUnavailable
from runnel.model.ids import Epoch

TRIES_MAX: Final = 20
READS_AT_ONCE: Final = 500  # pipelined; more would only fill buffers

V = TypeVar("V")


async def load(store: Store) -> tuple[Image, tuple[Recent, ...]]:
    """The image as it is, and the last changes that led to it."""
    for _ in range(TRIES_MAX):
        changes = await must_get(store, nodes.CHANGES_PATH)
        image = await _read(store, changes.version)
        after = await must_get(store, nodes.CHANGES_PATH)
        if after.version == changes.version:  # nothing moved while we read: the image is one state, not a mixture
            return image, nodes.decode(nodes.CHANGES_PATH, changes.value, ChangesNode).recent
    raise StoreUnavailable("the metadata changed faster than it could be read: try again")


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
        configs=configs,
        controller=await _controller(store),
        features=nodes.read_features(nodes.FEATURES_PATH, await must_get(store, nodes.FEATURES_PATH)),
    )
    return Image(await _cluster_id(store), version - 1).apply(everything)


async def _below(store: Store, folder: str, read: Callable[[str, Node], V]) -> dict[str, V]:
    """Every node of a folder, by its name."""
    names = await store.children(folder)
    found: dict[str, V] = {}
    for start in range(0, len(names), READS_AT_ONCE):
        some = names[start : start + READS_AT_ONCE]
        for name, node in zip(some, await _get_all(store, folder, some), strict=True):
            if node is not None:  # gone since it was listed: then /changes moved, and all is read again
                found[name] = read(f"{folder}/{name}", node)
    return found


async def _get_all(store: Store, folder: str, names: Sequence[str]) -> list[Node | None]:
    return await asyncio.gather(*(store.get(f"{folder}/{name}") for name in names))


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
