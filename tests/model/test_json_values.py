"""Values of others as JSON: what is one does not depend on who reads it."""

import math
from typing import Any

import pytest

from runnel.model.json_values import parse
from runnel.model.unreadable import UNREADABLE


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}), (b"1e400", math.inf), (b'{"a": -1e400}', {"a": -math.inf}),
        (b"[" + b"9" * 5_000 + b"]", [math.inf]), (b"[-" + b"9" * 5_000 + b"]", [-math.inf]),
        (b"18446744073709551616", 2**64), (b"1e-400", 0.0), (rb'"\ud83d\ude00"', "\U0001f600"),
        ('"ü"'.encode(), "ü"),
    ],
)  # fmt: skip
def test_what_is_json_is_read(value: bytes, meant: Any) -> None:
    assert parse(value) == meant


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{", b'"\xff"', b'{"\xff": 1}', rb'"\ud800"', rb'["\udc00", 1e400]', rb'[1e400, "\ud800"]', b"[1e400,]",
        b"[1e400, NaN]", b"[1e400, 01]", b'[1e400, "\x01"]', b"1e400 1", b"[" * 100_000, b"[1e400, " + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_is_refused_also_behind_a_number_that_is_too_large(value: bytes) -> None:
    with pytest.raises(UNREADABLE):
        parse(value)
