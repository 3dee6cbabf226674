"""The error codes, against kio's."""

from kio.schema.errors import ErrorCode as KioErrorCode

from runnel.wire.kafka.error_codes import ErrorCode


def test_the_codes_are_those_of_kafka() -> None:
    assert {code.name.lower(): code.value for code in ErrorCode} == {code.name: code.value for code in KioErrorCode}


def test_the_retriable_ones_are_those_of_kafka() -> None:
    theirs = {code.value for code in KioErrorCode if code.retriable}
    assert {code.value for code in ErrorCode if code.retriable} == theirs
