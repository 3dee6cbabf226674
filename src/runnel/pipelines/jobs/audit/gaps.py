"""Why a log has no message at some offsets, read from its batches. Pure but for `seen`, which reads them.

Rule 1: a batch says which offsets it takes up, from its first to its last, and whose they are; its records say which of
        them are messages still.
Rule 2: what no batch takes up was removed by compaction, where the topic has it. Elsewhere it is a hole: logs grow
        without gaps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from runnel.client.fetcher import Fetched, Fetcher, FetchSettings
from runnel.client.metadata import TopicPartition
from runnel.model.errors import RequestTimedOut
from runnel.pipelines.jobs.audit.judge import Reason, minus
from runnel.pipelines.jobs.audit.offsets import Run, joined
from runnel.record.records import spans

if TYPE_CHECKING:
    from runnel.pipelines.connector.gateway import Gateway

TAKE_MS = 30_000  # what is below the end of the log comes sooner, or its leader is gone for longer than we wait
APART_MAX = 5_000  # gaps that are nearer to each other are read in one go


class Owner(Enum):
    MESSAGES = "messages"
    ABORTED = "aborted"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch of the log."""

    span: Run
    owner: Owner
    messages: tuple[int, ...] = ()  # the offsets of its records, where they matter


def reasons(absent: Sequence[Run], batches: Iterable[Seen], *, compacted: bool) -> dict[Reason, list[Run]]:
    """Sort absent offsets by why they are absent."""
    out: dict[Reason, list[Run]] = {}
    rest = list(absent)
    for batch in batches:
        inside = _within(absent, batch.span)
        if not inside:
            continue
        rest = minus(rest, [batch.span])
        for reason, found in _of_batch(batch, inside, compacted=compacted):
            out.setdefault(reason, []).extend(found)
    out.setdefault(_removed(compacted), []).extend(rest)
    return {reason: joined(found) for reason, found in out.items() if found}


def _of_batch(batch: Seen, inside: list[Run], *, compacted: bool) -> Iterator[tuple[Reason, list[Run]]]:
    if batch.owner is Owner.MARKER:
        yield Reason.MARKER, inside
    elif batch.owner is Owner.ABORTED:
        yield Reason.ABORTED, inside
    else:
        there = [Run(offset, offset) for offset in batch.messages]
        yield Reason.UNREAD, [run for each in there for run in _within(inside, each)]
        yield _removed(compacted), minus(inside, there)


def _removed(compacted: bool) -> Reason:
    return Reason.COMPACTED if compacted else Reason.HOLE


def _within(found: Iterable[Run], bound: Run) -> list[Run]:
    cut = [Run(max(run.first, bound.first), min(run.last, bound.last)) for run in found]
    return [run for run in cut if run.first <= run.last]


def stretches(absent: Sequence[Run]) -> list[Run]:
    """What has to be read to see the batches of all gaps: gaps that are near each other together."""
    out: list[Run] = []
    for run in joined(absent):
        if out and run.first - out[-1].last <= APART_MAX:
            out[-1] = Run(out[-1].first, run.last)
        else:
            out.append(run)
    return out


# --- reading
class LogGaps:
    """Asks the log of one partition why it has gaps."""

    def __init__(self, gateway: "Gateway", where: TopicPartition, *, compacted: bool) -> None:
        self._gateway, self._where, self._compacted = gateway, where, compacted

    def __call__(self, absent: list[Run]) -> Mapping[Reason, list[Run]]:
        found: list[Seen] = []
        for stretch in stretches(absent):
            found += self._gateway.run(seen(self._gateway, self._where, stretch, absent))
        return reasons(absent, found, compacted=self._compacted)


async def seen(gateway: "Gateway", where: TopicPartition, stretch: Run, absent: Sequence[Run]) -> list[Seen]:
    """The batches of a stretch of the log that have something to do with what is absent."""
    fetcher = Fetcher(gateway.cluster, FetchSettings(reset="none"))
    found: list[Seen] = []
    try:
        fetcher.assign({where: stretch.first})
        while True:
            taken = await fetcher.take(TAKE_MS)
            if not taken:
                raise RequestTimedOut(f"{where} can't be read from {stretch.first} on: audit again when it is led")
            found += [_seen(batch) for batch in taken if _within(absent, _span(batch))]
            if taken[-1].header.last_offset >= stretch.last:
                return found
    finally:
        await fetcher.close()


def _span(batch: Fetched) -> Run:
    return Run(batch.header.base_offset, batch.header.last_offset)


def _seen(batch: Fetched) -> Seen:
    if batch.header.control:
        return Seen(_span(batch), Owner.MARKER)
    if batch.aborted:
        return Seen(_span(batch), Owner.ABORTED)
    return Seen(_span(batch), Owner.MESSAGES, tuple(each.offset for each in spans(batch.data)[2]))
