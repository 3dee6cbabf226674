"""What filters mean, by example."""

import pytest

from runnel.model.errors import InvalidFilter
from runnel.record.records import Record
from runnel.route.filter import CACHED_MAX, Filter, compile
from runnel.route.message import View, view_of

BODY = (
    b'{"amount": 150, "price": 2.5, "name": "Ada", "open": true, "gone": null, "at": {"city": "Bern"}, "rows": [7, 8]}'
)
MESSAGE = View(
    topic="orders",
    partition=3,
    offset=41,
    timestamp_ms=1_700_000_000_000,
    key=b"user-7",
    value=BODY,
    headers=(
        ("region", b"us"),
        ("region", b"eu"),
        ("tries", b"5"),
        ("x-y", b""),
        ("none", None),
        ("runnel-tag", b"new"),
    ),
)


@pytest.mark.parametrize(
    "text",
    [
        "key = 'user-7'", "key <> 'user-8'", "key != 'user-8'", "key LIKE 'user-%'", "'user-7' = key",
        "key IN ('a', 'user-7')", "key NOT IN ('a', 'b')", "key IS NOT NULL", "key > 'user-6'", "NOT key < 'user-7'",
        "topic = 'orders'", "partition = 3", "offset >= 41", "offset + 1 = 42", "40 < offset", "tag = 'new'",
        "tag LIKE '_ew'", "headers.region = 'eu'", 'headers."x-y" = \'\'', '"headers"."x-y" IS NOT NULL',
        "headers.none IS NULL", "headers.absent IS NULL", "headers.tries > 3", "headers.tries = '5'",
        "headers.tries * 2 = 10", "headers.tries IN (4, 5)", "headers.tries IN ('x', 5)",
        "headers.tries BETWEEN 5 AND 5", "body.amount = 150", "body.amount > 149.5", "body.amount / 4 = 37.5",
        "body.amount BETWEEN 100 AND 200", "body.amount NOT BETWEEN 151 AND 200", "-body.amount < +0",
        "- -body.amount = 150", "body.price * 2 = 5", "body.name = 'Ada'", "body.name LIKE 'A%a'",
        "body.at.city = 'Bern'", 'body.at."city" = \'Bern\'', "body.at IS NOT NULL", "body.gone IS NULL",
        "body.never.there IS NULL", "body.rows[1] = 8", "body.rows[2] IS NULL", "body.open", "body.open = TRUE",
        "NOT (body.open = false)", "body.name IN ('Ada', 'Bob', 3)", "value LIKE '%Bern%'", "value IS NOT NULL",
        "body.amount = headers.tries * 30", "timestamp > 1699999999999", "timestamp = '2023-11-14T22:13:20Z'",
        "timestamp BETWEEN '2023-11-14' AND '2023-11-15'", "timestamp < '2023-11-15T00:00+01:00'", "TRUE",
        "true or FALSE", "1 = 1", "1 + 2 * 3 = 7", "(1 + 2) * 3 = 9", "8 / 4 / 2 = 1", "10 - 4 - 3 = 3",
        "'it''s' LIKE 'it''s'", "'50%' LIKE '50!%' ESCAPE '!'", "key = 'x' OR partition = 3 AND offset = 41",
        "NOT key = 'x' AND partition = 3", ".5 < 1 AND 1e3 = 1000 AND 2. = 2",
    ],
)  # fmt: skip
def test_what_passes(text: str) -> None:
    assert compile(text).passes(MESSAGE)


@pytest.mark.parametrize(
    "text",
    [
        "key = 'USER-7'", "headers.region = 'us'", "headers.absent = 'x'", "NOT headers.absent = 'x'",
        "headers.absent <> 'x'", "headers.absent NOT IN ('x')", "headers.absent NOT LIKE 'x'",
        "headers.absent NOT BETWEEN 1 AND 2", "headers.region > 3", "NOT headers.region > 3",
        "headers.region NOT IN (1)", "body.name > 3", "NOT body.name > 3", "body.amount = '150'",
        "body.amount <> '150'", "body.amount LIKE '150'", "body.open > 1", "body.at = 'Bern'", "body.at <> 'Bern'",
        "body.name NOT IN ('Bob', 3)", "body.amount NOT IN ('Bob', 3)", "body.gone = body.gone", "body.amount / 0 = 1",
        "NOT body.amount / 0 = 1", "body.amount", "body.name", "key", "offset IS NULL", "body.rows[0] = '7'",
        "body.rows.x = 7", "headers.absent = 'x' AND TRUE", "headers.absent = 'x' OR FALSE", "FALSE",
        "9223372036854775807 * 1e300 * 1e300 > 1", "timestamp < '2023-11-14'", "body.open < body.open",
        "key = body.amount",
    ],
)  # fmt: skip
def test_what_does_not_pass(text: str) -> None:
    assert not compile(text).passes(MESSAGE)


def test_unknown_beside_true_and_false() -> None:
    unknown = "headers.absent = 'x'"
    assert compile(f"{unknown} OR TRUE").passes(MESSAGE)
    assert compile(f"NOT ({unknown} AND FALSE)").passes(MESSAGE)
    assert compile(f"({unknown}) IS NULL").passes(MESSAGE)


NOT_JSON = [
    b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'{"\xff": 1}', rb'"\ud800"', rb'"\ud800 and more of it"',
    rb'"\udc00"', rb'"\ud800\u0041"', b"NaN", b"01", b'"\x01"',
]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{", b"nonsense", b"[" * 100_000, *(b'{"amount": 7, "b": %b}' % b for b in NOT_JSON),
     *(b'{"amount": 7, "b": {"c": %b}}' % b for b in NOT_JSON), *(b'{"amount": %b}' % b for b in NOT_JSON)],
)  # fmt: skip
def test_what_is_no_json_has_no_fields(value: bytes | None) -> None:
    """Whichever fields are asked for: what is skipped counts too."""
    message = MESSAGE._replace(value=value)
    assert compile("body.amount IS NULL AND body IS NULL").passes(message)
    assert compile("body.amount IS NULL").passes(message)
    assert compile("body.amount IS NULL AND body.b IS NULL").passes(message)


@pytest.mark.parametrize(
    "number", [b"1e400", b"-1e400", b"9" * 400, b"9" * 5_000, b"-" + b"9" * 5_000, b"1" * 400 + b".5"]
)
def test_a_number_that_no_float_holds_is_null_by_itself(number: bytes) -> None:
    for body in (
        b'{"big": %b, "a": 7, "t": "x", "l": [7]}' % number,
        b'{"a": 7, "l": [7], "t": "x", "big": %b}' % number,
    ):
        message = MESSAGE._replace(value=body)
        for text in (
            "body.a = 7", "body.t = 'x'", "body.l[0] = 7", "body IS NOT NULL", "(body.big > 0) IS NULL",
            "body.a = 7 AND (body.big = 1) IS NULL", "body.a = 7 AND body.big IS NOT NULL OR body.t = 'x'",
        ):  # fmt: skip
            assert compile(text).passes(message), text
        assert not compile("body.big > 0 OR body.big <= 0").passes(message)
    cut = MESSAGE._replace(value=b'{"big": %b, "a": 7, }' % number)
    assert compile("body.a IS NULL AND body.big IS NULL").passes(cut), "it is still no JSON"


@pytest.mark.parametrize(
    "value", [b"7", b"[7]", b'{"a": 7}', b'{"a": {"b": 7}}', b'{"a": [7]}', b'{"a": {"b": {"c": 7}}}']
)
def test_fields_of_values_of_every_shape(value: bytes) -> None:
    """A filter that names several fields finds each, whatever the others turn out to be."""
    paths = {
        "body": b"7",
        "body[0]": b"[7]",
        "body.a": b'{"a": 7}',
        "body.a.b": b'{"a": {"b": 7}}',
        "body.a[0]": b'{"a": [7]}',
    }
    message = MESSAGE._replace(value=value)
    for path, where in paths.items():
        assert compile(f"{path} = 7").passes(message) is (value == where)
        assert compile(f"{path} = 7 OR body.a.b.c = 8 OR body.z = 9").passes(message) is (value == where)
    assert compile("body.a.b.c = 7").passes(message) is (value == b'{"a": {"b": {"c": 7}}}')


def test_names_that_no_type_could_have() -> None:
    message = MESSAGE._replace(value=b'{"a b": 1, "class": {"\\"": 2}, "\\n": 3, "__init__": 4, "\xc3\xa9": 5}')
    for path, expected in {'"a b"': 1, '"class".""""': 2, '"\n"': 3, "__init__": 4, "é": 5}.items():
        assert compile(f"body.{path} = {expected}").passes(message)


class Counting:
    """A message that counts how often its value is asked for."""

    topic, partition, offset, timestamp_ms = "t", 0, 0, 0
    key: bytes | None = b"k"
    headers = ()

    def __init__(self) -> None:
        self.asked = 0

    @property
    def value(self) -> bytes:
        self.asked += 1
        return b'{"a": 1, "b": 2}'


def test_the_body_is_parsed_once_and_only_if_looked_at() -> None:
    message = Counting()
    assert not compile("key = 'x' AND body.a = 1 AND body.b = 2").passes(message)
    assert message.asked == 0
    assert compile("body.a = 1 AND body.b = 2 AND (body.a BETWEEN 0 AND 1 OR body.c IN (1, 2))").passes(message)
    assert message.asked == 1


def test_a_text_is_decoded_once() -> None:
    message = Counting()
    assert not compile("value LIKE '%x%' OR value LIKE '%y%' OR value < 'a'").passes(message)
    assert message.asked == 1


def test_keywords_are_names_behind_a_dot() -> None:
    message = MESSAGE._replace(value=b'{"like": 1, "and": {"OR": 2}}', headers=(("in", b"x"),))
    assert compile("body.like = 1 AND body.and.OR = 2 AND headers.in = 'x'").passes(message)


def test_bytes_that_are_no_text_are_not_null_and_equal_nothing() -> None:
    message = MESSAGE._replace(key=b"\xff\xfe")
    assert compile("key IS NOT NULL AND key <> '\ufffd\ufffd' AND key LIKE '__'").passes(message)


def test_a_message_without_a_time_has_none() -> None:
    assert compile("timestamp IS NULL").passes(MESSAGE._replace(timestamp_ms=-1))


def test_wide_numbers() -> None:
    message = MESSAGE._replace(
        value=b'{"big": 9223372036854775807, "wider": 18446744073709551615, "neg": -9223372036854775808}'
    )
    assert compile("body.big = 9223372036854775807 AND body.big <> 9223372036854775806").passes(message)
    assert compile("body.wider > 1.8e19 AND body.neg < 0").passes(message)
    assert compile("body.big + body.big > 1.8e19 AND body.big * body.big > 8e37").passes(message)


def test_headers_that_are_no_numbers_by_length() -> None:
    assert not compile("headers.n >= 0").passes(MESSAGE._replace(headers=(("n", b"1" * 100),)))
    for text in (b"inf", b"nan", b"1_000", b" 5", b"0x10", b"", b"\xd9\xa3"):
        assert not compile("headers.n >= 0 OR headers.n < 0").passes(MESSAGE._replace(headers=(("n", text),)))


@pytest.mark.parametrize(
    ("text", "position", "found", "expected"),
    [
        ("", 0, "the end", "a field"),
        ("key =", 5, "the end", "a field"),
        ("key = 'a", 6, "'a", "closing '"),
        ('headers."a = 1', 8, '"a = 1', 'closing "'),
        ("key ~ 'a'", 4, "~", "operator"),
        ("key = 'a' key", 10, "key", "AND, OR"),
        ("(key = 'a'", 10, "the end", ")"),
        ("key IN ()", 8, ")", "a 'text' or a number"),
        ("key IN 'a'", 7, "'a'", "("),
        ("key NOT 'a'", 8, "'a'", "BETWEEN, IN or LIKE"),
        ("key IS 'a'", 7, "'a'", "NULL or NOT NULL"),
        ("key IS NOT 1", 11, "1", "NULL"),
        ("key LIKE 5", 9, "5", "pattern"),
        ("key LIKE 'a' ESCAPE 'ab'", 20, "'ab'", "one character"),
        ("key LIKE 'a!b' ESCAPE '!'", 4, "a pattern in which ! stands before b", "before %"),
        ("key LIKE 'a!' ESCAPE '!'", 4, "a pattern in which ! stands before nothing", "before %"),
        ("offset BETWEEN 1 OR 2", 17, "OR", "AND and the upper bound"),
        ("region = 'eu'", 0, "region", "one of body, headers"),
        ("KEY = 'eu'", 0, "KEY", "one of body"),
        ("headers = 'eu'", 0, "headers", "headers and one name"),
        ("headers.a.b = 'eu'", 0, "headers", "headers and one name"),
        ("headers.", 8, "the end", "a name"),
        ("key.part = 'x'", 0, "a part of key", "key alone"),
        ("body.a[x] = 1", 7, "x", "whole number"),
        ("body.a[1.5] = 1", 7, "1.5", "whole number"),
        ("body.a[1 = 1", 9, "=", "]"),
        ("offset = 'x'", 7, "a number compared with a text", "one kind"),
        ("topic < 5", 6, "a text compared with a number", "one kind"),
        ("topic + 1 = 2", 0, "a text", "a number"),
        ("-topic = 2", 1, "a text", "a number"),
        ("offset", 0, "a number", "a condition"),
        ("'x' AND TRUE", 0, "a text", "a condition"),
        ("NOT 5", 4, "a number", "a condition"),
        ("TRUE < FALSE", 5, "<", "= or <>"),
        ("offset LIKE '4%'", 7, "a number", "a text before LIKE"),
        ("offset IN (1, 'a')", 7, "a number and a list with texts", "one kind"),
        ("topic IN ('a', 1)", 6, "a text and a list with numbers", "one kind"),
        ("(key = 'a') IN ('a')", 12, "a condition and a list", "one kind"),
        ("timestamp > 'yesterday'", 12, "'yesterday'", "a date"),
        ("offset > 99999999999999999999", 9, "99999999999999999999", "whole number up to"),
        ("offset > 1e999", 9, "1e999", "64 bits"),
        ("offset > 5x", 9, "5", "a name, a number"),
        ("key = '\ud800'", 7, "'\\ud800'", "Unicode"),
    ],
)
def test_what_is_wrong_is_said(text: str, position: int, found: str, expected: str) -> None:
    with pytest.raises(InvalidFilter) as refused:
        compile(text)
    problem = refused.value
    assert (problem.position, problem.found[: len(found)]) == (position, found)
    assert expected in problem.expected
    assert f"at character {position + 1}: found {found}" in str(problem)


def test_a_long_text_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidFilter, match="expected AND, OR") as refused:
        compile("key = 'a' '" + "b" * 500 + "'")
    assert len(str(refused.value)) < 200


def test_a_filter_tells_what_it_looks_at() -> None:
    assert compile("headers.a = 'x' AND body.b > 1 OR tag = 'y'").roots == {"headers", "body", "tag"}
    assert repr(Filter("TRUE")) == "Filter('TRUE')"


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("key = 'abc'", [b"abc"]),
        ("'abc' = headers.x", [b"abc"]),
        ("key = 'ab' AND value LIKE '%abc_defg%' AND offset > 3", [b"defg"]),
        ("key = 'a' OR tag IN ('b', 'c')", [b"a", b"b", b"c"]),
        ("headers.trace > 5", [b"trace"]),
        ("headers.trace IS NOT NULL AND offset > 5", [b"trace"]),
        ("headers.trace IS NOT NULL AND tag = 'x'", [b"x"]),
        ("tag LIKE '%'", [b"runnel-tag"]),
        ("key = 'é'", ["é".encode()]),
        ("key = ''", []),
        ("key IN ('a', 5)", []),
        ("key <> 'a'", []),
        ("NOT key = 'a'", []),
        ("key = 'a' OR offset = 5", []),
        ("body.name = 'a'", []),
        ("topic = 'a'", []),
        ("headers.x IS NULL", []),
        (" OR ".join(f"key = '{n}'" for n in range(9)), []),
    ],
)
def test_what_a_message_needs_to_pass(text: str, needs: list[bytes]) -> None:
    assert list(compile(text).needs) == needs


def test_filters_are_kept_up_to_a_bound() -> None:
    assert compile("offset = 1") is compile("offset = 1")
    for number in range(CACHED_MAX + 10):
        compile(f"offset = {number}")
    assert compile.cache_info().currsize == CACHED_MAX


def test_a_record_with_its_place_is_a_message() -> None:
    view = view_of(Record(5, 9, b"k", b"v", (("h", b"x"),)), "t", 2)
    assert view == View("t", 2, 5, 9, b"k", b"v", (("h", b"x"),))
