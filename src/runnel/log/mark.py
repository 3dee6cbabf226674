"""How far a log is synced, said after each sync, without a sync of its own: a few bytes in the file `synced`.

Rule 1: it only ever says what is true. A power loss may take the last of it back, or all: then less is known.
Rule 2: it carries the number of cuts that the checkpoint has. What was said before a truncation does not count after.

So what a bad batch means can be told apart: below the mark it was synced, and is damage; above, it is a torn tail.
"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log import checkpoint as checkpoints
from runnel.log.layout import SYNCED
from runnel.model.seams import Disk

_MARK = Struct(">4sIqqi")  # magic, CRC-32C of what follows, cuts, offset, leader epoch
_BODY = Struct(">qqi")
_MAGIC = b"RSyn"


class Mark(NamedTuple):
    """Everything below `offset` was synced, and a batch of `epoch` ends there."""

    offset: int
    epoch: int


def encode(cuts: int, offset: int, epoch: int) -> bytes:
    body = _BODY.pack(cuts, offset, epoch)
    return b"".join((_MAGIC, crc32c(body).to_bytes(4, "big"), body))


def load(disk: Disk, folder: str, cuts: int) -> Mark | None:
    """What was said after so many cuts, as far as it is there."""
    data = checkpoints.read_small(disk, f"{folder}/{SYNCED}")
    if data is None or len(data) != _MARK.size:
        return None
    magic, crc, said_cuts, offset, epoch = _MARK.unpack(data)
    if magic != _MAGIC or crc != crc32c(data[-_BODY.size :]) or said_cuts != cuts:
        return None
    return Mark(offset, epoch)
