"""Reading what consumers say of messages: which verdicts are one, whose lease one is about, and how one is refused.

Rule: a verdict counts for all of its messages, or for none.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from runnel.model.errors import LeaseLost, RunnelError
from runnel.queues.course import Course
from runnel.queues.status import DONE, LEASED, Status
from runnel.queues.values import Outcome, Settled, Verdict
from runnel.queues.window import Piece


def settled(
    course: Course, verdicts: Sequence[Verdict], owner: str, judge: Callable[[Piece, Verdict], None], *,
    done: bool = True,
) -> Settled:  # fmt: skip
    """Judge what is leased as it is said, and tell who can't be heard. `done`: whether done messages may be in it."""
    refused: dict[int, RunnelError] = {}
    for said in merged(verdicts):
        if (held := _held(course, said.verdict, owner, done)) is not None:
            for piece in held:
                judge(piece, said.verdict)
            continue
        for place in range(said.place, said.beyond):
            held = _held(course, verdicts[place], owner, done)
            if held is None:
                refused[place] = refusal(verdicts[place])
            for piece in held or ():
                judge(piece, verdicts[place])
    return Settled(refused)


def _held(course: Course, verdict: Verdict, owner: str, done: bool) -> list[Piece] | None:
    """What is leased of what a verdict is about; None if some of it is not leased like that."""
    held: list[Piece] = []
    if verdict.attempt and verdict.generation != course.generation:
        return None
    for piece in course.window.pieces(verdict.first, verdict.last):
        if piece.status.kind == LEASED and concerns(verdict, piece.status, owner):
            held.append(piece)
        elif not (done and _is_accepted(course, piece, verdict)):
            return None
    return held


def _is_accepted(course: Course, piece: Piece, verdict: Verdict) -> bool:
    """Whether a consumer says once more what is so already."""
    if piece.status.kind != DONE or verdict.outcome is not Outcome.ACCEPT:
        return False
    return course.past.was_accepted(piece.first, piece.last, verdict.attempt)


class Said(NamedTuple):
    """The same, said of neighbours: one verdict for all of them, and where they stand in what was said."""

    place: int
    beyond: int  # that of the first which says something else
    verdict: Verdict


def merged(verdicts: Sequence[Verdict]) -> Iterator[Said]:
    """Verdicts in their order, with neighbours that say the same as one."""
    place = 0
    while place < len(verdicts):
        said = verdicts[place]
        beyond, last = place + 1, said.last
        while beyond < len(verdicts) and _continues(said, last, other := verdicts[beyond]):
            beyond, last = beyond + 1, other.last
        yield Said(place, beyond, said if beyond == place + 1 else replace(said, last=last))
        place = beyond


def _continues(said: Verdict, last: int, other: Verdict) -> bool:
    return (
        other.first == last + 1
        and other.attempt == said.attempt
        and other.outcome == said.outcome
        and other.generation == said.generation
        and other.delay_ms == said.delay_ms
        and other.reason == said.reason
    )


def concerns(verdict: Verdict, status: Status, owner: str) -> bool:
    """Whether the receipt, or the owner where there is none, is that of this lease."""
    if verdict.attempt:
        return status.attempts == verdict.attempt
    return bool(owner) and status.owner == owner


def refusal(verdict: Verdict) -> LeaseLost:
    """Why nothing came of a verdict."""
    many = f"messages {verdict.first} to {verdict.last} are" if verdict.first < verdict.last else (
        f"message {verdict.first} is"
    )  # fmt: skip
    attempt = f" by attempt {verdict.attempt}" if verdict.attempt else ""
    return LeaseLost(
        f"{many} not leased{attempt} any more: the lease ran out, was settled, or the queue was rewound; what is not"
        " done is delivered again"
    )
