"""Conditions: functions of a message that are True, False or None (unknown), put together out of others.

Rule 1: what compares NULL, or things of different kinds, is unknown; AND, OR and NOT are those of SQL's three values.
Rule 2: nothing that a message holds makes them raise.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from runnel.route import operands as o
from runnel.route.message import Message
from runnel.route.operands import Get, Scratch

AGAINST: dict[str, Callable[[Get, Any], Get]] = {
    "=": lambda get, c: lambda m, s: None if (v := get(m, s)) is None else v == c,
    "<>": lambda get, c: lambda m, s: None if (v := get(m, s)) is None else v != c,
    "<": lambda get, c: lambda m, s: None if (v := get(m, s)) is None else v < c,
    "<=": lambda get, c: lambda m, s: None if (v := get(m, s)) is None else v <= c,
    ">": lambda get, c: lambda m, s: None if (v := get(m, s)) is None else v > c,
    ">=": lambda get, c: lambda m, s: None if (v := get(m, s)) is None else v >= c,
}
EXACT = ("=", "<>")


def compared(operate: Callable[[Any, Any], Any], left: Get, right: Get) -> Get:
    def test(message: Message, scratch: Scratch) -> Any:
        one = left(message, scratch)
        if one is None:
            return None
        other = right(message, scratch)
        return None if other is None else operate(one, other)

    return test


def compared_as_found(operate: Callable[[Any, Any], Any], left: Get, right: Get) -> Get:
    """Compare what may be of any kind. Truth values have no order."""
    ordered = operate not in (operator.eq, operator.ne)

    def test(message: Message, scratch: Scratch) -> Any:
        one, other = left(message, scratch), right(message, scratch)
        if one is None or other is None:
            return None
        pair = o.comparable(one, other)
        if pair is None or (ordered and type(pair[0]) is bool):
            return None
        return operate(*pair)

    return test


def operated(operate: Callable[[Any, Any], Any], one: int | float, other: int | float) -> int | float | None:
    try:
        return o.number_of(operate(one, other))
    except ZeroDivisionError:
        return None


def negated(inner: Get) -> Get:
    return lambda m, s: None if (found := inner(m, s)) is None else not found


def all_of(tests: Sequence[Get]) -> Get:
    rows = tuple(tests)

    def test(message: Message, scratch: Scratch) -> bool | None:
        result: bool | None = True
        for each in rows:
            found = each(message, scratch)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return test


def any_of(tests: Sequence[Get]) -> Get:
    rows = tuple(tests)

    def test(message: Message, scratch: Scratch) -> bool | None:
        result: bool | None = False
        for each in rows:
            found = each(message, scratch)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return test


def in_raw(get: Get, texts: frozenset[bytes], numbers: frozenset[int | float]) -> Get:
    if not numbers:
        return lambda m, s: None if (raw := get(m, s)) is None else raw in texts

    def test(message: Message, scratch: Scratch) -> bool | None:
        raw = get(message, scratch)
        if raw is None or raw in texts:
            return None if raw is None else True
        number = o.number_of_bytes(raw)
        return None if number is None else number in numbers

    return test


def in_any(get: Get, texts: frozenset[str], numbers: frozenset[int | float]) -> Get:
    def test(message: Message, scratch: Scratch) -> bool | None:
        value = get(message, scratch)
        if type(value) is str:
            return value in texts or (None if numbers else False)
        number = o.number_of(value)
        return None if number is None else number in numbers or (None if texts else False)

    return test
