"""The grammar of filters: text to a tree.

Rule 1: the tree is at most 32 levels deep. Rows of AND, of OR, of + and -, of * and / are one level each, however long.
Rule 2: an error names the place, what stands there, and what could.

    condition   and {OR and}
    and         not {AND not}
    not         NOT not | comparison
    comparison  sum [ (= | <> | < | <= | > | >=) sum
                    | [NOT] BETWEEN sum AND sum | [NOT] IN (literal, ...) | [NOT] LIKE 'text' [ESCAPE 'c']
                    | IS [NOT] NULL ]
    sum         product {(+ | -) product}
    product     factor {(* | /) factor}
    factor      (+ | -) factor | number | 'text' | TRUE | FALSE | field | ( condition )
    field       name {. name | [ number ]}         a name: letters, digits, _; or anything in "double quotes"
"""

from typing import NamedTuple, TypeAlias

from runnel.model.errors import InvalidFilter
from runnel.route.lexer import Sort, Token, tokens_of, wrong

DEPTH_MAX = 32
INT_MAX = 2**63 - 1
COMPARISONS = frozenset(("=", "<>", "<", "<=", ">", ">="))

Path: TypeAlias = tuple[str | int, ...]


class Literal(NamedTuple):
    value: str | int | float | bool
    at: Token


class Field(NamedTuple):
    root: str
    path: Path
    at: Token


class Not(NamedTuple):
    inner: "Node"
    at: Token


class All(NamedTuple):
    parts: tuple["Node", ...]
    at: Token


class Any(NamedTuple):
    parts: tuple["Node", ...]
    at: Token


class Compare(NamedTuple):
    operator: str
    left: "Node"
    right: "Node"
    at: Token


class Between(NamedTuple):
    inner: "Node"
    low: "Node"
    high: "Node"
    at: Token


class In(NamedTuple):
    inner: "Node"
    values: tuple[str | int | float, ...]
    at: Token


class Like(NamedTuple):
    inner: "Node"
    pattern: str
    escape: str | None
    at: Token


class IsNull(NamedTuple):
    inner: "Node"
    at: Token


class Chain(NamedTuple):
    """first op operand op operand ...: from left to right, all of one rank."""

    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]
    at: Token


class Negative(NamedTuple):
    inner: "Node"
    at: Token


Node: TypeAlias = (
    Literal | Field | Not | All | Any | Compare | Between | In | Like | IsNull | Chain | Negative
)  # fmt: skip


def parse(text: str) -> Node:
    """The tree of a filter."""
    parser = _Parser(tokens_of(text))
    tree = parser.condition()
    if parser.here.sort is not Sort.END:
        raise parser.wrong("AND, OR, an operator or the end")
    return tree


class _Parser:
    """One method for each rule of the grammar, each leaving `here` at the first token behind it."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self.here = tokens[0]

    # --- conditions

    def condition(self) -> Node:
        at = self.here
        parts = [self._conjunction()]
        while self._keyword("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Any(tuple(parts), at)

    def _conjunction(self) -> Node:
        at = self.here
        parts = [self._negation()]
        while self._keyword("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else All(tuple(parts), at)

    def _negation(self) -> Node:
        at = self.here
        if not self._keyword("NOT"):
            return self._comparison()
        self._deeper()
        inner = self._negation()
        self._depth -= 1
        return Not(inner, at)

    def _comparison(self) -> Node:
        left = self._sum()
        at = self.here
        if at.sort is Sort.MARK and at.text in COMPARISONS:
            self._step()
            return Compare(at.text, left, self._sum(), at)
        if self._keyword("IS"):
            return self._is_null(left, at)
        negative = self._keyword("NOT")
        found = self._predicate(left, at)
        if found is None:
            if negative:
                raise self.wrong("BETWEEN, IN or LIKE")
            return left
        return Not(found, at) if negative else found

    def _predicate(self, left: Node, at: Token) -> Node | None:
        if self._keyword("BETWEEN"):
            low = self._sum()
            if not self._keyword("AND"):
                raise self.wrong("AND and the upper bound of BETWEEN")
            return Between(left, low, self._sum(), at)
        if self._keyword("IN"):
            return In(left, self._values(), at)
        if self._keyword("LIKE"):
            pattern = self._text("a pattern in 'single quotes'")
            escape = self._escape() if self._keyword("ESCAPE") else None
            return Like(left, pattern, escape, at)
        return None

    def _is_null(self, left: Node, at: Token) -> Node:
        negative = self._keyword("NOT")
        if not self._keyword("NULL"):
            raise self.wrong("NULL" if negative else "NULL or NOT NULL")
        found = IsNull(left, at)
        return Not(found, at) if negative else found

    def _values(self) -> tuple[str | int | float, ...]:
        self._mark("(", "( and a list of texts and numbers")
        values = [self._value()]
        while self._is_mark(","):
            self._step()
            values.append(self._value())
        self._mark(")", ", or )")
        return tuple(values)

    def _value(self) -> str | int | float:
        negative = self._sign()
        at = self.here
        if at.sort is Sort.NUMBER:
            self._step()
            return -number_of(at) if negative else number_of(at)
        if negative:
            raise self.wrong("a number")
        return self._text("a 'text' or a number")

    def _escape(self) -> str:
        at = self.here
        text = self._text("one character in 'single quotes'")
        if len(text) != 1:
            raise wrong(at.position, at.shown, "one character in 'single quotes'")
        return text

    # --- operands

    def _sum(self) -> Node:
        at = self.here
        first = self._product()
        rest = []
        while self._is_mark("+", "-"):
            operator = self._step().text
            rest.append((operator, self._product()))
        return Chain(first, tuple(rest), at) if rest else first

    def _product(self) -> Node:
        at = self.here
        first = self._factor()
        rest = []
        while self._is_mark("*", "/"):
            operator = self._step().text
            rest.append((operator, self._factor()))
        return Chain(first, tuple(rest), at) if rest else first

    def _factor(self) -> Node:
        at = self.here
        if not self._is_mark("+", "-"):
            return self._operand()
        self._step()
        self._deeper()
        inner = self._factor()
        self._depth -= 1
        return Negative(inner, at) if at.text == "-" else Chain(inner, (), at)

    def _operand(self) -> Node:
        at = self.here
        match at.sort:
            case Sort.STRING:
                return Literal(self._step().text, at)
            case Sort.NUMBER:
                return Literal(number_of(self._step()), at)
            case Sort.KEYWORD if at.text in ("TRUE", "FALSE"):
                return Literal(self._step().text == "TRUE", at)
            case Sort.NAME | Sort.QUOTED:
                return self._field()
            case Sort.MARK if at.text == "(":
                return self._parenthesis()
        raise self.wrong("a field, a number, a 'text', TRUE, FALSE, NOT or (")

    def _parenthesis(self) -> Node:
        self._step()
        self._deeper()
        inner = self.condition()
        self._depth -= 1
        self._mark(")", "an operator or )")
        return inner

    def _field(self) -> Field:
        at = self._step()
        path: list[str | int] = []
        while True:
            if self._is_mark("."):
                self._step()
                if self.here.sort not in (Sort.NAME, Sort.QUOTED):
                    raise self.wrong('a name, or one in "double quotes"')
                path.append(self._step().text)
            elif self._is_mark("["):
                path.append(self._index())
            else:
                return Field(at.text, tuple(path), at)

    def _index(self) -> int:
        self._step()
        if self.here.sort is not Sort.NUMBER or not isinstance(index := number_of(self.here), int):
            raise self.wrong("a whole number")
        self._step()
        self._mark("]", "]")
        return index

    # --- steps

    def wrong(self, expected: str) -> InvalidFilter:
        return wrong(self.here.position, self.here.shown, expected)

    def _step(self) -> Token:
        """Go on; what was here."""
        passed = self.here
        if self._next < len(self._tokens) - 1:
            self._next += 1
        self.here = self._tokens[self._next]
        return passed

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise wrong(self.here.position, f"more than {DEPTH_MAX} levels", f"at most {DEPTH_MAX}")

    def _keyword(self, word: str) -> bool:
        if self.here.sort is not Sort.KEYWORD or self.here.text != word:
            return False
        self._step()
        return True

    def _is_mark(self, *marks: str) -> bool:
        return self.here.sort is Sort.MARK and self.here.text in marks

    def _mark(self, mark: str, expected: str) -> None:
        if not self._is_mark(mark):
            raise self.wrong(expected)
        self._step()

    def _sign(self) -> bool:
        """Step over a sign; whether it was a minus."""
        return self._is_mark("+", "-") and self._step().text == "-"

    def _text(self, expected: str) -> str:
        if self.here.sort is not Sort.STRING:
            raise self.wrong(expected)
        return self._step().text


def number_of(token: Token) -> int | float:
    """A number as written: 64 bits, whole or not."""
    if token.text.isdigit():
        value = int(token.text) if len(token.text) <= 20 else INT_MAX + 1
        if value <= INT_MAX:
            return value
        raise wrong(token.position, token.shown, f"a whole number up to {INT_MAX}, or one with a point")
    number = float(token.text)
    if number == float("inf"):
        raise wrong(token.position, token.shown, "a number that 64 bits can hold")
    return number
