"""Reading what consumers say of messages: which verdicts are one, whose lease one is about, and how one is refused."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from runnel.model.errors import LeaseLost
from runnel.queues.status import Status
from runnel.queues.values import Verdict


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
