"""Which part of a SQL condition may decide by itself that a file has no row of interest. Pure.

Rule 1: to skip by a part of a conjunction is safe; by a part of anything else it is not. So a condition is cut at its
        outermost ANDs, and each part is used whole or not at all.
Rule 2: a part is used only if it means the same to Spark and to the log's reader: columns whose bounds the log tells,
        compared with numbers and texts; no functions, no casts, and times only with their zone, unless Spark's is UTC.
Rule 3: what is not understood is no error here: Spark reads it again, and judges every row.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^'\\]|'')*')
      | (?P<number>-?\d+(?![\w.]))
      | (?P<word>[A-Za-z_]\w*)
      | `(?P<quoted>[^`]+)`
      | (?P<sign><=>|<=|>=|<>|!=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_JOINTS = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL"))
_ZONED = re.compile(r"'\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)'")
_DAY = re.compile(r"'\d{4}-\d\d-\d\d'")
_NAIVE = re.compile(r"'\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?'")


class _Token(NamedTuple):
    kind: str
    text: str


class Column(NamedTuple):
    """A column whose bounds are known: its name, and what its values are: number, text, time or day."""

    name: str
    kind: str


def skippers(where: str, columns: Iterable[Column], *, utc: bool) -> list[str]:
    """Conditions, each of which must hold for a row of interest, in the words of the log's reader."""
    tokens = _tokens(where)
    if tokens is None:
        return []
    known = {column.name.lower(): column for column in columns}
    parts = [_spelled(part, known, utc=utc) for part in _conjuncts(tokens)]
    return [part for part in parts if part is not None]


def _tokens(where: str) -> list[_Token] | None:
    found: list[_Token] = []
    at = 0
    where = where.rstrip()
    while at < len(where):
        match = _TOKEN.match(where, at)
        if match is None or match.lastgroup is None:
            return None
        found.append(_Token(match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _conjuncts(tokens: list[_Token]) -> Iterator[list[_Token]]:
    """Cut at the outermost ANDs; whole if there is an OR among them."""
    parts: list[list[_Token]] = [[]]
    depth, between = 0, False
    for token in tokens:
        word = token.text.upper() if token.kind == "word" else token.text
        depth += (word == "(") - (word == ")")
        if depth == 0 and word == "OR":
            yield tokens
            return
        if depth == 0 and word == "AND" and not between:
            parts.append([])
            continue
        between = word == "BETWEEN" if depth == 0 and word in ("AND", "BETWEEN") else between
        parts[-1].append(token)
    yield from parts


def _spelled(part: list[_Token], known: dict[str, Column], *, utc: bool) -> str | None:
    """The part as text, if it may be used."""
    if not part:
        return None
    kinds = set()
    words = []
    for token in part:
        upper = token.text.upper()
        if token.kind == "word" and upper in _JOINTS:
            words.append(upper)
        elif token.kind in ("word", "quoted"):
            column = known.get(token.text.lower())
            if column is None:
                return None
            kinds.add(column.kind)
            words.append(f'"{column.name}"')
        elif token.text == "<=>":
            return None
        else:
            words.append(token.text)
    return " ".join(words) if _literals_fit(part, kinds, utc=utc) else None


def _literals_fit(part: list[_Token], kinds: set[str], *, utc: bool) -> bool:
    """Whether what the columns are compared with is of their kind: both sides would turn others into it differently."""
    if len(kinds) != 1:
        return False
    (kind,) = kinds
    if kind == "number":
        return all(token.kind != "text" for token in part)
    if any(token.kind == "number" for token in part):
        return False
    shape = {"text": None, "day": _DAY, "time": _NAIVE if utc else _ZONED}[kind]
    texts = [token.text for token in part if token.kind == "text"]
    return shape is None or all(shape.fullmatch(text) or (kind == "time" and _ZONED.fullmatch(text)) for text in texts)
