"""The expressions against Python's own, and against those who would stall the broker."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.regex import Pattern, Patterns
from runnel.model.errors import InvalidRegularExpression

atoms = st.sampled_from(["a", "b", ".", r"\.", "[ab]", "[^a]", "[a-c-]", r"\d", r"\w", "-", "^", "$", r"[\d_]"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)
names = st.text(alphabet="abc.-_1", min_size=1, max_size=8)


@given(patterns, st.lists(names, min_size=1, max_size=10))
@settings(max_examples=150)
def test_it_matches_what_python_matches(pattern: str, candidates: list[str]) -> None:
    compiled = Pattern(pattern)
    for name in candidates:
        assert compiled.matches(name) == bool(re.fullmatch(pattern, name)), name


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders-.*", ["orders-", "orders-eu"], ["orders", "old-orders-eu"]),
        ("(?i)Orders", ["orders", "ORDERS"], ["order"]),
        ("(?i:A)b", ["ab", "Ab"], ["aB"]),
        (r"\Qa.b\E.*", ["a.b", "a.bc"], ["axb"]),
        ("[[:digit:]]+", ["12"], ["a"]),
        ("[^[:alpha:]]", ["1", "."], ["a"]),
        (r"(?P<kind>a|b)\.log", ["a.log", "b.log"], ["c.log", "axlog"]),
        (r"\Aa\z", ["a"], ["aa"]),
        ("a|", ["a"], ["b"]),
        ("[]a]", ["a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("ü|a", ["a"], ["u"]),
        ("a{2}", ["aa"], ["a", "aaa"]),
        ("", [], ["a"]),
    ],
)
def test_what_the_syntax_means(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [name for name in yes + no if compiled.matches(name)] == yes


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "[b-a]", "*", "a**", "a{", "a{2,1}", "a{99999999}", r"a\b", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b",
     "(?<!a)b", "(?>a)", r"\pL", "[[:nope:]]", "a\\", "(?x)a", "(" * 60 + ")" * 60, "a" * 3_000],
)  # fmt: skip
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*x", "(.*){5}b", "((a?){5}){5}b"])
def test_what_stalls_others_is_linear_here(pattern: str) -> None:
    assert not Pattern(pattern).matches("a" * 249)


@pytest.mark.parametrize(
    "pattern",
    [
        ".*a.{30}",
        "(.*a){40}.{20}",
        "(((a?){30}){30}){30}",
        "(.?){500}(.?){500}",
        "a{1500}",
        "((((){200}){200}){200}){200}",
    ],
)
def test_what_would_need_too_large_a_table_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="too"):
        Pattern(pattern)


def test_a_name_with_foreign_characters_matches_only_what_may_be_any_character() -> None:
    assert Pattern(".*").matches("über")
    assert Pattern("[^a]ber").matches("über")
    assert not Pattern("[a-z]*").matches("über")
    assert not Pattern("über").matches("über")


def test_an_expression_is_resolved_once_for_each_picture_of_the_topics() -> None:
    looks = 0

    def names_now() -> list[str]:
        nonlocal looks
        looks += 1
        return ["a", "b"]

    cache = Patterns()
    for _ in range(3):
        assert cache.matching("a|c", 1, names_now) == {"a"}
    assert looks == 1
    cache.matching("a|c", 2, names_now)
    assert looks == 2


def test_an_expression_that_was_refused_is_not_looked_at_again() -> None:
    cache = Patterns()
    refusals = []
    for _ in range(2):
        with pytest.raises(InvalidRegularExpression) as refusal:
            cache.compile("(.?){500}(.?){500}")
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]
    assert len(cache._compiled) == 1


def test_the_cache_is_bounded() -> None:
    cache = Patterns()
    for number in range(cache.KEPT_MAX + 10):
        cache.compile(f"a{number}")
    assert len(cache._compiled) <= cache.KEPT_MAX
