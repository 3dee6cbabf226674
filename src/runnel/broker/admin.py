"""Verbs of who runs the cluster: where replicas lie, who leads, who belongs to it. The controller alone does them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from runnel.broker.broker import Broker
from runnel.cluster.image import Image, Partition
from runnel.cluster.reassignment import Move
from runnel.model.errors import ElectionNotNeeded, RunnelError
from runnel.model.ids import BrokerId


class Place(NamedTuple):
    """A partition, by the names people use."""

    topic: str
    number: int


async def reassign(broker: Broker, moves: Sequence[Move], *, factor_may_change: bool) -> list[RunnelError | None]:
    """Move replicas to other brokers, or take that back: for each partition None, or why not."""
    results = await broker.metadata.reassign(moves, factor_may_change=factor_may_change)
    await broker.topics.caught_up()
    return [result if isinstance(result, RunnelError) else None for result in results]


async def unregister(broker: Broker, gone: BrokerId) -> None:
    """Forget a broker that is gone for good."""
    await broker.metadata.unregister(gone)
    await broker.topics.caught_up()


async def elect_leaders(
    broker: Broker, places: Sequence[Place] | None, *, unclean: bool
) -> list[tuple[Place, RunnelError | None]]:
    """Give partitions their preferred leader, or (unclean) any; of all, those that need no election are left out."""
    wanted = list(_all(broker.image) if places is None else places)
    results = await broker.metadata.elect_leaders(wanted, unclean=unclean)
    await broker.topics.caught_up()
    errors = (result if isinstance(result, RunnelError) else None for result in results)
    told = zip(wanted, errors, strict=True)
    if places is not None:
        return list(told)
    return [(place, error) for place, error in told if not isinstance(error, ElectionNotNeeded)]


def reassignments(broker: Broker, places: Iterable[Place] | None) -> Iterator[tuple[Place, Partition]]:
    """The partitions whose replicas are moving, of these or of all; what does not exist does not move."""
    image = broker.image
    for place in _all(image) if places is None else places:
        topic = image.topic(place.topic)
        if topic is None or not 0 <= place.number < len(topic.partitions):
            continue
        partition = topic.partitions[place.number]
        if partition.adding or partition.removing:
            yield place, partition


def _all(image: Image) -> Iterator[Place]:
    for topic in image.topics.values():
        for number in range(len(topic.partitions)):
            yield Place(topic.name, number)
