"""Every code means something, and says what to do."""

import pytest

from runnel.client.errors import MEANINGS, Refused, Remedy, check, error_of, name_of, remedy_of
from runnel.model.errors import ClientError, NotLeader, RetriableError
from runnel.wire.kafka.error_codes import ErrorCode


@pytest.mark.parametrize("code", MEANINGS)
def test_a_code_that_is_tried_again_raises_what_may_be_tried_again(code: int) -> None:
    meaning = MEANINGS[code]
    if Remedy.RETRY in meaning.remedy:
        assert issubclass(meaning.error, RetriableError)
    assert meaning.advice


def test_an_error_says_what_happened_where_and_what_to_do() -> None:
    error = error_of(ErrorCode.NOT_LEADER_OR_FOLLOWER, action="append to orders/3", broker="b:9092")
    assert isinstance(error, NotLeader)
    assert str(error) == "can't append to orders/3: broker b:9092 answered NOT_LEADER_OR_FOLLOWER; try again"


def test_the_brokers_own_words_are_kept() -> None:
    error = error_of(ErrorCode.INVALID_CONFIG, action="create topic 'x'", broker="b:1", message="no such key.")
    assert str(error) == "can't create topic 'x': broker b:1 answered INVALID_CONFIG: no such key"


def test_a_code_of_the_future_is_refused_by_its_number() -> None:
    error = error_of(999, action="fetch", broker="b:1")
    assert isinstance(error, Refused)
    assert isinstance(error, ClientError)
    assert error.code == 999
    assert (name_of(999), remedy_of(999)) == ("error 999", Remedy.NONE)


def test_success_raises_nothing() -> None:
    check(0, action="do it", broker="b:1")
