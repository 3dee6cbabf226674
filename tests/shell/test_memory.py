"""The collector is spared what lives long, and finds what was closed all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from runnel.shell.memory import LongLived


class Part:
    """Something that holds itself, as an open partition does."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def lives() -> Iterator[LongLived]:
    gc.unfreeze()  # what the session spares the collector
    gc.collect()
    yield LongLived()
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def test_what_was_opened_is_not_looked_at_again(lives: LongLived) -> None:
    parts = [Part() for _ in range(LongLived.OPENED_MAX)]
    lives.note(LongLived.OPENED_MAX - 1)
    assert gc.get_freeze_count() == 0
    lives.note(1)
    assert gc.get_freeze_count() > len(parts)


def test_garbage_is_not_frozen(lives: LongLived) -> None:
    garbage = weakref.ref(Part())
    lives.note(LongLived.OPENED_MAX)
    assert garbage() is None


def test_what_was_closed_is_found_once_it_is_much(lives: LongLived) -> None:
    part = Part()
    lives.note(LongLived.OPENED_MAX)
    closed = weakref.ref(part)
    lives.note(-LongLived.CLOSED_MAX + 1)
    del part
    lives.note(1)
    gc.collect()
    assert closed() is not None, "it is frozen, and not worth the while"
    lives.note(-1)
    lives.note(1)
    assert closed() is None
    assert gc.get_freeze_count() > 0
