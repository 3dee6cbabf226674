"""Every error has an answer, and every answer is in one table."""

import inspect

import pytest

from runnel.doors.kafka.errors import CODES, code_of, text_of
from runnel.model import errors
from runnel.wire.kafka.error_codes import ErrorCode

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.RunnelError) and kind is not errors.RunnelError
]
UNANSWERED = {"DataInUse", "DataUnusable", "BrokerIdInUse", "PlaceLost", "RecordUnreadable"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_stands_in_the_table(kind: type[errors.RunnelError]) -> None:
    assert kind in CODES or kind.__name__ in UNANSWERED


def test_a_more_special_error_is_answered_like_its_kind() -> None:
    class Special(errors.UnknownTopic):
        pass

    assert code_of(Special("x")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert text_of(Special("x")) == "x"


def test_no_error_is_code_zero() -> None:
    assert code_of(None) == 0
    assert text_of(None) is None
