"""The newest coordinators are remembered, and not more of them than are needed."""

from runnel.broker.heard import Heard


def test_the_newest_counts_whatever_comes_after_it() -> None:
    heard = Heard()
    assert heard.newest(7) == -1
    heard.note(7, 3)
    heard.note(7, 2)
    assert heard.newest(7) == 3


def test_those_that_were_heard_of_longest_ago_are_forgotten() -> None:
    heard = Heard(limit=2)
    for producer_id in (1, 2, 1, 3):
        heard.note(producer_id, 5)
    assert [heard.newest(producer_id) for producer_id in (1, 2, 3)] == [5, -1, 5]
