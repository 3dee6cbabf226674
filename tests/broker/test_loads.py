"""What is appended together, cut into loads."""

from itertools import chain

import pytest

from runnel.broker.loads import loads


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([], []),
        ([10], [[10]]),
        ([4, 6], [[4, 6]]),
        ([4, 7, 3, 1], [[4], [7, 3], [1]]),
        ([99], [[99]]),
        ([1, 99, 99, 1, 1], [[1], [99], [99], [1, 1]]),
        ([0, 10, 0, 0], [[0, 10, 0, 0]]),
    ],
)
def test_a_load_is_as_large_as_it_may_be_and_nothing_is_left_out(sizes: list[int], cut: list[list[int]]) -> None:
    found = loads(sizes, lambda size: size, 10)
    assert found == cut
    assert list(chain.from_iterable(found)) == sizes
