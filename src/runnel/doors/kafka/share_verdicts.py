"""What a member of a share group says of the messages that it had, as the queue's delivery understands it.

    0 gap      there is no message at this offset (compaction took it): as good as accepted
    1 accept   2 release   3 reject
    4 renew    the member works on it still (KIP-1222); only in requests that say so

An acknowledgement names a span of offsets and what to do with all of them, or with each.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from runnel.model.errors import InvalidRequest
from runnel.queues.values import Outcome, Span, Verdict

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
OUTCOMES = {GAP: Outcome.ACCEPT, ACCEPT: Outcome.ACCEPT, RELEASE: Outcome.RELEASE, REJECT: Outcome.REJECT}
BY_OWNER = 0  # the attempt and the generation of a verdict that is checked by the owner of the lease


class Batch(Protocol):
    """The same struct in ShareFetch and ShareAcknowledge."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class Verdicts(NamedTuple):
    """What is to be settled, and what to be leased on."""

    settled: Sequence[Verdict] = ()
    renewed: Sequence[Verdict] = ()


def verdicts_of(batches: Iterable[Batch], *, may_renew: bool) -> Verdicts:
    """InvalidRequest if they make no sense."""
    settled: list[Verdict] = []
    renewed: list[Verdict] = []
    before = -1
    for batch in batches:
        _check(batch, before)
        before = batch.last_offset
        for span, kind in _runs(batch):
            if kind == RENEW and may_renew:
                renewed.append(Verdict(*span, BY_OWNER, BY_OWNER))
            elif kind in OUTCOMES:
                settled.append(Verdict(*span, BY_OWNER, BY_OWNER, OUTCOMES[kind]))
            else:
                raise InvalidRequest(
                    f"acknowledge type {kind} can't be sent in this request: 0 to 3 can; 4 where the request says that"
                    " it renews, and the group may (share.renew.acknowledge.enable)"
                )
    return Verdicts(settled, renewed)


def _check(batch: Batch, before: int) -> None:
    first, last, kinds = batch.first_offset, batch.last_offset, batch.acknowledge_types
    if not before < first <= last:
        raise InvalidRequest(f"offsets {first} to {last} are out of order: each batch begins behind the one before")
    if len(kinds) not in (1, last - first + 1):
        raise InvalidRequest(
            f"offsets {first} to {last} have {len(kinds)} acknowledge types: send one, or one for each offset"
        )


def _runs(batch: Batch) -> Iterator[tuple[Span, int]]:
    """Neighbours that are treated alike."""
    if len(batch.acknowledge_types) == 1:
        yield Span(batch.first_offset, batch.last_offset), batch.acknowledge_types[0]
        return
    at = batch.first_offset
    for kind, run in groupby(batch.acknowledge_types):
        length = sum(1 for _ in run)
        yield Span(at, at + length - 1), kind
        at += length
