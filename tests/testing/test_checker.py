"""Each anomaly is planted in a good history, and found; the good history has none, and what is legal is none."""

from collections.abc import Callable

import pytest

from runnel.testing.checker import check
from runnel.testing.history import History

from .histories import messages, queues, schedule, sinks, transactions
from .histories.subject import Change, Subject

SUBJECTS: dict[str, Subject] = {
    module.__name__.rpartition(".")[2]: module.SUBJECT for module in (messages, transactions, sinks, queues, schedule)
}


def found(history: History) -> set[str]:
    return {anomaly.name for anomaly in check(history)}


@pytest.mark.parametrize(
    "good", [History, *(subject.good for subject in SUBJECTS.values())], ids=["nothing", *SUBJECTS]
)
def test_nothing_is_found_where_nothing_is(good: Callable[[], History]) -> None:
    assert found(good()) == set()


@pytest.mark.parametrize(
    ("subject", "plant", "names"),
    [
        pytest.param(subject, plant, names, id=f"{name}-{plant.__name__}")
        for name, subject in SUBJECTS.items()
        for plant, names in subject.planted
    ],
)
def test_what_is_planted_is_found(subject: Subject, plant: Change, names: set[str]) -> None:
    history = subject.good()
    plant(history)
    assert found(history) == names


@pytest.mark.parametrize(
    ("subject", "change"),
    [
        pytest.param(subject, change, id=f"{name}-{change.__name__}")
        for name, subject in SUBJECTS.items()
        for change in subject.permitted
    ],
)
def test_what_is_legal_is_not_found(subject: Subject, change: Change) -> None:
    history = subject.good()
    change(history)
    assert found(history) == set()
