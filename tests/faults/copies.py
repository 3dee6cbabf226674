"""What the replicas of a topic hold, read from their disks after an orderly end: they must be equal."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log.layout import LOG

_FRONT = Struct(">qiibIhi")  # base offset, length, leader epoch, magic, checksum, attributes, last offset delta
FRAMING_BYTES, HEADER_BYTES, CRC_STARTS = 12, 61, 21


class Batch(NamedTuple):
    base: int
    last: int
    epoch: int
    crc: int


def batches(folder: Path) -> Iterator[Batch]:
    """Every batch of one copy, in order; a checksum that is wrong raises."""
    for file in sorted(folder.glob(f"*{LOG}")):
        data, at = file.read_bytes(), 0
        while at + HEADER_BYTES <= len(data):
            base, length, epoch, _, crc, _, delta = _FRONT.unpack_from(data, at)
            end = at + FRAMING_BYTES + length
            if crc32c(data[at + CRC_STARTS : end]) != crc:
                raise ValueError(f"{file} holds a damaged batch at byte {at}, offset {base}")
            yield Batch(base, base + delta, epoch, crc)
            at = end


def differences(copies: Iterable[tuple[str, Path]]) -> list[str]:
    """Where the copies of one partition differ: within what all have, and how far they reach."""
    read = [(name, list(batches(folder))) for name, folder in copies if folder.exists()]
    found = [] if read else ["nobody has a copy"]
    for (name, one), (other_name, other) in pairwise(read):
        for a, b in zip(one, other, strict=False):
            if a != b:
                found.append(f"{name} has {a}, {other_name} has {b}")
                break
        else:
            if len(one) != len(other):
                found.append(f"{name} has {len(one)} batches, {other_name} {len(other)}")
    return found
