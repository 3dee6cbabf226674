"""How far a log is synced, said after each sync, without a sync of its own: a few bytes in the file `synced`.

Rule 1: it only ever says what is true. A power loss may take the last of it back, or all: then less is known.
Rule 2: it carries the number of cuts that the checkpoint has. What was said before a truncation does not count after.

So what a bad batch means can be told apart: below the mark it was synced, and is damage; above, it is a torn tail. And
it tells what no checksum covers, the offset and the leader epoch of a batch, by where the last of them must lie.
"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log import checkpoint as checkpoints
from runnel.log.layout import SYNCED
from runnel.model.ids import NO_EPOCH
from runnel.model.seams import Disk

_MARK = Struct(">4sIqqiq")  # magic, CRC-32C of what follows, cuts, offset, leader epoch, its first offset
_BODY = Struct(">qqiq")
_MAGIC = b"RSyn"


class Mark(NamedTuple):
    """Everything below `offset` was synced, a batch of `epoch` ends there, and `since` is that epoch's first offset."""

    offset: int
    epoch: int
    since: int

    def may_have(self, epoch: int, last: int, due: int, start: int) -> bool:
        """Whether a batch of this epoch can end with `last`, where `due` is due, in a log that starts at `start`."""
        if self.epoch == NO_EPOCH:
            return True
        if last >= self.offset:
            return due >= self.offset and epoch >= self.epoch  # none reaches across the place where one ended
        if last >= self.since:
            return epoch == self.epoch
        return epoch < self.epoch or (self.since <= start and epoch == self.epoch)  # the start may be in its midst


def encode(cuts: int, offset: int, epoch: int, since: int) -> bytes:
    body = _BODY.pack(cuts, offset, epoch, since)
    return b"".join((_MAGIC, crc32c(body).to_bytes(4, "big"), body))


def load(disk: Disk, folder: str, cuts: int) -> Mark | None:
    """What was said after so many cuts, as far as it is there."""
    data = checkpoints.read_small(disk, f"{folder}/{SYNCED}")
    if data is None or len(data) != _MARK.size:
        return None
    magic, crc, said_cuts, offset, epoch, since = _MARK.unpack(data)
    if magic != _MAGIC or crc != crc32c(data[-_BODY.size :]) or said_cuts != cuts:
        return None
    return Mark(offset, epoch, since)
