"""Filters that were written to hurt. What they cost is counted in calls, or compared with what a part of it costs."""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from runnel.model.errors import InvalidFilter
from runnel.route.compiler import GAPPED_MAX, LIKES_MAX
from runnel.route.filter import Filter
from runnel.route.lexer import LENGTH_MAX, TOKENS_MAX
from runnel.route.message import View
from runnel.route.syntax import DEPTH_MAX

MESSAGE = View("t", 0, 5, 1_700_000_000_000, b"k", b'{"a": 1}', (("h", b"1"),))


def calls(action: Callable[[], Any]) -> int:
    """How many functions an action calls, those written in C among them."""
    count = 0

    def counted(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("text", ["(" * 500 + "TRUE" + ")" * 500, "NOT " * 1000 + "TRUE", "1 = " + "- " * 1000 + "1"])
def test_depth_is_refused_before_it_is_reached(text: str) -> None:
    with pytest.raises(InvalidFilter, match=f"at most {DEPTH_MAX}"):
        Filter(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * DEPTH_MAX + "TRUE" + ")" * DEPTH_MAX,
        "NOT " * DEPTH_MAX + "TRUE",
        "1 = " + "- " * DEPTH_MAX + "1",
        "(NOT " * (DEPTH_MAX // 2) + "TRUE" + ")" * (DEPTH_MAX // 2),
    ],
)
def test_what_is_just_deep_enough_passes(text: str) -> None:
    assert Filter(text).passes(MESSAGE)


@pytest.mark.parametrize(
    "text",
    [
        " AND ".join(["offset = 5"] * 250),
        " OR ".join(["offset = 6"] * 249 + ["offset = 5"]),
        "0 < " + "+".join(["1"] * 500),
        "0 < " + "*".join(["body.a"] * 200),
        "offset IN (" + ",".join(str(number) for number in range(500)) + ")",
        "key NOT IN (" + ",".join(f"'{number}'" for number in range(500)) + ")",
        "body" + ".a" * 500 + " IS NULL",
        'body."' + "a" * 4000 + '" IS NULL',
    ],
)
def test_rows_are_no_depth(text: str) -> None:
    chosen = Filter(text)
    assert chosen.passes(MESSAGE)
    assert calls(lambda: chosen.passes(MESSAGE)) < 4 * TOKENS_MAX


def test_length_and_words_are_bounded() -> None:
    assert Filter("TRUE" + " " * (LENGTH_MAX - 4)).passes(MESSAGE)
    with pytest.raises(InvalidFilter, match="at most 4,096"):
        Filter("TRUE" + " " * (LENGTH_MAX - 3))
    with pytest.raises(InvalidFilter, match="at most 1,024"):
        Filter("offset IN (" + ",".join("1" * TOKENS_MAX) + ")")
    with pytest.raises(InvalidFilter, match="at most 4,096"):
        Filter("(" * 10_000_000)


def test_compiling_costs_in_proportion_to_the_text() -> None:
    def cost(parts: int) -> int:
        text = " OR ".join(["key = 'abc' AND body.a + 1 > 2"] * parts)
        return calls(lambda: Filter(text))

    assert cost(64) < 2.5 * cost(32)


def test_the_number_of_likes_is_bounded() -> None:
    assert not Filter(" OR ".join(["key LIKE '%x%'"] * LIKES_MAX)).passes(MESSAGE)
    with pytest.raises(InvalidFilter, match=f"at most {LIKES_MAX}"):
        Filter(" OR ".join(["key LIKE '%x%'"] * (LIKES_MAX + 1)))


def test_gaps_between_percents_are_bounded() -> None:
    gapped = "a_" * (GAPPED_MAX // 2 - 1) + "ab"
    assert not Filter(f"key LIKE '%{gapped}%'").passes(MESSAGE)
    assert not Filter(f"key LIKE '{gapped * 8}%{gapped * 8}'").passes(MESSAGE)  # at the ends they are looked at once
    with pytest.raises(InvalidFilter, match=f"at most {GAPPED_MAX} characters"):
        Filter(f"key LIKE '%{gapped}%' OR key LIKE '%a_b%'")


@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 900 + "%b",
        "%" * 3000,
        "%_" * 1000,
        "%a_a%" * 12 + "b",
        "%" + "a" * 2000 + "b%",
        "%" + "a" * 1000 + "b" + "a" * 1000 + "%",
        "a%" * 500 + "%a%b",
        "_" * 3000 + "%",
    ],
)
def test_catastrophic_patterns_cost_no_more_than_their_parts(pattern: str) -> None:
    """A matcher that went back would need about 10 ** 600 steps for the first of them."""
    chosen = Filter(f"key LIKE '{pattern}'")
    message = MESSAGE._replace(key=b"a" * 100_000)
    assert calls(lambda: chosen.passes(message)) < 2 * len(pattern) + 20


@pytest.mark.parametrize("pattern", ["%a" * 900 + "%b", "%" + "a" * 30 + "_" + "a" * 30 + "b%", "%" + "a" * 500 + "b%"])
def test_like_costs_in_proportion_to_the_text(pattern: str) -> None:
    """Sixteen times the text takes about sixteen times as long; with one square in it, it would be 256 times."""
    chosen = Filter(f"key LIKE '{pattern}'")

    def cost(size: int) -> float:
        message = MESSAGE._replace(key=b"a" * size)
        return min(_seconds(lambda: chosen.passes(message)) for _ in range(5))

    assert cost(320_000) < 80 * cost(20_000)


def _seconds(action: Callable[[], Any]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def test_numbers_can_not_grow() -> None:
    message = MESSAGE._replace(value=b'{"a": 9223372036854775807}')
    assert not Filter("body.a" + " * body.a" * 200 + " > 0").passes(message)  # beyond what a float holds: unknown
    assert Filter("body.a" + " * body.a" * 10 + " > 0").passes(message)
    assert not Filter("headers.h > 0").passes(MESSAGE._replace(headers=(("h", b"9" * 1_000_000),)))


def test_what_is_huge_is_not_looked_into() -> None:
    huge = b'{"a": 1, "b": "' + b"x" * 5_000_000 + b'"}'
    assert Filter("body.a IS NULL AND (value LIKE '%x%') IS NULL").passes(MESSAGE._replace(value=huge))
    large = b'{"a": 1, "b": "' + b"x" * 1_000_000 + b'"}'
    assert Filter("body.a = 1 AND value LIKE '%x%'").passes(MESSAGE._replace(value=large))


def test_many_headers_are_walked_once() -> None:
    message = MESSAGE._replace(headers=tuple((f"h{number}", b"x") for number in range(50_000)))
    text = " OR ".join(f"headers.h{number} = 'y'" for number in range(100))
    chosen = Filter(text)
    assert calls(lambda: chosen.passes(message)) < 1_000


@pytest.mark.parametrize(
    "text", ["key = 'ключ'", "key LIKE '%лю%'", "headers.\"имя\" = 'é'", "body.поле = '\U0001f600'"]
)
def test_every_script(text: str) -> None:
    headers = (("имя", "é".encode()),)
    value = '{"поле": "\U0001f600"}'.encode()
    assert Filter(text).passes(View("t", 0, 0, 0, "ключ".encode(), value, headers))


def test_letters_that_look_like_keywords_or_digits_are_neither() -> None:
    for text in ("key ＝ 'a'", "offset = ٣", "key ıs NULL", "offset = ²"):
        with pytest.raises(InvalidFilter):
            Filter(text)
