"""Which settings of internal topics clients may change.

Rule 1: a setting that decides what is kept in an internal topic, for how long and how safely, is the broker's own.
        Retention would take away groups, queues, transactions and what waits in the schedule.
Rule 2: some settings only say how copying and compaction are done. Clients may change these, and how many replicas have
        to have a decision, which has to follow the number of brokers.
Rule 3: clients may give a setting back the value that the broker itself gave it, or none where it gave none.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from runnel.broker.internal import INTERNAL, settings_of
from runnel.cluster.config_rules import ConfigChange, ConfigOp
from runnel.cluster.image import Topic
from runnel.model.errors import InvalidConfig
from runnel.model.numbers import whole_number

MINIMUM: Final = "min.insync.replicas"
ALTERABLE: Final = frozenset({
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    MINIMUM,
})  # fmt: skip


def check_settings(topic: Topic, changes: Sequence[ConfigChange], *, incremental: bool) -> None:
    """Raise if the topic is internal, and these changes are not the clients' to make."""
    if topic.name not in INTERNAL:
        return
    own = settings_of(topic.name)
    for name, value in _asked(topic, changes, incremental):
        if name == MINIMUM:
            _check_minimum(topic, value)
        elif name not in ALTERABLE and value != own.get(name):
            raise InvalidConfig(
                f"setting {name} of topic {topic.name!r} stays as it is: the topic is internal, and the broker's state"
                f" rests on it; allowed are {', '.join(sorted(ALTERABLE))}"
            )


def _asked(topic: Topic, changes: Sequence[ConfigChange], incremental: bool) -> Iterator[tuple[str, str | None]]:
    """The settings that become others, with their values; None for the default, "" for a part of a list."""
    if incremental:
        for change in changes:
            whole = change.op in (ConfigOp.SET, ConfigOp.DELETE)
            value = None if change.op is ConfigOp.DELETE else change.value if whole else ""
            if value != topic.config.get(change.name):
                yield change.name, value
        return
    after = {change.name: change.value for change in changes}
    for name in sorted(topic.config.keys() | after.keys()):
        if topic.config.get(name) != after.get(name):
            yield name, after.get(name)


def _check_minimum(topic: Topic, value: str | None) -> None:
    """No decision could be kept if more replicas had to have it than there are."""
    replicas = min(len(partition.replicas) for partition in topic.partitions)
    minimum = 1 if value is None else whole_number(value)
    if minimum is None or minimum > replicas:
        raise InvalidConfig(
            f"setting {MINIMUM} of topic {topic.name!r} can't be {value!r}: it has {replicas} replicas,"
            " and the broker could keep nothing in it"
        )
