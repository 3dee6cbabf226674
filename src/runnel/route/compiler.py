"""A filter's tree to a function.

Rule 1: conditions are True, False or None (unknown), as in SQL: whatever compares NULL, or things of different kinds,
        is unknown; NOT unknown is unknown; a message passes only where the whole is True.
Rule 2: what can be known to be wrong before a message is seen is refused: a text compared with a number, for one.
Rule 3: a message costs time in proportion to its size, whatever the filter: each field is read once, LIKE is linear and
        the number of LIKEs is bounded.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runnel.model.headers import TAG
from runnel.model.limits import MIB
from runnel.route import conditions as c
from runnel.route import operands as o
from runnel.route import syntax as s
from runnel.route.body import Body
from runnel.route.lexer import Token, wrong
from runnel.route.like import pattern_of
from runnel.route.message import Message
from runnel.route.operands import Get, Kind, Operand, Scratch

LIKES_MAX = 16  # each reads the whole text
GAPPED_MAX = 64  # characters; see like.Pattern
LIKE_CHARACTERS_MAX = 1 * MIB  # of a text: whether a longer one matches is unknown

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_READ_AS = {
    Kind.TEXT: o.text_of_bytes,
    Kind.NUMBER: o.number_of_bytes,
    Kind.TRUTH: o.truth_of_bytes,
}  # fmt: skip
_OPEN = (Kind.RAW, Kind.ANY)


class Compiled(NamedTuple):
    passes: Callable[[Message], bool]
    roots: frozenset[str]  # the fields that it looks at: key, body, ...


def compiled(tree: s.Node) -> Compiled:
    """The function of a tree."""
    compiler = _Compiler(tree)
    test = compiler.passing(tree)
    return Compiled(_entry(test, compiler.places), compiler.roots)


def _entry(test: Get, places: int) -> Callable[[Message], bool]:
    if not places:
        nothing: Scratch = []
        return lambda message: test(message, nothing) is True
    blank = (o.UNSEEN,) * places
    return lambda message: test(message, list(blank)) is True


class _Compiler:
    def __init__(self, tree: s.Node) -> None:
        fields = [each for each in _walk(tree) if isinstance(each, s.Field)]
        self._uses = Counter((field.root, field.path) for field in fields)
        self._body = Body(field.path for field in fields if field.root == "body")
        self._headers = sum(field.root in ("headers", "tag") for field in fields)
        self._likes = 0
        self._gapped = 0
        self._remembered: dict[tuple[str, s.Path, Kind | None], Get] = {}
        self.roots = frozenset(field.root for field in fields)
        self.places = o.FIXED if self._headers > 1 or "body" in self.roots else 0

    # --- conditions

    def passing(self, tree: s.Node) -> Get:
        """A condition of which only True counts, so that a row of AND ends at the first part that is not."""
        if not isinstance(tree, s.All):
            return self.condition(tree)
        tests = tuple(self.condition(part) for part in tree.parts)
        if len(tests) == 2:
            first, second = tests
            return lambda message, scratch: first(message, scratch) is True and second(message, scratch)
        return lambda message, scratch: all(test(message, scratch) is True for test in tests)

    def condition(self, node: s.Node) -> Get:
        operand = self.operand(node)
        if operand.kind is Kind.TRUTH:
            return operand.get
        if operand.kind not in _OPEN:
            raise wrong(node.at.position, operand.kind.value, "a condition, such as a comparison")
        return self._read_as(operand, Kind.TRUTH, node)

    def operand(self, node: s.Node) -> Operand:
        match node:
            case s.Literal():
                return _literal(node)
            case s.Field():
                return self._field(node)
            case s.Chain():
                return Operand(Kind.NUMBER, self._chain(node))
            case s.Negative():
                number = self._number(node.inner)
                return Operand(Kind.NUMBER, lambda m, s: None if (found := number(m, s)) is None else -found)
        return Operand(Kind.TRUTH, self._condition(node))

    def _condition(self, node: s.Not | s.All | s.Any | s.Compare | s.Between | s.In | s.Like | s.IsNull) -> Get:
        match node:
            case s.Not():
                return c.negated(self.condition(node.inner))
            case s.All():
                return c.all_of([self.condition(part) for part in node.parts])
            case s.Any():
                return c.any_of([self.condition(part) for part in node.parts])
            case s.Compare():
                return self._compare(node.operator, node.left, node.right, node.at)
            case s.Between():
                return self._between(node)
            case s.In():
                return self._in(node)
            case s.Like():
                return self._like(node)
            case s.IsNull():
                get = self.operand(node.inner).get
                return lambda message, scratch: get(message, scratch) is None

    # --- fields and numbers

    def _field(self, node: s.Field) -> Operand:
        match node.root, node.path:
            case "body", path:
                return Operand(Kind.ANY, self._once(node, None, o.body_getter(self._body, path)))
            case "headers", (str(name),):
                return self._header(node, name)
            case "headers", _:
                raise wrong(node.at.position, node.at.shown, 'headers and one name: headers.x, headers."x-y"')
            case "tag", ():
                return self._header(node, TAG)
            case root, () if root in o.PLAIN:
                return o.PLAIN[root]
            case root, _ if root in o.ROOTS:
                raise wrong(node.at.position, f"a part of {root}", f"{root} alone: it has no parts")
        raise wrong(node.at.position, node.at.shown, f"one of {', '.join(o.ROOTS)}, or a 'text' in single quotes")

    def _header(self, node: s.Field, name: str) -> Operand:
        getter = o.indexed_header_getter if self._headers > 1 else o.header_getter
        return Operand(Kind.RAW, self._once(node, None, getter(name)))

    def _chain(self, node: s.Chain) -> Get:
        first = self._number(node.first)
        steps = tuple((_OPERATORS[sign], self._number(each)) for sign, each in node.rest)

        def get(message: Message, scratch: Scratch) -> int | float | None:
            total = first(message, scratch)
            for operate, operand in steps:
                other = operand(message, scratch)
                if total is None or other is None:
                    return None
                total = c.operated(operate, total, other)
            found: int | float | None = total
            return found

        return get

    def _number(self, node: s.Node) -> Get:
        operand = self.operand(node)
        if operand.kind in (Kind.TEXT, Kind.TRUTH):
            raise wrong(node.at.position, operand.kind.value, "a number")
        return operand.get if operand.kind is Kind.TIME else self._read_as(operand, Kind.NUMBER, node)

    def _read_as(self, operand: Operand, kind: Kind, node: s.Node) -> Get:
        """A value as one of a kind, NULL if it is none."""
        get = operand.get
        if operand.kind is Kind.RAW:
            read = _READ_AS[kind]
            return self._once(node, kind, lambda m, s: None if (raw := get(m, s)) is None else read(raw))
        if operand.kind is not Kind.ANY:
            return get
        if kind is Kind.NUMBER:
            number_of = o.number_of
            return lambda message, scratch: number_of(get(message, scratch))
        wanted = str if kind is Kind.TEXT else bool
        return lambda m, s: found if type(found := get(m, s)) is wanted else None

    def _once(self, node: s.Node, kind: Kind | None, get: Get) -> Get:
        """Remember, while a message is looked at, what a field is worth that stands in the filter several times."""
        if not isinstance(node, s.Field) or self._uses[node.root, node.path] < 2:
            return get
        key = (node.root, node.path, kind)
        if key not in self._remembered:
            self._remembered[key] = self._remembering(get)
        return self._remembered[key]

    def _remembering(self, get: Get) -> Get:
        place = self.places = max(self.places, o.FIXED)
        self.places += 1

        def remembered(message: Message, scratch: Scratch) -> Any:
            found = scratch[place]
            if found is o.UNSEEN:
                found = scratch[place] = get(message, scratch)
            return found

        return remembered

    # --- comparisons

    def _compare(self, sign: str, left: s.Node, right: s.Node, at: Token) -> Get:
        return self._compared(sign, (self.operand(left), left), (self.operand(right), right), at)

    def _compared(self, sign: str, left: tuple[Operand, s.Node], right: tuple[Operand, s.Node], at: Token) -> Get:
        if left[0].constant is not None and right[0].constant is None:
            sign, left, right = _MIRRORED[sign], right, left
        one, other = left[0], _dated(left[0], right[0], right[1].at)
        kind = _common(one, other, at)
        if kind is Kind.TRUTH and sign not in ("=", "<>"):
            raise wrong(at.position, sign, "= or <> between conditions")
        if kind is None:
            return c.compared_as_found(_OPERATORS[sign], one.get, other.get)
        if kind is Kind.TEXT and one.kind is Kind.RAW and other.constant is not None and sign in c.EXACT:
            return c.AGAINST[sign](one.get, other.constant.encode())  # the same without decoding
        get = self._read_as(one, kind, left[1])
        if other.constant is not None:
            return c.AGAINST[sign](get, other.constant)
        return c.compared(_OPERATORS[sign], get, self._read_as(other, kind, right[1]))

    def _between(self, node: s.Between) -> Get:
        inner = self.operand(node.inner)
        if not isinstance(node.inner, s.Literal):
            inner = inner._replace(get=self._remembering(inner.get))
        low, high = ((self.operand(bound), bound) for bound in (node.low, node.high))
        above = self._compared(">=", (inner, node.inner), low, node.at)
        return c.all_of([above, self._compared("<=", (inner, node.inner), high, node.at)])

    def _in(self, node: s.In) -> Get:
        inner = self.operand(node.inner)
        texts = frozenset(value for value in node.values if isinstance(value, str))
        numbers = frozenset(value for value in node.values if not isinstance(value, str))
        if inner.kind is Kind.RAW:
            return c.in_raw(inner.get, frozenset(text.encode() for text in texts), numbers)
        if inner.kind is Kind.ANY:
            return c.in_any(inner.get, texts, numbers)
        wanted, others = (texts, numbers) if inner.kind is Kind.TEXT else (numbers, texts)
        if inner.kind is Kind.TRUTH or others:
            found = "a list with texts" if others is texts else "a list with numbers"
            raise wrong(node.at.position, f"{inner.kind.value} and {found}", "values of one kind")
        get = inner.get
        return lambda m, s: None if (value := get(m, s)) is None else value in wanted

    def _like(self, node: s.Like) -> Get:
        operand = self.operand(node.inner)
        if operand.kind not in (*_OPEN, Kind.TEXT):
            raise wrong(node.at.position, operand.kind.value, "a text before LIKE")
        try:
            pattern = pattern_of(node.pattern, node.escape)
        except ValueError as problem:
            expected = "the escape character before %, _ or itself"
            raise wrong(node.at.position, f"a pattern in which {problem}", expected) from None
        self._likes += 1
        self._gapped += pattern.gapped
        if self._likes > LIKES_MAX:
            raise wrong(node.at.position, f"more than {LIKES_MAX} LIKE", f"at most {LIKES_MAX}")
        if self._gapped > GAPPED_MAX:
            expected = f"at most {GAPPED_MAX} characters in parts with a _ inside, between two %"
            raise wrong(node.at.position, f"{self._gapped} of them", expected)
        get, matches = self._read_as(operand, Kind.TEXT, node.inner), pattern.matches
        return lambda m, s: None if (t := get(m, s)) is None or len(t) > LIKE_CHARACTERS_MAX else matches(t)


def _walk(node: s.Node) -> Iterator[s.Node]:
    """A node and all that hang from it."""
    yield node
    match node:
        case s.Compare(_, left, right):
            below: Sequence[s.Node] = (left, right)
        case s.Between(inner, low, high):
            below = (inner, low, high)
        case s.All(parts) | s.Any(parts):
            below = parts
        case s.Chain(first, rest):
            below = (first, *(each for _, each in rest))
        case s.Literal() | s.Field():
            below = ()
        case _:
            below = (node.inner,)
    for each in below:
        yield from _walk(each)


# --- kinds
def _literal(node: s.Literal) -> Operand:
    value = node.value
    kind = Kind.TEXT if isinstance(value, str) else Kind.TRUTH if isinstance(value, bool) else Kind.NUMBER
    return Operand(kind, lambda *_: value, value)


def _common(one: Operand, other: Operand, at: Token) -> Kind | None:
    """The kind as which two values are compared; None if only a message tells."""
    kinds = {Kind.NUMBER if each.kind is Kind.TIME else each.kind for each in (one, other)}
    known = kinds.difference(_OPEN)
    if len(known) == 1:
        return known.pop()
    if not known:
        return Kind.TEXT if kinds == {Kind.RAW} else None
    raise wrong(at.position, f"{one.kind.value} compared with {other.kind.value}", "values of one kind")


def _dated(one: Operand, other: Operand, at: Token) -> Operand:
    """The other operand, which is a date if the one is a time and the other a text in the filter."""
    if one.kind is not Kind.TIME or not isinstance(other.constant, str):
        return other
    try:
        when = datetime.fromisoformat(other.constant)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        value = round(when.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise wrong(at.position, at.shown, "a date such as '2026-01-31T08:00:00Z', or milliseconds") from None
    return Operand(Kind.NUMBER, lambda *_: value, value)
