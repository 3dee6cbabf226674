"""The words of a filter.

Rule 1: a filter has at most 4,096 characters and 1,024 words, whatever it says: nobody goes on reading beyond.
Rule 2: keywords are read in any case. A name in double quotes, or behind a dot, is never a keyword.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

from runnel.model.errors import InvalidFilter

LENGTH_MAX = 4_096  # characters
TOKENS_MAX = 1_024
SHOWN_MAX = 40  # characters of the text that an error repeats

KEYWORDS = frozenset(
    ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
)  # fmt: skip

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<NUMBER> (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+) (?:[eE][+-]?[0-9]+)? (?!\w) )
      | (?P<NAME>   [^\W\d]\w* )
      | (?P<QUOTED> "(?:[^"]|"")*" )
      | (?P<STRING> '(?:[^']|'')*' )
      | (?P<MARK>   <>|<=|>=|!=|[=<>+\-*/(),.\[\]] )
      | (?P<END>    \Z )
    )""",
    re.VERBOSE,
)


class Sort(Enum):
    NUMBER = auto()
    NAME = auto()
    QUOTED = auto()
    STRING = auto()
    MARK = auto()
    KEYWORD = auto()
    END = auto()


class Token(NamedTuple):
    """A word: `text` is a keyword in capitals, a mark, a number as written, or a name or string without its quotes."""

    sort: Sort
    text: str
    position: int
    source: str  # as written

    @property
    def shown(self) -> str:
        return "the end" if self.sort is Sort.END else shown(self.source)


def tokens_of(text: str) -> list[Token]:
    """The words of a filter; the last one is its end."""
    if len(text) > LENGTH_MAX:
        raise wrong(LENGTH_MAX, f"a filter of {len(text):,} characters", f"at most {LENGTH_MAX:,}")
    _must_be_encodable(text)
    tokens: list[Token] = []
    position = 0
    while not tokens or tokens[-1].sort is not Sort.END:
        found = _TOKEN.match(text, position)
        if found is None:
            raise _not_a_word(text, position)
        if len(tokens) == TOKENS_MAX:
            raise wrong(found.end(), f"a filter of more than {TOKENS_MAX:,} words", f"at most {TOKENS_MAX:,}")
        tokens.append(_token_of(found, behind_dot=bool(tokens) and tokens[-1].source == "."))
        position = found.end()
    return tokens


def wrong(position: int, found: str, expected: str) -> InvalidFilter:
    """What stands at a place, and what could."""
    message = f"the filter is wrong at character {position + 1}: found {found}, expected {expected}"
    return InvalidFilter(message, position=position, found=found, expected=expected)


def shown(source: str) -> str:
    return source if len(source) <= SHOWN_MAX else source[:SHOWN_MAX] + "…"


def _must_be_encodable(text: str) -> None:
    """Half of a surrogate pair is no character: no message could hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise wrong(problem.start, repr(text[problem.start]), "a character of Unicode") from None


def _token_of(found: re.Match[str], *, behind_dot: bool) -> Token:
    sort = Sort[found.lastgroup or "END"]
    source = found[sort.name]
    position = found.start(sort.name)
    match sort:
        case Sort.NAME if not behind_dot and source.isascii() and source.upper() in KEYWORDS:  # ı in capitals is I
            return Token(Sort.KEYWORD, source.upper(), position, source)
        case Sort.QUOTED:
            return Token(sort, source[1:-1].replace('""', '"'), position, source)
        case Sort.STRING:
            return Token(sort, source[1:-1].replace("''", "'"), position, source)
        case Sort.MARK:
            return Token(sort, "<>" if source == "!=" else source, position, source)
    return Token(sort, source, position, source)


def _not_a_word(text: str, position: int) -> InvalidFilter:
    rest = text[position:]
    position += len(rest) - len(rest.lstrip())
    match text[position]:
        case "'" | '"' as quote:
            return wrong(position, shown(text[position:]), f"a closing {quote}")
    return wrong(position, shown(text[position : position + 1]), "a name, a number, 'a text' or an operator")
