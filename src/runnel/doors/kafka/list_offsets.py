# ListOffsets (key 2), v1-v11.  v2 isolation, v4 leader epochs, v6 flexible, v7 max timestamp, v8 earliest local,
# v9 last tiered
"""ListOffsets: the earliest, the latest, or the first offset at or after a time.

Rule 1: an end contains what was acknowledged before it was asked for (`broker.end_offsets`). So does an answer about
        times: the message that was found is waited for where it is not committed yet.
Rule 2: who reads committed transactions only is told of nothing at or above the last stable offset.
Rule 3: partitions are waited for side by side; views look through their sources one after the other.
"""

import asyncio
from itertools import islice
from typing import NamedTuple

from runnel.broker.end_offsets import check_settled, commit_written, end_offset
from runnel.broker.fetch import LOOK_S, check_epoch
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    OffsetNotAvailable,
    RunnelError,
    UnsupportedVersion,
    as_value,
)
from runnel.model.ids import NO_EPOCH, Epoch
from runnel.net.eager import gather_eagerly
from runnel.replica.partition import Partition
from runnel.wire.kafka import messages as m

UNKNOWN = (-1, -1, int(NO_EPOCH))
READ_COMMITTED = 1
LATEST = -1
NOT_AVAILABLE_SINCE = 5  # older clients do not know that error
SINCE = {-3: 7, -4: 8, -5: 9, -6: 11}  # the version that gave each of these a meaning

Answer = m.ListOffsetsResponse.ListOffsetsPartitionResponse


class Looking(NamedTuple):
    """How the views of one request look through their sources."""

    turn: asyncio.Lock
    until_s: float


async def list_offsets(request: m.ListOffsetsRequest, call: Call) -> m.ListOffsetsResponse:
    committed_only = request.isolation_level == READ_COMMITTED
    looking = Looking(asyncio.Lock(), asyncio.get_running_loop().time() + LOOK_S)
    answers = iter(
        await gather_eagerly(
            _answer_of(topic.name, asked, committed_only, looking, call)
            for topic in request.topics
            for asked in topic.partitions
        )
    )
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name, partitions=list(islice(answers, len(topic.partitions)))
            )
            for topic in request.topics
        ]
    )


async def _answer_of(
    topic: str, asked: m.ListOffsetsRequest.ListOffsetsPartition, committed_only: bool, looking: Looking, call: Call
) -> Answer:
    try:
        partition, view = call.broker.views.find(topic, asked.partition_index)
        check_epoch(partition, Epoch(asked.current_leader_epoch))
        if call.version < SINCE.get(asked.timestamp, 0):
            raise UnsupportedVersion(
                f"timestamp {asked.timestamp} means something since v{SINCE[asked.timestamp]} only"
            )
        offset, timestamp, epoch = await _look_up(partition, asked.timestamp, committed_only)
        if view is not None and asked.timestamp == LATEST:
            async with looking.turn:
                offset = await view.end(partition, looking.until_s, committed_only=committed_only)
    except OffsetNotAvailable as error:
        told = as_value(error) if call.version >= NOT_AVAILABLE_SINCE else LeaderNotAvailable(str(error))
        return Answer(partition_index=asked.partition_index, error_code=code_of(told))
    except RunnelError as error:
        return Answer(partition_index=asked.partition_index, error_code=code_of(error))
    return Answer(partition_index=asked.partition_index, offset=offset, timestamp=timestamp, leader_epoch=epoch)


async def _look_up(partition: Partition, timestamp: int, committed_only: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) of what was asked for; -1 where there is none."""
    log = partition.log
    match timestamp:
        case -1:  # LATEST
            return await end_offset(partition, committed_only=committed_only), -1, partition.leader_epoch
        case -2 | -4:  # earliest; earliest on this disk
            return log.start_offset, -1, log.epochs.epoch_of(log.start_offset)
        case -3:  # the newest message by its timestamp
            found = await log.offset_of_max_timestamp()
        case -5 | -6:  # of tiered storage, which is not there
            return UNKNOWN
        case _ if timestamp >= 0:
            found = await log.offset_by_time(timestamp)
        case _:
            raise InvalidRequest(f"{partition.name}: {timestamp} is neither a time nor one of -1 to -6")
    if found is not None and found[0] >= partition.readable_until(committed_only=committed_only):
        await commit_written(partition)
    if found is None or found[0] >= partition.readable_until(committed_only=committed_only):
        check_settled(partition)
        return UNKNOWN
    return found
