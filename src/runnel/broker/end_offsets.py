"""End offsets as they are told to clients, and used where something begins or ends at the end of a partition.

Rule 1: an end that is told contains every message that was acknowledged before it was asked for, also with acks=1. Such
        a message is written, and perhaps not committed yet: the answer waits until it is.
Rule 2: an end is never above what may be read (docs/decisions/0001). So it means the same after a crash.
Rule 3: replicas that lag hold an answer up for REPLICAS_S at most. After that, and while fewer than min.insync.replicas
        are in sync, the end is the high watermark, as it always is in Kafka.
Rule 4: a disk that takes longer than SYNC_S for a sync costs an error that clients retry (OFFSET_NOT_AVAILABLE).
Rule 5: a new leader tells no end until all that it found is committed: a reader could have seen a later one (KIP-207).
"""

from typing import Final

from runnel.model.errors import NotEnoughReplicasAfterAppend, OffsetNotAvailable, RequestTimedOut
from runnel.model.ids import Offset
from runnel.replica.partition import Partition

REPLICAS_S: Final = 1.0  # followers that keep up need milliseconds
SYNC_S: Final = 10.0  # Java's clients give a request 30 s


async def commit_written(partition: Partition) -> None:
    """Return when all that is written now is committed, as far as rules 3 and 4 wait for it."""
    end, leader_epoch = partition.log.end_offset, partition.leader_epoch
    for _ in range(round(SYNC_S / REPLICAS_S)):
        try:
            waiting = partition.committed(end, leader_epoch, REPLICAS_S)
            if waiting is not None:
                await waiting
            return
        except NotEnoughReplicasAfterAppend:
            return
        except RequestTimedOut:
            if partition.log.held_offset >= end:
                return
    raise OffsetNotAvailable(
        f"{partition.name} is written up to offset {end}, and its disk has not synced that for {SYNC_S:g} s: try again"
    )


async def end_offset(partition: Partition, *, committed_only: bool) -> Offset:
    """The end of a partition that is led here, for a reader of committed transactions or of everything."""
    await commit_written(partition)
    check_settled(partition)
    return partition.readable_until(committed_only=committed_only)


def check_settled(partition: Partition) -> None:
    """Rule 5."""
    if not partition.settled:
        raise OffsetNotAvailable(f"{partition.name} has a new leader that does not know its end yet: try again")
