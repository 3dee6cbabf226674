"""What the door answers to each error."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import runnel
from runnel.doors.http.problems import TABLE, code_of, headers_of, problem_of, row_of
from runnel.model.errors import LeaderNotAvailable, RunnelError, UnknownTopic

OUTSIDE = ("runnel.cli", "runnel.pipelines", "runnel.testing", "runnel.dev")  # no broker raises what these do
# between functions, of clients, at the start: no door sees
INSIDE = ("AlreadyEnded", "LoopClosed", "AddressRefused", "RecordUnreadable")


def every_error() -> list[type[RunnelError]]:
    for module in pkgutil.walk_packages(runnel.__path__, "runnel."):
        if not module.name.startswith(OUTSIDE):
            importlib.import_module(module.name)
    kinds = (kind for kind in _below(RunnelError) if not kind.__module__.startswith(OUTSIDE))
    return sorted((kind for kind in kinds if kind.__name__ not in INSIDE), key=str)


def _below(root: type[RunnelError]) -> Iterator[type[RunnelError]]:
    for kind in root.__subclasses__():
        if kind.__module__.startswith("runnel."):
            yield kind
        yield from _below(kind)


def test_every_class_of_errors_has_a_row() -> None:
    assert [kind for kind in every_error() if kind not in TABLE] == []


def test_codes_are_unique_enough_to_tell_what_happened() -> None:
    codes: dict[str, set[int]] = {}
    for kind in TABLE:
        codes.setdefault(code_of(kind), set()).add(int(row_of(kind).status))
    assert [code for code, statuses in codes.items() if len(statuses) > 1] == []


def test_a_problem_says_what_happened_and_what_to_do() -> None:
    problem = problem_of(UnknownTopic("topic 'x' does not exist"))
    assert (problem.type, problem.code, problem.title) == ("/docs#unknown-topic", "unknown-topic", "Unknown topic")
    assert (problem.status, problem.detail) == (404, "topic 'x' does not exist")
    assert problem.next


@pytest.mark.parametrize("kind", [LeaderNotAvailable])
def test_who_should_come_back_is_told_when(kind: type[RunnelError]) -> None:
    error = kind("not now")
    assert headers_of(error, problem_of(error).status) == [(b"retry-after", b"1")]
