"""Filters: which messages a reader wants, said in the words of SQL.

    region = compile("headers.region = 'eu' AND body.amount > 100")
    region.passes(view_of(record, "orders", 0))

Rule 1: what is wrong with a text is said when it is compiled (InvalidFilter); `passes` never raises.
Rule 2: a filter can't hurt: length, words, depth and LIKEs are bounded, and a message costs time in proportion to its
        size.
Rule 3: a filter is a value: it holds nothing of the messages that it saw, and may be shared by all who use its text.
"""

from collections.abc import Callable
from functools import lru_cache

from runnel.route.compiler import compiled
from runnel.route.message import Message
from runnel.route.needs import needs_of
from runnel.route.syntax import parse

CACHED_MAX = 256  # filters; the largest takes half a megabyte


class Filter:
    """A text that was understood. `roots` are the fields it looks at: key, headers, body, ...

    One of `needs`, if there are any, is in every message that passes.
    """

    __slots__ = ("needs", "passes", "roots", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        tree = parse(text)
        self.passes: Callable[[Message], bool]
        self.passes, self.roots = compiled(tree)
        self.needs = needs_of(tree)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


@lru_cache(maxsize=CACHED_MAX)
def compile(text: str) -> Filter:
    """The filter that a text is; raises InvalidFilter with the place and with what could stand there."""
    return Filter(text)
