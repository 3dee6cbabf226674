"""The places of share groups in partitions, at the leaders of these: looked at, moved and dropped when they are asked.

    share.look  where a group is in each of some partitions     -> Found
    share.move  let it go on from other offsets                 -> Moved
    share.drop  what was kept has been deleted: forget it, too

The values are those of calls between brokers (model/calls.py).
"""

from typing import Final
from uuid import UUID

from runnel.broker.calls import Calls, failure_of
from runnel.broker.deliveries import Deliveries
from runnel.broker.end_offsets import commit_written
from runnel.model.calls import Failure, Nothing, Value, Verb
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.net.eager import gather_eagerly
from runnel.queues.values import Rewind


class Places(Value, frozen=True):
    """What a group has in these partitions."""

    group_id: str
    partitions: list[tuple[UUID, int]]


class Place(Value, frozen=True):
    """Where a group is in a partition: everything below `offset` is done, and `lag` messages are not."""

    offset: int
    leader_epoch: int = -1
    lag: int = -1
    failure: Failure | None = None


class Found(Value, frozen=True):
    """One place for each partition, in order."""

    places: list[Place]


class Moves(Value, frozen=True):
    """An offset for each partition, in order."""

    group_id: str
    partitions: list[tuple[UUID, int]]
    offsets: list[int]


class Moved(Value, frozen=True):
    """For each partition, in order: None, or why not."""

    failures: list[Failure | None]


LOOK: Final = Verb("share.look", Places, Found)
MOVE: Final = Verb("share.move", Moves, Moved)
DROP: Final = Verb("share.drop", Places, Nothing)
NOWHERE: Final = Place(-1)  # the group has not come to this partition yet


class SharePlaces:
    """What a leader answers."""

    def __init__(self, deliveries: Deliveries, calls: Calls) -> None:
        self._deliveries = deliveries
        calls.serve(LOOK, self._look)
        calls.serve(MOVE, self._move)
        calls.serve(DROP, self._drop)

    async def _look(self, request: Places) -> Found:
        return Found(await gather_eagerly(self._look_at(request.group_id, key) for key in _keys(request.partitions)))

    async def _look_at(self, group_id: str, key: PartitionKey) -> Place:
        try:
            outlet = self._deliveries.find(group_id, key)
            await commit_written(outlet.partition)
            found = await outlet.describe()
        except RunnelError as error:
            return Place(-1, failure=failure_of(error))
        lag = found.end - found.first_open - found.done_above
        return Place(found.first_open, outlet.partition.leader_epoch, max(lag, 0))

    async def _move(self, request: Moves) -> Moved:
        keys = zip(_keys(request.partitions), request.offsets, strict=True)
        return Moved([await self._move_to(request.group_id, key, offset) for key, offset in keys])

    async def _move_to(self, group_id: str, key: PartitionKey, offset: int) -> Failure | None:
        try:
            await self._deliveries.find(group_id, key).ask("rewind", Rewind(offset))
        except RunnelError as error:
            return failure_of(error)
        return None

    async def _drop(self, request: Places) -> Nothing:
        outlets = self._deliveries.of(request.group_id)
        for key in _keys(request.partitions):
            if (outlet := outlets.get(key)) is not None:
                self._deliveries.close_outlet(outlet)
        return Nothing()


def _keys(partitions: list[tuple[UUID, int]]) -> list[PartitionKey]:
    return [PartitionKey(TopicId(topic_id), number) for topic_id, number in partitions]
