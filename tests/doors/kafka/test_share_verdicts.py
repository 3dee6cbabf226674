"""Acknowledgements, as they come over the wire and as the delivery understands them."""

import pytest

from runnel.doors.kafka.share_verdicts import BY_OWNER, Verdicts, verdicts_of
from runnel.model.errors import InvalidRequest
from runnel.queues.values import Outcome, Verdict
from runnel.wire.kafka import messages as m

Batch = m.ShareAcknowledgeRequest.AcknowledgementBatch


def batch(first: int, last: int, *kinds: int) -> m.ShareAcknowledgeRequest.AcknowledgementBatch:
    return Batch(first_offset=first, last_offset=last, acknowledge_types=list(kinds))


def verdict(first: int, last: int, outcome: Outcome = Outcome.ACCEPT) -> Verdict:
    return Verdict(first, last, BY_OWNER, BY_OWNER, outcome)


def test_one_type_is_for_the_whole_batch() -> None:
    found = verdicts_of([batch(5, 9, 1), batch(12, 12, 2), batch(20, 22, 3)], may_renew=False)
    assert found == Verdicts([
        verdict(5, 9), verdict(12, 12, Outcome.RELEASE), verdict(20, 22, Outcome.REJECT)
    ], [])  # fmt: skip


def test_one_type_for_each_offset_makes_runs() -> None:
    found = verdicts_of([batch(0, 6, 1, 1, 0, 2, 2, 3, 4)], may_renew=True)
    assert found.settled == [
        verdict(0, 1), verdict(2, 2), verdict(3, 4, Outcome.RELEASE), verdict(5, 5, Outcome.REJECT)
    ]  # fmt: skip
    assert found.renewed == [verdict(6, 6)]


@pytest.mark.parametrize(
    "batches",
    [
        [batch(5, 4, 1)],
        [batch(-1, 4, 1)],
        [batch(0, 4, 1), batch(4, 5, 1)],  # twice
        [batch(6, 7, 1), batch(0, 1, 1)],
        [batch(0, 4)],
        [batch(0, 4, 1, 1)],
        [batch(0, 0, 5)],
        [batch(0, 0, -1)],
        [batch(0, 0, 4)],  # a renewal in a request that is none
    ],
)
def test_nonsense_is_refused(batches: list[m.ShareAcknowledgeRequest.AcknowledgementBatch]) -> None:
    with pytest.raises(InvalidRequest):
        verdicts_of(batches, may_renew=False)
