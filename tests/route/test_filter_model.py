"""Whatever the filter and the message: the compiled function says what the book says, or the text was refused."""

import json

from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.route.naive import Expression, like, truth, worth, written

from runnel.model.errors import InvalidFilter
from runnel.record.records import Record, encode
from runnel.route.compiler import GAPPED_MAX, LIKES_MAX
from runnel.route.filter import Filter
from runnel.route.like import pattern_of
from runnel.route.message import View

NAMES = st.sampled_from(["a", "b", "x-y", "é"])
TEXTS = st.sampled_from(["", "a", "ab", "aba", "5", "-2.5", "true", "FALSE", "1e2", "é", "it's", "%", "a_b"])
WHOLES = st.integers(-3, 10) | st.sampled_from([2**62, 2**63 - 1, 0])
NUMBERS = WHOLES | st.sampled_from([0.5, -2.5, 5.0, 1e300])
JSON = st.recursive(
    st.none() | st.booleans() | TEXTS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
RAW = st.none() | TEXTS.map(str.encode) | st.sampled_from([b"\xff", b"\xc3", b"nan", b"1_0", b"0" * 50])
VALUES = RAW | JSON.map(lambda found: json.dumps(found, ensure_ascii=False).encode())
MESSAGES = st.builds(
    View,
    topic=st.sampled_from(["a", "ab"]),
    partition=st.integers(0, 3),
    offset=st.integers(0, 10),
    timestamp_ms=st.integers(0, 10),
    key=RAW,
    value=VALUES,
    headers=st.lists(st.tuples(NAMES | st.just("runnel-tag"), RAW), max_size=4),
)

LITERALS = (TEXTS | NUMBERS.filter(lambda n: n >= 0) | st.booleans()).map(lambda value: ("literal", value))
FIELDS = st.one_of(
    st.sampled_from([("field", name) for name in ("key", "value", "topic", "partition", "offset", "tag")]),
    NAMES.map(lambda name: ("field", "headers", name)),
    st.lists(NAMES | st.integers(0, 2), max_size=3).map(lambda path: ("field", "body", *path)),
)
PATTERNS = st.text("ab%_é'", max_size=6)
LISTS = st.lists(TEXTS | NUMBERS, min_size=1, max_size=4)


SIGNS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
OPEN = FIELDS.filter(lambda field: field[1] not in ("topic", "partition", "offset"))  # of no kind that is known before
NUMERIC = st.recursive(
    OPEN | NUMBERS.filter(lambda n: n >= 0).map(lambda value: ("literal", value)),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=4,
)
COMPARISONS = st.one_of(
    st.tuples(SIGNS, OPEN, LITERALS),
    st.tuples(SIGNS, NUMERIC, NUMERIC),
    st.tuples(SIGNS, FIELDS, OPEN),
    st.tuples(st.just("null"), FIELDS | NUMERIC),
    st.tuples(st.just("like"), OPEN, PATTERNS),
    st.tuples(st.just("in"), OPEN, LISTS),
    st.tuples(st.just("between"), NUMERIC, NUMERIC, OPEN),
    OPEN,
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.tuples(st.sampled_from(["and", "or"]), inner, inner) | st.tuples(st.just("not"), inner),
    max_leaves=6,
)


@settings(max_examples=600)
@given(CONDITIONS, st.lists(MESSAGES, min_size=1, max_size=4))
def test_the_compiled_function_says_what_the_book_says(tree: Expression, messages: list[View]) -> None:
    _agree(tree, messages)


@settings(max_examples=300)
@given(FIELDS, FIELDS, SIGNS, st.lists(MESSAGES, min_size=3, max_size=6))
def test_comparisons_of_fields(one: Expression, other: Expression, sign: str, messages: list[View]) -> None:
    _agree((sign, one, other), messages)


def _agree(tree: Expression, messages: list[View]) -> None:
    """All three values are told apart: by the filter, by its contrary, and by neither."""
    try:
        chosen, contrary = Filter(written(tree)), Filter(written(("not", tree)))
    except InvalidFilter:
        reject()
    for message in messages:
        expected = truth(worth(tree, message))
        assert chosen.passes(message) is (expected is True), written(tree)
        assert contrary.passes(message) is (expected is False), written(tree)
        _needs_hold(chosen, message)
        _needs_hold(contrary, message)


def _needs_hold(chosen: Filter, message: View) -> None:
    """What passes has one of the things that it needs."""
    if chosen.needs and chosen.passes(message):
        batch = encode([Record(0, 1, message.key, message.value, tuple(message.headers))])
        assert any(need in batch for need in chosen.needs), (chosen, message)


@settings(max_examples=500)
@given(st.text("ab%_", max_size=12), st.text("ab\n", max_size=16))
def test_like_says_what_the_book_says(pattern: str, text: str) -> None:
    assert pattern_of(pattern, None).matches(text) is like(text, pattern)


@settings(max_examples=500)
@given(st.text(max_size=60), MESSAGES)
def test_any_text_is_a_filter_or_refused_with_its_place(text: str, message: View) -> None:
    _try(text, message)


WORDS = st.sampled_from(
    [
        "key", "value", "body", "headers", "tag", "topic", "offset", "timestamp", "a", "'a'", "''", "1", "2.5", "1e9",
        "TRUE", "FALSE", "NULL", "AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS", "=", "<>", "<", "<=",
        ">", ">=", "+", "-", "*", "/", "(", ")", ",", ".", "[", "]", '"q"', "'%'", "~", "'", '"',
    ]
)  # fmt: skip


@settings(max_examples=1000)
@given(st.lists(WORDS, max_size=25), MESSAGES)
def test_any_words_are_a_filter_or_refused_with_their_place(words: list[str], message: View) -> None:
    _try(" ".join(words), message)


def _try(text: str, message: View) -> None:
    problem: InvalidFilter | None = None
    try:
        assert Filter(text).passes(message) in (True, False)
    except InvalidFilter as refused:
        problem = refused
    if problem is not None:
        assert 0 <= problem.position <= len(text)
        assert problem.found
        assert problem.expected


def test_the_model_stays_below_the_bounds() -> None:
    """So that what it draws is refused for its kinds alone."""
    assert LIKES_MAX > 10
    assert GAPPED_MAX >= 60
