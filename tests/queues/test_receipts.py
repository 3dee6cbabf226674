"""A receipt comes back as it went, and nothing else is taken for one."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import InvalidRequest
from runnel.model.ids import PartitionKey, TopicId
from runnel.queues.receipts import read, written

u32 = st.integers(0, 2**32 - 1)


@given(st.uuids(), u32, st.integers(0, 2**63 - 1), u32, u32)
def test_a_receipt_comes_back_as_it_went(topic: UUID, number: int, offset: int, attempt: int, generation: int) -> None:
    key = PartitionKey(TopicId(topic), number)
    assert read(written(key, offset, attempt, generation)) == (key, offset, attempt, generation)


@given(st.text(max_size=60))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read(text)


def test_a_receipt_of_another_version_is_refused() -> None:
    text = written(PartitionKey(TopicId(UUID(int=1)), 0), 1, 1, 0)
    with pytest.raises(InvalidRequest, match="version 5"):
        read("BQ" + text[2:])
