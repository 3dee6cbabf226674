"""How the files of one partition are named. Whatever has another name is not ours, and is left alone.

00000000000000000000.log            the batches from offset 0 on
00000000000000000000.index          where to find them by offset and by time
00000000000000000000.transactions   the transactions that were aborted in it, and those that were open at its end
00000000000000004711.producers      idempotent producers as they were before offset 4711
checkpoint                          what is known to be durable
synced                              how far the log is synced, as far as a crash has left that
<base>-<end>.cleaned                compaction at work: what will stand for the segments of [base, end)
<base>-<end>.swap                   the same, complete: it replaces them, now or when the log is next opened
<offset>.damaged                    what was rotten, put aside; never read, never removed
*.tmp                               a file that is being written; its rename makes it count
"""

import re

from runnel.model.ids import Offset

LOG = ".log"
INDEX = ".index"
PRODUCERS = ".producers"
TRANSACTIONS = ".transactions"
CHECKPOINT = "checkpoint"
SYNCED = "synced"
DAMAGED = ".damaged"
CLEANED = ".cleaned"
SWAP = ".swap"
TMP = ".tmp"

_NUMBERED = re.compile(r"(\d{20})(\.log|\.index|\.producers|\.transactions)")
_RANGE = re.compile(r"(\d{20})-(\d{20})(\.cleaned|\.swap)")
_OURS_TMP = re.compile(r"(checkpoint|\d{20}\.(index|producers|transactions|damaged))\.tmp")


def numbered(offset: int, suffix: str) -> str:
    return f"{offset:020}{suffix}"


def ranged(base: int, end: int, suffix: str) -> str:
    return f"{base:020}-{end:020}{suffix}"


def offsets_of(names: list[str], suffix: str) -> list[Offset]:
    """The offsets of the files with this suffix, ascending."""
    found = [_NUMBERED.fullmatch(name) for name in names]
    return sorted(Offset(int(match[1])) for match in found if match and match[2] == suffix)


def ranges_of(names: list[str], suffix: str) -> list[tuple[Offset, Offset]]:
    found = [_RANGE.fullmatch(name) for name in names]
    return sorted((Offset(int(match[1])), Offset(int(match[2]))) for match in found if match and match[3] == suffix)


def is_our_tmp(name: str) -> bool:
    return _OURS_TMP.fullmatch(name) is not None
