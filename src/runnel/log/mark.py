"""How far a log is synced, said after each sync, without a sync of its own: a few bytes in the file `synced`.

Rule 1: it only ever says what is true. A power loss may take the last of it back, or all: then less is known.
Rule 2: it carries the number of cuts that the checkpoint has. What was said before a truncation does not count after.

So what a bad batch means can be told apart: below the mark it was synced, and is damage; above, it is a torn tail.
"""

from struct import Struct

from crc32c import crc32c

from runnel.log import checkpoint as checkpoints
from runnel.log.layout import SYNCED
from runnel.model.seams import Disk

_MARK = Struct(">4sIqq")  # magic, CRC-32C of what follows, cuts, offset
_BODY = Struct(">qq")
_MAGIC = b"RSyn"


def encode(cuts: int, offset: int) -> bytes:
    return _MARK.pack(_MAGIC, crc32c(_BODY.pack(cuts, offset)), cuts, offset)


def load(disk: Disk, folder: str, cuts: int) -> int:
    """Everything below was synced after this many cuts; 0 if nothing is known."""
    data = checkpoints.read_small(disk, f"{folder}/{SYNCED}")
    if data is None or len(data) != _MARK.size:
        return 0
    magic, crc, said_cuts, offset = _MARK.unpack(data)
    sound = magic == _MAGIC and crc == crc32c(_BODY.pack(said_cuts, offset)) and said_cuts == cuts
    return int(offset) if sound else 0
