"""The syntax of regular expressions over names: from text to a tree.

It is RE2's, as in Kafka, without what can't be decided by a finite table or makes no sense in a name: no look-around,
no back references, no word boundaries.
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass

from runnel.model.errors import InvalidRegularExpression

OTHER = "\uffff"  # stands for every character that is not in ASCII, or can't be seen
ALPHABET = string.ascii_letters + string.digits + string.punctuation + " " + OTHER
REPETITIONS_MAX = 2_000
NESTING_MAX = 50

_ALL = frozenset(ALPHABET)
_DIGITS = frozenset(string.digits)
_SPACE = frozenset(" ")
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_ESCAPES = {"d": _DIGITS, "D": _ALL - _DIGITS, "w": _WORD, "W": _ALL - _WORD, "s": _SPACE, "S": _ALL - _SPACE}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "digit": _DIGITS,
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "punct": frozenset(string.punctuation),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}


# --- the tree of an expression
@dataclass(frozen=True, slots=True)
class Chars:
    allowed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of the name."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: "Node"
    low: int
    high: int | None


Node = Chars | Edge | Sequence | Choice | Repeat


class Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.ignore_case = False
        self.depth = 0

    def parse(self) -> Node:
        tree = self.choice()
        if self.position < len(self.pattern):
            raise self.wrong("unmatched )")
        return tree

    def wrong(self, why: str) -> InvalidRegularExpression:
        shown = self.pattern if len(self.pattern) <= 100 else self.pattern[:97] + "..."
        return InvalidRegularExpression(f"regular expression {shown!r}: {why} at character {self.position + 1}")

    def peek(self) -> str:
        return self.pattern[self.position] if self.position < len(self.pattern) else ""

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise self.wrong("it ends too early")
        self.position += 1
        return char

    def skip(self, text: str) -> bool:
        if self.pattern.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def choice(self) -> Node:
        options = [self.sequence()]
        while self.skip("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            if self.skip("\\Q"):
                parts += [self.chars({char}) for char in self.quoted()]
            else:
                parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quoted(self) -> str:
        end = self.pattern.find("\\E", self.position)
        text = self.pattern[self.position : end if end >= 0 else len(self.pattern)]
        self.position += len(text) + (2 if end >= 0 else 0)
        return text

    def atom(self) -> Node:
        char = self.take()
        match char:
            case "(":
                return self.group()
            case "[":
                return self.bracket()
            case ".":
                return Chars(_ALL)
            case "^":
                return Edge(at_end=False)
            case "$":
                return Edge(at_end=True)
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                self.position -= 1
                raise self.wrong(f"nothing for {char} to repeat")
        return self.chars({char})

    def chars(self, allowed: Iterable[str]) -> Chars:
        """A character out of ASCII can stand in a pattern; it matches nothing."""
        if self.ignore_case:
            allowed = {form for char in allowed for form in (char.lower(), char.upper())}
        return Chars(_ALL & frozenset(allowed))

    def escape(self) -> Node:
        char = self.take()
        if char == "A":
            return Edge(at_end=False)
        if char == "z":
            return Edge(at_end=True)
        return self.chars(self.escaped(char))

    def escaped(self, char: str) -> frozenset[str]:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            raise self.wrong(f"\\{char} is not supported")
        return frozenset(char)

    def group(self) -> Node:
        before = self.ignore_case
        if self.skip("?") and not self.opened():
            return Sequence(())
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise self.wrong(f"more than {NESTING_MAX} groups inside each other")
        tree = self.choice()
        self.depth -= 1
        if not self.skip(")"):
            raise self.wrong("missing )")
        self.ignore_case = before
        return tree

    def opened(self) -> bool:
        """What follows `(?`: a kind of group, or flags alone (False) that hold from here on."""
        if self.skip("P<") or (self.skip("<") and self.peek() not in "=!"):
            while self.take() != ">":
                pass
            return True
        flags, sign = self.flags()
        if "i" in flags:
            self.ignore_case = sign
        if self.skip(":"):
            return True
        if flags and self.skip(")"):
            return False
        raise self.wrong("this kind of group is not supported")

    def flags(self) -> tuple[str, bool]:
        start, sign = self.position, True
        while self.peek() and self.peek() in "imsU-":
            sign = sign and self.take() != "-"
        return self.pattern[start : self.position], sign

    def bracket(self) -> Node:
        negated = self.skip("^")
        allowed: set[str] = set()
        first = True
        while first or self.peek() != "]":
            allowed |= self.bracket_item()
            first = False
        self.take()
        if self.ignore_case:
            allowed = {form for char in allowed for form in (char.lower(), char.upper())}
        return Chars(_ALL - allowed if negated else _ALL & allowed)

    def bracket_item(self) -> frozenset[str]:
        if self.skip("[:"):
            return self.posix()
        low = self.take()
        if low == "\\":
            low = self.take()
            if low in _ESCAPES:
                return _ESCAPES[low]
            self.escaped(low)
        if self.peek() != "-" or self.pattern[self.position + 1 : self.position + 2] in ("]", ""):
            return frozenset(low)
        self.take()
        high = self.take()
        if high == "\\":
            high = self.take()
            self.escaped(high)
        if high < low:
            raise self.wrong(f"{low}-{high} is no range")
        return frozenset(char for char in ALPHABET if low <= char <= high)

    def posix(self) -> frozenset[str]:
        end = self.pattern.find(":]", self.position)
        name = self.pattern[self.position : end]
        chars = _POSIX.get(name.removeprefix("^")) if end >= 0 else None
        if chars is None:
            raise self.wrong("unknown class of characters")
        self.position = end + 2
        return _ALL - chars if name.startswith("^") else chars

    def repeated(self, atom: Node) -> Node:
        bounds = self.bounds()
        if bounds is None:
            return atom
        self.skip("?")  # reluctant: the same names match
        if self.bounds() is not None:
            raise self.wrong("a repetition of a repetition: put it into a group")
        return Repeat(atom, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        match self.peek():
            case "*":
                bounds: tuple[int, int | None] = (0, None)
            case "+":
                bounds = (1, None)
            case "?":
                bounds = (0, 1)
            case "{":
                return self.counted()
            case _:
                return None
        self.position += 1
        return bounds

    def counted(self) -> tuple[int, int | None] | None:
        end = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if not (_whole(low) and (not high or _whole(high))):
            raise self.wrong("{ begins no repetition: write \\{ for the character")
        self.position = end + 1
        most = (int(high) if high else None) if comma else int(low)
        if int(low) > REPETITIONS_MAX or (most or 0) > REPETITIONS_MAX or (most is not None and most < int(low)):
            raise self.wrong("bad number of repetitions")
        return int(low), most


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
