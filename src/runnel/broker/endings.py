"""Ends of transactions, as their coordinators tell them, in the partitions led here.

Rule 1: each partition answers for itself; one that can't end its transaction now costs the others nothing.
Rule 2: offsets that were committed in a transaction are kept by groups: their partitions get no marker, the groups'
        coordinator is told how it ended.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from runnel.broker.internal import GROUPS, refuse_internal
from runnel.broker.partitions import Partitions
from runnel.model.errors import RunnelError, as_value
from runnel.replica.ending import Ending

COMMIT_TIMEOUT_S: Final = 5.0  # short: a coordinator asks again, and what it has to say to others waits behind this


class GroupEndings(Protocol):
    """What groups make of the end of a transaction."""

    async def end_transaction(
        self, number: int, producer_id: int, epoch: int, commit: bool, *, coordinator_epoch: int, version: int = 1
    ) -> None:
        """Keep or drop the offsets that a producer's transaction has in one partition; returns when that is kept."""
        ...


class Endings:
    """The verb."""

    def __init__(self, partitions: Partitions, groups: GroupEndings) -> None:
        self._partitions = partitions
        self._groups = groups

    async def write(
        self, markers: Sequence[tuple[Ending, Sequence[tuple[str, int]]]]
    ) -> dict[tuple[int, str, int], RunnelError | None]:
        """End transactions; for each producer and partition, None when that is committed, else why not."""
        places = [(ending, topic, number) for ending, partitions in markers for topic, number in partitions]
        errors = await asyncio.gather(*[self._write(*place) for place in places])
        return {
            (ending.producer_id, topic, number): error
            for (ending, topic, number), error in zip(places, errors, strict=True)
        }

    async def _write(self, ending: Ending, topic: str, number: int) -> RunnelError | None:
        try:
            if topic == GROUPS:
                await self._groups.end_transaction(
                    number, ending.producer_id, ending.epoch, ending.commit,
                    coordinator_epoch=ending.coordinator_epoch, version=ending.version,
                )  # fmt: skip
            else:
                refuse_internal(topic)
                await self._partitions.find(topic, number).write_marker(ending, COMMIT_TIMEOUT_S)
        except RunnelError as error:
            return as_value(error)
        return None
