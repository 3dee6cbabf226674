"""What a follower does with its leader's answer.

Rule 1: an answer counts only for the question it was given to, in the same leader epoch. A question is known by where
        the log ended and in which epoch: a log that was cut and has grown to the same end again asks another one.
Rule 2: where two logs parted is told by leader epochs, never by the high watermark (KIP-101). The follower cuts to the
        end of the last epoch that both may share; that can take several rounds (KIP-279).
Rule 3: a log is begun anew only where the leader no longer has what comes next.
Rule 4: a follower's high watermark is never above its own end, and goes back only with its end.
Rule 5: epochs only rise. If the leader's log goes on with an epoch below the follower's last, that last one never was:
        a bit flipped, outside the checksum. What the follower has of it is damage.
"""

from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from runnel.model.ids import NO_EPOCH, Epoch, Offset


class EpochEnds(Protocol):
    @property
    def latest(self) -> Epoch:
        """Of the last batch."""
        ...

    def end_offset(self, epoch: int) -> tuple[Epoch, Offset]:
        """The largest epoch not above `epoch`, and the first offset after it."""
        ...


class LogEnds(Protocol):
    """What the decision needs to know of a log."""

    @property
    def start_offset(self) -> Offset: ...

    @property
    def end_offset(self) -> Offset: ...

    @property
    def epochs(self) -> EpochEnds: ...


class Question(NamedTuple):
    """What a follower asked its leader: everything below `offset` is held."""

    leader_epoch: Epoch
    offset: Offset
    last_epoch: Epoch  # of the batch before `offset`


class Verdict(Enum):
    """How the leader took the question."""

    OK = "ok"
    DIVERGED = "the follower's log left the leader's"
    OUT_OF_RANGE = "the leader has nothing at this offset"
    REFUSED = "not led there, not in this epoch, or it failed: ask again later"


class Answer(NamedTuple):
    """What the leader said of one partition."""

    verdict: Verdict
    high_watermark: Offset
    start_offset: Offset
    records: memoryview = memoryview(b"")
    epoch: Epoch = NO_EPOCH  # OK: of the first record; DIVERGED: the leader's largest not above the follower's last
    end_offset: Offset = Offset(-1)  # DIVERGED: where that epoch ends there


class Append(NamedTuple):
    """Go on: append the records, if there are any."""

    records: memoryview


class Cut(NamedTuple):
    """Remove everything from `offset` on, then ask again."""

    offset: Offset


class BeginAt(NamedTuple):
    """Remove everything, and go on empty at `offset`."""

    offset: Offset


class Distrust(NamedTuple):
    """There were no epochs above this one where the log says so."""

    epoch: Epoch


class AskAgain(NamedTuple):
    """Nothing can be done with this answer."""

    why: str


Action: TypeAlias = Append | Cut | BeginAt | Distrust | AskAgain


def decide(log: LogEnds, now_following: Epoch, asked: Question, answer: Answer) -> Action:
    """What to do with an answer, in the leader epoch that is followed now."""
    if asked != (now_following, log.end_offset, log.epochs.latest):
        return AskAgain("the answer is to an older question")
    match answer.verdict:
        case Verdict.OK:
            return _append(log, answer)
        case Verdict.DIVERGED:
            return _cut(log, asked, answer)
        case Verdict.OUT_OF_RANGE:
            return _begin_anew(log, answer)
        case Verdict.REFUSED:
            return AskAgain(answer.verdict.value)


def _append(log: LogEnds, answer: Answer) -> Action:
    if NO_EPOCH < answer.epoch < log.epochs.latest:
        return Distrust(answer.epoch)
    return Append(answer.records)


def _cut(log: LogEnds, asked: Question, answer: Answer) -> Action:
    _, own_end = log.epochs.end_offset(answer.epoch)
    cut = Offset(max(min(own_end, answer.end_offset), log.start_offset))
    if own_end < 0 or answer.end_offset < 0 or cut >= asked.offset:
        return AskAgain("the leader saw a difference that is not there")
    return Cut(cut)


def _begin_anew(log: LogEnds, answer: Answer) -> Action:
    empty = log.start_offset == log.end_offset
    if answer.start_offset > log.end_offset or (empty and answer.start_offset != log.end_offset):
        return BeginAt(answer.start_offset)
    return AskAgain(Verdict.OUT_OF_RANGE.value)


def high_watermark(known: Offset, leaders: Offset, own_end: Offset) -> Offset:
    """What a follower may take for committed."""
    return min(max(known, leaders), own_end)
