"""The end of a transaction voids the questions about it, and nothing is left of those that are answered."""

import pytest

from runnel.broker.asking import Questions
from runnel.groups.values import EndTransaction


@pytest.mark.parametrize(
    ("producer_id", "epoch", "bumped", "voids"),
    [(7, 4, False, True), (7, 5, False, True), (7, 5, True, True), (7, 4, True, False), (7, 3, False, False),
     (8, 5, False, False)],
)  # fmt: skip
def test_what_an_end_voids(producer_id: int, epoch: int, bumped: bool, voids: bool) -> None:
    questions = Questions()
    ending = EndTransaction(
        producer_id=producer_id, producer_epoch=epoch, commit=True, coordinator_epoch=0, bumped=bumped
    )
    with questions.about(7, 4) as question, questions.about(7, 4) as other:
        questions.end(ending)
        questions.end(EndTransaction(producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, bumped=True))
        assert question.void is other.void is voids
    assert len(questions) == 0


def test_a_question_that_fails_is_over() -> None:
    questions = Questions()
    with pytest.raises(ValueError, match="x"), questions.about(7, 4):
        raise ValueError("x")
    assert len(questions) == 0
