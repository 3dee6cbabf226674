"""How partitions are named on the command line: TOPIC for all of a topic, TOPIC/N for one, TOPIC/N=B,B for replicas."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import click

from runnel.client.metadata import ClusterView, TopicPartition

FORM = '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'


def parse(text: str) -> TopicPartition | None:
    """TOPIC/N, or None if it is something else."""
    topic, slash, number = text.rpartition("/")
    return TopicPartition(topic, int(number)) if slash and topic and number.isdecimal() else None


def named(names: Iterable[str], view: ClusterView) -> list[TopicPartition]:
    """The partitions that TOPIC and TOPIC/N stand for; refuses what does not exist."""
    chosen: list[TopicPartition] = []
    for name in names:
        where = parse(name)
        if where is not None:
            chosen.append(existing(where, view))
        elif name in view.topics:
            chosen += view.topics[name].places.values()
        else:
            raise click.ClickException(f"there is no topic {name!r}: check the name.")
    return chosen


def existing(where: TopicPartition, view: ClusterView) -> TopicPartition:
    topic = view.topics.get(where.topic)
    if topic is None:
        raise click.ClickException(f"there is no topic {where.topic!r}: check the name.")
    if where.partition not in topic.partitions:
        last = len(topic.partitions) - 1
        raise click.ClickException(f"there is no partition {where}: topic {where.topic} has 0 to {last}.")
    return where


def assignments(texts: Iterable[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """TOPIC/N=BROKER,BROKER... each."""
    targets = {}
    for text in texts:
        name, equals, brokers = text.partition("=")
        where, numbers = parse(name), [number.strip() for number in brokers.split(",")]
        if not equals or where is None or not all(number.isdecimal() for number in numbers):
            raise click.UsageError(f"{text!r} is not of the form TOPIC/N=BROKER,BROKER... (or give --replicas N)")
        targets[where] = tuple(map(int, numbers))
    return targets


def placed(
    targets: Mapping[TopicPartition, tuple[int, ...]], view: ClusterView, brokers: Collection[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The same, if there are such partitions and brokers; what a broker has already, it may keep while it is away."""
    for where, target in targets.items():
        held = view.topics[existing(where, view).topic].partitions[where.partition].replicas
        unknown = sorted(set(target) - {*brokers, *held})
        if unknown:
            known = ", ".join(map(str, sorted(brokers)))
            raise click.ClickException(
                f"{where} can't lie on {', '.join(map(str, unknown))}: the cluster has brokers {known}."
            )
        if not target or len(set(target)) != len(target):
            raise click.UsageError(f"{where} can't lie on {list(target)}: name at least one broker, and each once.")
    return dict(targets)


def read_plan(file: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """A plan as Kafka's tools write it."""
    import json

    try:
        rows = json.loads(file.read_text())["partitions"]
        return {TopicPartition(r["topic"], int(r["partition"])): tuple(map(int, r["replicas"])) for r in rows}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise click.UsageError(f"{file} can't be read as a plan ({error}): it must be of the form {FORM}") from None
