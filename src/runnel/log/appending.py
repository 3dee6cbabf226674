"""One append: what may be appended, what waits in line, what became of it, and what its sender is told if it failed."""

import asyncio
import errno
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from runnel.log.producers import Producer
from runnel.model.errors import CorruptBatch, Fatal, StorageFailed
from runnel.model.ids import Offset
from runnel.model.seams import Buffer
from runnel.record.batch import BatchHeader, headers, intact

Admit: TypeAlias = Callable[[Producer | None], None]  # raises unless a batch of this producer may be appended now


class Appended(NamedTuple):
    """Where a batch is in the log."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: int  # -1: the records keep the producer's timestamps
    duplicate: bool  # it was there already; nothing was written


class Waiting:
    """One append in line. A follower's batches carry their offsets; a leader's batch gets them when it is written."""

    __slots__ = ("admit", "buffer", "future", "given", "header", "leader_epoch")

    def __init__(
        self, buffer: Buffer, header: BatchHeader, leader_epoch: int, given: list[BatchHeader] | None,
        admit: Admit | None, future: "asyncio.Future[Appended]",
    ) -> None:  # fmt: skip
        self.buffer = buffer
        self.header = header
        self.leader_epoch = leader_epoch
        self.given = given
        self.admit = admit
        self.future = future

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def succeed(self, appended: Appended) -> None:
        if not self.future.done():
            self.future.set_result(appended)


def arrived(buffer: Buffer) -> list[BatchHeader]:
    """The headers of the batches that a follower got, each of them whole and with its checksum; CorruptBatch if not."""
    given, end = [], 0
    for position, header in headers(buffer):
        if not intact(buffer, header, position) or header.last_offset_delta < 0:
            raise CorruptBatch(f"the batch at offset {header.base_offset} arrived damaged: fetch it again")
        given.append(header)
        end = position + header.size
    if not given or end != len(buffer):
        raise CorruptBatch("what arrived does not end with a whole batch: fetch it again")
    return given


def check_continuity(given: list[BatchHeader], end_offset: int, epoch: int) -> None:
    """Offsets go on where the log ends, or after a gap that compaction left; epochs do not fall."""
    for header in given:
        if header.base_offset < end_offset or header.leader_epoch < epoch:
            raise CorruptBatch(
                f"the batch at offset {header.base_offset} of epoch {header.leader_epoch} does not continue a log "
                f"that ends at {end_offset} in epoch {epoch}: truncate to where both agree, then fetch again"
            )
        end_offset, epoch = header.base_offset + header.last_offset_delta + 1, header.leader_epoch


def refusal(path: str, error: OSError) -> StorageFailed:
    advice = {
        errno.ENOSPC: "make room on its file system; appends go on as soon as there is some",
        errno.EDQUOT: "raise the quota or make room; appends go on as soon as there is some",
        errno.EROFS: "its file system is read-only: find out why (dmesg), then mount it writable",
        errno.EFBIG: "raise the file size limit of the broker's process (ulimit -f)",
        errno.EMFILE: "raise the number of open files of the broker's process (ulimit -n)",
    }.get(error.errno or 0, "check the disk (dmesg, SMART); appends are tried again with each request")
    return StorageFailed(f"could not write to {path}: {error.strerror}. Nothing of this batch was kept; {advice}")


def uncut(path: str) -> StorageFailed:
    return StorageFailed(
        f"could not write to {path}: an earlier write failed half-way, and the disk refuses to cut its rest off. "
        "Check the disk; appends are tried again with each request"
    )


def closed(folder: str) -> StorageFailed:
    return StorageFailed(f"{folder} is closed: send again to the partition's next leader")


def dead(folder: str, error: Fatal) -> StorageFailed:
    return StorageFailed(f"{folder} takes no more appends: {error}")
