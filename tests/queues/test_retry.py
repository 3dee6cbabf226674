"""How long a message waits before it is delivered again."""

from hypothesis import given
from hypothesis import strategies as st
from tests.queues.rig import settings

from runnel.queues.retry import backoff_ms, rounded_up


def test_pauses_grow_and_have_a_bound() -> None:
    config = settings(retry_backoff_ms=1_000, retry_backoff_max_ms=5_000, retry_backoff_multiplier=2)
    assert [backoff_ms(config, attempts, 1.0) for attempts in range(1, 6)] == [1_000, 2_000, 4_000, 5_000, 5_000]


def test_jitter_takes_up_to_half() -> None:
    config = settings(retry_backoff_ms=1_000)
    assert backoff_ms(config, 1, 0.0) == 500
    assert backoff_ms(config, 1, 0.5) == 750


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_no_number_of_attempts_is_too_much(attempts: int, multiplier: int) -> None:
    config = settings(retry_backoff_multiplier=multiplier)
    assert 500 <= backoff_ms(config, attempts, 0.0) <= 300_000


@given(st.integers(0, 10**13), st.integers(0, 10**10))
def test_moments_are_put_off_by_less_than_a_hundredth(moment: int, length_ms: int) -> None:
    later = rounded_up(moment, length_ms)
    assert 0 <= later - moment <= length_ms / 100
