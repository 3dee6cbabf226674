"""Copies for another attempt: what made one, and whether it still counts.

Rule 1: a copy tells what made it: the number of its queue, the partition in which the message was first, and the
        generation of the delivery there. A copy of a copy tells the same.
Rule 2: what another queue made counts for nothing: that was deleted, or has the same topic for its copies. A share
        group's copies are the queue's that it was made into.
Rule 3: what was made before its partition was rewound counts for nothing, wherever it was meanwhile, and however late
        it comes: the message itself is delivered again, or is done. The partitions that hold copies keep that.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from runnel.model import headers as h
from runnel.model.calls import Header
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.step import Step
from runnel.queues.letters import header
from runnel.queues.records import since_record
from runnel.queues.values import Maker, Since

_TOLD: Final = re.compile(r"([0-9]{1,19})/([0-9a-f-]{36})/([0-9]{1,10})/([0-9]{1,19})")


def maker_of(headers: Sequence[Header]) -> Maker | None:
    """What made a copy; None if it does not tell."""
    found = _TOLD.fullmatch(header(tuple(headers), h.COPIED_BY) or "")
    if found is None:
        return None
    made, topic_id, partition, generation = found.groups()
    try:
        key = PartitionKey(TopicId(UUID(topic_id)), int(partition))
    except ValueError:
        return None
    return Maker(int(made), key, int(generation))


def told(headers: Iterable[Header], maker: Maker | None) -> list[Header]:
    """The headers of what leaves a queue; only a copy has a maker."""
    others = [pair for pair in headers if pair[0] != h.COPIED_BY]
    if maker is None:
        return others
    made, (topic_id, partition), generation = maker
    return [*others, (h.COPIED_BY, f"{made}/{topic_id}/{partition}/{generation}".encode())]


class Copies:
    """Which copies count: of each partition that was rewound, those of a generation or a later one."""

    def __init__(self) -> None:
        self._since: dict[PartitionKey, int] = {}

    def restore(self, key: PartitionKey, generation: int | None) -> None:
        """Take over one kept record."""
        self._since.pop(key, None)
        if generation is not None:
            self._since[key] = generation

    def void(self, since: Iterable[Since], step: Step) -> None:
        """Partitions were rewound; rule 3."""
        for key, generation in since:
            if generation > self._since.get(key, -1):
                self._since[key] = generation
                step.records.append(since_record(key, generation))

    def clear(self, step: Step) -> None:
        """They were another queue's."""
        step.records.extend(since_record(key, None) for key in self._since)
        self._since.clear()

    def count(self, maker: Maker | None, made: int) -> bool:
        """Whether what this made counts for the queue of this number."""
        return maker is None or (maker.made in (0, made) and maker.generation >= self._since.get(maker.key, 0))
