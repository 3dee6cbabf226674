"""What is worth a line when one view of a cluster follows another. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runnel.client.health import Health, health_of, partitions_of
from runnel.client.metadata import ClusterView, TopicPartition

NAMES_MAX = 5  # names in one line


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at the cluster."""

    view: ClusterView
    health: Health
    moving: int = 0  # partitions whose replicas are being moved

    @classmethod
    def of(cls, view: ClusterView, adding: Mapping[TopicPartition, tuple[int, ...]] | None = None) -> "Sight":
        """`adding`: replicas that partitions are being given; they are not missed yet."""
        return cls(view, health_of(view, adding=adding), len(adding or {}))


def notable(before: Sight | None, after: Sight) -> list[str]:
    """What happened between two looks, in plain words."""
    return [*_brokers(before, after), *_topics(before, after), *_leaders(before, after), *_copies(before, after)]


def _brokers(before: Sight | None, after: Sight) -> Iterator[str]:
    known = set((before or after).view.brokers)
    for number in sorted(set(after.view.brokers) - known):
        yield f"broker {number} serves in the cluster"
    for number in sorted(known - set(after.view.brokers)):
        yield f"broker {number} is gone from the cluster"
    controller = after.view.controller_id
    if controller != (before.view.controller_id if before else -1):
        yield f"broker {controller} is the controller" if controller >= 0 else "there is no controller"


def _topics(before: Sight | None, after: Sight) -> Iterator[str]:
    if before is None:
        return
    was, now = set(before.view.topics), set(after.view.topics)
    if now - was:
        yield f"new: {_some('topic', sorted(now - was))}"
    if was - now:
        yield f"deleted: {_some('topic', sorted(was - now))}"


def _leaders(before: Sight | None, after: Sight) -> Iterator[str]:
    if before is None:
        return
    led = {where: p.leader for where, p in partitions_of(before.view)}
    moves = Counter((led.get(where, p.leader), p.leader) for where, p in partitions_of(after.view))
    for (old, new), count in sorted(moves.items()):
        if old >= 0 and new >= 0 and old != new:
            yield f"the lead of {_count(count)} went from broker {old} to broker {new}"


def _copies(before: Sight | None, after: Sight) -> Iterator[str]:
    was, now = (before.health if before else None), after.health
    offline = len(now.offline)
    if offline != (len(was.offline) if was else 0):
        yield f"{_count(offline)} without a leader" if offline else "every partition has a leader again"
    if after.moving != (before.moving if before else 0):
        yield f"replicas of {_count(after.moving)} are moving" if after.moving else "no replica is moving any more"
    missing = len(now.under_replicated)
    if missing != (len(was.under_replicated) if was else 0):
        yield f"{_count(missing)} under-replicated" if missing else "every replica is in sync again"


def _count(partitions: int) -> str:
    return f"{partitions:,} partition{'' if partitions == 1 else 's'}"


def _some(noun: str, names: list[str]) -> str:
    rest = len(names) - NAMES_MAX
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(names[:NAMES_MAX])}{more}"
