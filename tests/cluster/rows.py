"""Partitions and brokers in a few characters: "1|12|3" is led by 1, has 1 and 2 in sync, and 3 eligible."""

from collections.abc import Mapping
from uuid import UUID

from runnel.cluster.image import NO_LEADER, Broker, BrokerState, Delta, Image, Partition, Topic
from runnel.model.ids import BrokerId, Epoch, TopicId

T = TopicId(UUID(int=1))
STATES = {"": BrokerState.SERVING, "!": BrokerState.STOPPING, "*": BrokerState.STARTING, "+": BrokerState.READY}


def ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(digit)) for digit in text)


def row(text: str, replicas: str = "123", epochs: tuple[int, int] = (5, 9)) -> Partition:
    """`leader|isr|elr`, and if it is moving `|adding|removing`; "-" is no leader."""
    leader, isr, elr, adding, removing = (text + "||").split("|")[:5]
    leads = NO_LEADER if leader == "-" else BrokerId(int(leader))
    return Partition(
        leads, Epoch(epochs[0]), Epoch(epochs[1]), ids(replicas), ids(isr), ids(elr), ids(adding), ids(removing)
    )


def shown(partition: Partition) -> str:
    leader = "-" if partition.leader == NO_LEADER else str(partition.leader)
    parts = [leader, *("".join(map(str, sorted(each))) for each in (partition.isr, partition.elr))]
    if partition.adding or partition.removing:
        parts += ["".join(map(str, each)) for each in (partition.adding, partition.removing)]
    return "|".join(parts)


def brokers(text: str, **changes: object) -> dict[BrokerId, Broker]:
    """ "1 2! 3*": 1 serves, 2 stops, 3 starts; "+" is ready."""
    found = {}
    for word in text.split():
        broker = BrokerId(int(word[0]))
        found[broker] = Broker(broker, {}, epoch=Epoch(10 * broker), state=STATES[word[1:]], **changes)  # type: ignore[arg-type]
    return found


def image_of(alive: str, *partitions: Partition, config: Mapping[str, str] | None = None) -> Image:
    topic = Topic(T, "t", partitions, dict(config or {}), version=3)
    return Image("c").apply(Delta(topics={T: topic}, brokers=brokers(alive)))


def after(image: Image, delta: Delta) -> Partition:
    return image.apply(delta).topic_named("t").partitions[0]
